"""Partly streamed schedules: some output tiles are streamed, whole waves of others are not.

What they share is everything but one number: how many waves of whole tiles there are.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from sympy import Expr, Integer

from coordgraph import KernelGraph
from coordgraph.control.operations import Body, For, Scope, SetCoordinate
from coordgraph.coordinates.dimensions import ForLoop, Linear, Selector, Workgroup
from coordgraph.coordinates.edges import PassThrough, Split, Sunder, Tile
from coordgraph.kernel import KernelEditor
from passes.base import Pass
from passes.stream_k import check_stream_options
from passes.streaming import ACCUMULATE, TILE, Stream, add_loops
from passes.tiles import (
    TileWork,
    depth_is_data,
    flatten_iterations,
    number_of,
    number_of_iterations,
    workgroup_count,
)

__all__ = ["ORDERS", "PartlyStreamed"]

ORDERS = ("sk", "dp")
WAVES = ("strided", "contiguous")
Walk = Callable[[Body], For]
"""Puts the loop over a workgroup's data-parallel tiles around one tile's work."""


@dataclass(frozen=True)
class PartlyStreamed(Pass):
    """Whole waves of output tiles are data-parallel, the rest is streamed.

    Before: dangling m and n, a loop over k tiles. After::

        m, n, k_tile --Flatten--> global --Sunder--> sk.tiles, dp.tiles, selector
        sk.tiles --Tile--> workgroup, sk.local --Split{1, 1}--> ForTile, ForK
        dp.tiles --Tile--> dp.wave, workgroup, dp.local --PassThrough--> ForK

    Args:
        workgroups: the grid; None makes it a launch argument.
        owner: `first` or `last` segment of a shared tile runs the epilogue; see `Stream`.
        first: which part comes first, in the tile space and in time: `sk` or `dp`.
        waves: which data-parallel tiles a workgroup has. `strided`: every W-th, so that at any
            time W neighbours are worked on and share what they read in the L2 cache.
            `contiguous`: neighbours, as the paper draws it; the last line above is then
            `dp.tiles --Tile--> workgroup, dp.local --Split{1, 1}--> ForTile, ForK`.
        least: iterations in a streamed share, at least; see `Stream`.
        least_segment: iterations of a tile that a share has, at least; where it is more than 1,
            `sk.tiles --Share--> workgroup, sk.begin, sk.local`; see `Stream`.
        reduction: how a shared tile's pieces are added up; see `Stream`.
    """

    workgroups: int | None = None
    owner: str = "first"
    first: str = "sk"
    waves: str = "strided"
    least: int = 1
    least_segment: int = 1
    reduction: str = "peers"

    establishes = ("scheduled",)

    @abstractmethod
    def whole_waves(self, tiles: Expr, workgroups: Expr) -> Expr:
        """How many waves of `workgroups` tiles, of `tiles` in all, are data-parallel."""

    def why_not(self, graph: KernelGraph) -> str | None:
        if self.first not in ORDERS:
            return f"first={self.first} is unknown; there are {', '.join(ORDERS)}"
        if self.waves not in WAVES:
            return f"waves={self.waves} is unknown; there are {', '.join(WAVES)}"
        if depth_is_data(graph):
            return (
                "waves of whole tiles are tiles of one depth, and here how deep a tile is is data; "
                "stream-k shares the iterations of all groups"
            )
        return check_stream_options(self)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        work, numbers = TileWork.of(graph), graph.dangling
        k_tile = graph.coordinates[work.loop.dim]
        depth = k_tile.size
        assert depth is not None
        tiles = number_of(numbers)
        with graph.edit(str(self)) as e:
            e.level = "scheduled"
            e.assume(tiles * depth)
            count = workgroup_count(e, self.workgroups)
            waves = e.parameter(
                "dp_waves",
                self.whole_waves(tiles, count),
                minimum=0,
                note="data-parallel tiles per workgroup",
            )
            streamed = e.parameter(
                "sk_tiles", tiles - waves * count, minimum=0, note="output tiles that are streamed"
            )
            # The tiles and iterations that there are, stated of their parts: from that proofs see
            # that the number of a tile fits 32 bits.
            e.assume(waves * count + streamed)
            e.assume((waves * count + streamed) * depth)
            c = e.coordinates
            space = c.add(
                Linear("global", number_of_iterations(graph, numbers), note="global M/N/K tiles")
            )
            flatten_iterations(e, graph, numbers, space.id)
            sk = c.add(Linear("sk.tiles", streamed * depth, note="Stream-K portion"))
            dp = c.add(Linear("dp.tiles", waves * count * depth, note="data-parallel portion"))
            selector = c.add(Selector("selector", Integer(2), note="SK/DP"))
            parts = (sk, dp) if self.first == "sk" else (dp, sk)
            c.connect(Sunder(space.id, (*(p.id for p in parts), selector.id)))
            add_loops(e)
            place = {p.id: Integer(i) for i, p in enumerate(parts)}
            chosen = {selector.id: place[sk.id]}
            stream = Stream(
                sk,
                numbers,
                work,
                count,
                self.owner,
                chosen,
                least=self.least,
                least_segment=self.least_segment,
                reduction=self.reduction,
            )
            stream.tie(e, graph.gemm.accumulator)
            tie = _tie_strided if self.waves == "strided" else _tie_contiguous
            walk = tie(e, dp.id, waves, count, depth)
            control = {
                sk.id: Scope("stream-k", stream.control(e)),
                dp.id: Scope("data-parallel", (walk(work.part(ACCUMULATE, depth, work.after)),)),
            }
            e.kernel(
                *(SetCoordinate(selector.id, place[p.id], (control[p.id],)) for p in parts),
                workgroup="workgroup",
            )
        return e.graph


def _tie_strided(e: KernelEditor, space: str, waves: Expr, count: Expr, depth: Expr) -> Walk:
    """A wave of neighbouring tiles after another, one tile of each for every workgroup."""
    c = e.coordinates
    c.add(ForLoop("dp.wave", waves, name="Wave"))
    c.add(Workgroup("dp.workgroup", count))
    c.add(Linear("dp.local", depth, note="the iterations of a data-parallel tile"))
    c.connect(Tile(space, ("dp.wave", "dp.workgroup", "dp.local")))
    c.connect(PassThrough("dp.workgroup", "workgroup"))
    c.connect(PassThrough("dp.local", ACCUMULATE))
    return lambda tile: For("dp.wave", Integer(0), waves, body=tile)


def _tie_contiguous(e: KernelEditor, space: str, waves: Expr, count: Expr, depth: Expr) -> Walk:
    """Neighbouring tiles for every workgroup."""
    c, local = e.coordinates, waves * depth
    c.add(Workgroup("dp.workgroup", count))
    c.add(Linear("dp.local", local, note="a workgroup's data-parallel iterations"))
    c.connect(Tile(space, ("dp.workgroup", "dp.local")))
    c.connect(PassThrough("dp.workgroup", "workgroup"))
    c.connect(Split("dp.local", (TILE, ACCUMULATE), (Integer(1), Integer(1))))
    return lambda tile: For(TILE, Integer(0), local, depth, tile)
