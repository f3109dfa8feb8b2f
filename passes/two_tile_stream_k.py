"""`TwoTileStreamK`: stream what does not fill whole waves, the rest data-parallel."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Integer

from coordgraph import KernelGraph
from coordgraph.control.operations import Body, For, Scope, SetCoordinate
from coordgraph.coordinates.dimensions import Linear, Selector, Workgroup
from coordgraph.coordinates.edges import PassThrough, Split, Sunder, Tile
from coordgraph.integers import equal, floor_div, floor_mod, maximum, select
from coordgraph.kernel import KernelEditor
from passes.base import Pass
from passes.stream_k import check_stream_options
from passes.streaming import ACCUMULATE, TILE, Stream, add_loops
from passes.tiles import TileWork, flatten_into, number_of, workgroup_count

__all__ = ["TwoTileStreamK"]

ORDERS = ("sk", "dp")


@dataclass(frozen=True)
class TwoTileStreamK(Pass):
    """Each workgroup streams one to two tiles' worth; whole waves of tiles are data-parallel.

    With T output tiles of TK iterations and W workgroups, `T div W - 1` waves are data-parallel,
    all of them where W divides T, none where T < W. Before: dangling m and n. After::

        m, n, k_tile --Flatten--> global --Sunder--> sk.tiles, dp.tiles, selector
        sk.tiles --Tile--> workgroup, sk.local --Split{1, 1}--> ForTile, ForK
        dp.tiles --Tile--> workgroup, dp.local --Split{1, 1}--> ForTile, ForK

    Args:
        workgroups: the grid; None makes it a launch argument.
        owner: `first` or `last` segment of a shared tile runs the epilogue; see `Stream`.
        first: which part comes first, in the tile space and in time: `sk` or `dp`.
    """

    workgroups: int | None = None
    owner: str = "first"
    first: str = "sk"

    name = "two-tile-stream-k"
    establishes = ("scheduled",)

    def why_not(self, graph: KernelGraph) -> str | None:
        if self.first not in ORDERS:
            return f"first={self.first} is unknown; there are {', '.join(ORDERS)}"
        return check_stream_options(self.workgroups, self.owner)

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
            waves = self._waves(e, tiles, count)
            streamed = e.parameter(
                "sk_tiles", tiles - waves * count, minimum=0, note="output tiles that are streamed"
            )
            c = e.coordinates
            space = c.add(Linear("global", tiles * depth, note="global M/N/K tiles"))
            flatten_into(e, (*numbers, k_tile), space.id)
            sk = c.add(Linear("sk.tiles", streamed * depth, note="Stream-K portion"))
            dp = c.add(Linear("dp.tiles", waves * count * depth, note="data-parallel portion"))
            selector = c.add(Selector("selector", Integer(2), note="SK/DP"))
            parts = (sk, dp) if self.first == "sk" else (dp, sk)
            c.connect(Sunder(space.id, (*(p.id for p in parts), selector.id)))
            add_loops(e)
            place = {p.id: Integer(i) for i, p in enumerate(parts)}
            stream = Stream(
                sk, numbers, k_tile.id, depth, count, self.owner, {selector.id: place[sk.id]}
            )
            share = stream.tie(e, graph.gemm.accumulator)
            local = _tie_waves(e, dp.id, waves, count, depth)
            control = {
                sk.id: Scope("stream-k", stream.control(e, work, share)),
                dp.id: Scope("data-parallel", _walk_waves(local, depth, work)),
            }
            e.kernel(
                *(SetCoordinate(selector.id, place[p.id], (control[p.id],)) for p in parts),
                workgroup="workgroup",
            )
        return e.graph

    @staticmethod
    def _waves(e: KernelEditor, tiles: Expr, count: Expr) -> Expr:
        """Data-parallel waves: all where they fit exactly, else one fewer than fit."""
        fit = floor_div(tiles, count)
        fewer = maximum(fit - 1, Integer(0))
        waves = select(equal(floor_mod(tiles, count), 0), fit, fewer)
        return e.parameter("dp_waves", waves, minimum=0, note="data-parallel tiles per workgroup")


def _tie_waves(e: KernelEditor, space: str, waves: Expr, count: Expr, depth: Expr) -> Expr:
    """Whole tiles for every workgroup, contiguous in the tile space; returns their iterations."""
    c, local = e.coordinates, waves * depth
    c.add(Workgroup("dp.workgroup", count))
    c.add(Linear("dp.local", local, note="a workgroup's data-parallel iterations"))
    c.connect(Tile(space, ("dp.workgroup", "dp.local")))
    c.connect(PassThrough("dp.workgroup", "workgroup"))
    c.connect(Split("dp.local", (TILE, ACCUMULATE), (Integer(1), Integer(1))))
    return local


def _walk_waves(local: Expr, depth: Expr, work: TileWork) -> Body:
    """One whole tile after another."""
    tile = (
        *work.before,
        work.accumulate(ACCUMULATE, depth),
        SetCoordinate(ACCUMULATE, Integer(0), work.after),
    )
    return (For(TILE, Integer(0), local, depth, tile),)
