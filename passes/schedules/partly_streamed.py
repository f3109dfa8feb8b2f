"""`PartlyStreamed`: base class of schedules with Stream-K tiles and data-parallel tiles.

The iterations of Stream-K ("streamed") tiles are divided into equal shares for the workgroups. A
data-parallel tile is computed by one workgroup alone, in waves of one tile for each workgroup.
Subclasses decide how many such waves there are.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast, get_args

from sympy import Expr, Integer

from coordgraph import KernelGraph
from coordgraph.control.operations import For, Operation, Scope, SetCoordinate
from coordgraph.coordinates.dimensions import ForLoop, Linear, Selector, Workgroup
from coordgraph.coordinates.edges import PassThrough, Split, Sunder, Tile
from coordgraph.integers import maximum, minimum
from coordgraph.kernel import KernelEditor
from coordgraph.parameters import LARGEST_INDEX
from passes.base import Pass, option
from passes.kit import (
    ACCUMULATE,
    MOST_WORKGROUPS,
    TILE,
    Owner,
    Reduction,
    Stream,
    TileWork,
    add_loops,
    depth_is_data,
    flatten_into,
    flatten_iterations,
    number_of,
    number_of_iterations,
    workgroup_count,
)
from passes.schedules.stream_k import least_segment_refusal

__all__ = ["ORDERS", "PartlyStreamed"]

First = Literal["sk", "dp"]
"""Which output tiles have the lowest numbers and are computed first: Stream-K tiles (`sk`) or
data-parallel tiles (`dp`)."""
Waves = Literal["strided", "contiguous"]
"""Which data-parallel tiles a workgroup computes: `strided` (with W workgroups, every W-th tile) or
`contiguous` (consecutive tiles)."""
ORDERS: tuple[str, ...] = get_args(First)
"""The values of the option `first` of `PartlyStreamed`: `sk` and `dp`."""
WHOLE = "dp.k"
"""The coordinate that the main loop of data-parallel tiles counts, if the groups of a grouped
product have different extents along k."""


@dataclass(frozen=True)
class PartlyStreamed(Pass):
    """Some waves of output tiles are data-parallel; the iterations of the other tiles are streamed.

    Streamed iterations are divided into one contiguous share for each workgroup, so several
    workgroups may share a tile. Before: dimensions of kind `MacroTileNumber` for m and n that no
    edge computes, and a loop over k tiles. After (`sk.tiles` numbers the iterations of the Stream-K
    tiles, `dp.tiles` those of the data-parallel tiles)::

        m, n, k_tile --Flatten--> global --Sunder--> sk.tiles, dp.tiles, selector
        sk.tiles --Tile--> workgroup, sk.local --Split{1, 1}--> ForTile, ForK
        dp.tiles --Tile--> dp.wave, workgroup, dp.local --PassThrough--> ForK

    If groups have their own k, output tiles are separated into two parts instead of iterations::

        group, m, n --Flatten--> tile --Sunder--> sk.tile, dp.tile, selector
        group, m, n, k_tile --Concatenate--> global --Tile--> workgroup, sk.local
        dp.tile --Tile--> dp.wave, workgroup; k_tile --PassThrough--> dp.k

    Args:
        workgroups: number of workgroups in the grid; None makes it a launch argument.
        owner: the workgroup that adds up the pieces (partial sums) of a shared tile and runs the
            epilogue: the one with the tile's `first` piece along k, which waits for workgroups of
            higher number, or with the `last` piece, which waits for workgroups of lower number.
            Without effect for `reduction=scatter`.
        first: which tiles have the lowest numbers and are computed first: `sk` (Stream-K) or `dp`
            (data-parallel).
        waves: which data-parallel tiles a workgroup computes. `strided`: every W-th tile of W
            workgroups, so that neighbouring tiles are computed at the same time and share A and B
            in the L2 cache. `contiguous`: consecutive tiles, as in the Stream-K paper; the
            coordinates are then
            `dp.tiles --Tile--> workgroup, dp.local --Split{1, 1}--> ForTile, ForK`.
        least: smallest number of iterations in a share. If equal shares would be smaller, some
            workgroups get no share and exit at once.
        least_segment: smallest number of iterations of one tile in a share, unless the tile has
            fewer. If the end of a share would leave fewer, the end moves to the begin or end of the
            tile; the coordinates are then `sk.tiles --Share--> workgroup, sk.begin, sk.local`.
        reduction: how the pieces (partial sums) of a shared tile are added up. `peers`: the owner
            adds one piece after another. `tree`: pieces are added in pairs, and pairs of pairs, at
            the same time.
            `turnstile`: the pieces are added to one slot of the workspace, one by one. `scatter`:
            every workgroup with a piece finishes a share of the tile. `atomic`: atomic additions to
            one slot, so the last bits differ from run to run.
    """

    workgroups: int | None = option(None, least=1, most=MOST_WORKGROUPS)
    owner: Owner = "first"
    first: First = "sk"
    waves: Waves = "strided"
    least: int = option(1, least=1, most=LARGEST_INDEX)
    least_segment: int = option(1, least=1, most=LARGEST_INDEX)
    reduction: Reduction = "peers"

    establishes = ("scheduled",)

    @abstractmethod
    def whole_waves(self, tiles: Expr, workgroups: Expr) -> Expr:
        """Number of waves of output tiles that are data-parallel.

        Args:
            tiles: number of output tiles.
            workgroups: number of workgroups, which is the number of tiles in a wave.
        """

    @property
    def neighbours(self) -> bool:
        return self.waves == "strided"

    def why_not(self, graph: KernelGraph) -> str | None:
        for name, own, needed in (("first", self.first, "sk"), ("waves", self.waves, "strided")):
            if own != needed and depth_is_data(graph):
                return (
                    f"{name}={own} needs output tiles with equally many k tiles, and here groups "
                    f"have their own k; use {name}={needed}"
                )
        return least_segment_refusal(self.least_segment, graph)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        work, numbers = TileWork.of(graph), graph.dangling
        tiles = number_of(graph, numbers)
        with graph.edit(str(self)) as e:
            e.level = "scheduled"
            e.assume(number_of_iterations(graph, numbers))
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
            # This sum is the number of output tiles, which fits 32 bits. Range analysis needs the
            # bound on the sum itself to prove that the index of a tile fits 32 bits.
            e.assume(waves * count + streamed)
            part = _part_tiles if depth_is_data(graph) else _part_iterations
            sk, dp = part(e, graph, work, streamed, waves * count)
            c = e.coordinates
            selector = c.add(Selector("selector", Integer(2), note="SK/DP"))
            parts = (sk, dp) if self.first == "sk" else (dp, sk)
            c.connect(Sunder(dp.within, (*(p.range.id for p in parts), selector.id)))
            add_loops(e)
            place = {p.range.id: Integer(i) for i, p in enumerate(parts)}
            stream = Stream(
                sk.space,
                numbers,
                work,
                count,
                self.owner,
                {selector.id: place[sk.range.id]},
                least=self.least,
                least_segment=self.least_segment,
                reduction=self.reduction,
            )
            stream.tie(e, graph.gemm.accumulator)
            walk = _walk_strided if self.waves == "strided" else _walk_contiguous
            if depth_is_data(graph):
                walk = _walk_tiles
            whole = walk(e, dp.range.id, waves, count, work)
            control = {
                sk.range.id: Scope("stream-k", stream.control(e)),
                dp.range.id: Scope("data-parallel", (whole,)),
            }
            e.kernel(
                *(
                    SetCoordinate(selector.id, place[p.range.id], (control[p.range.id],))
                    for p in parts
                ),
                workgroup="workgroup",
            )
        return e.graph


class _Part(NamedTuple):
    """The Stream-K part or the data-parallel part of a kernel's work.

    Args:
        within: the id of the dimension that numbers the iterations, or output tiles, of both parts.
        range: the dimension that numbers the iterations, or output tiles, of this part.
        space: the dimension that numbers the iterations of the Stream-K part; unused for the
            data-parallel part.
    """

    within: str
    range: Linear
    space: Linear


def _part_iterations(
    e: KernelEditor, graph: KernelGraph, work: TileWork, streamed: Expr, whole: Expr
) -> tuple[_Part, _Part]:
    """Separate the iterations of all output tiles into a Stream-K part and a data-parallel part.

    All output tiles must have equally many k tiles.

    Args:
        e: the kernel under construction.
        graph: the graph before the schedule.
        work: the operations on an output tile.
        streamed, whole: number of Stream-K and of data-parallel output tiles.

    Returns:
        The Stream-K part and the data-parallel part.
    """
    c, depth, numbers = e.coordinates, work.depth, graph.dangling
    e.assume((whole + streamed) * depth)
    total = number_of_iterations(graph, numbers)
    space = c.add(Linear("global", total, note="global M/N/K tiles"))
    flatten_iterations(e, graph, numbers, space.id)
    sk = c.add(Linear("sk.tiles", streamed * depth, note="Stream-K portion"))
    dp = c.add(Linear("dp.tiles", whole * depth, note="data-parallel portion"))
    return _Part(space.id, sk, sk), _Part(space.id, dp, dp)


def _part_tiles(
    e: KernelEditor, graph: KernelGraph, work: TileWork, streamed: Expr, whole: Expr
) -> tuple[_Part, _Part]:
    """Separate output tiles into a Stream-K part and a data-parallel part, if groups differ in k.

    The iterations of the Stream-K part are all iterations from the part's first tile to its last
    tile.

    Args:
        e: the kernel under construction.
        graph: the graph before the schedule.
        work: the operations on an output tile.
        streamed, whole: number of Stream-K and of data-parallel output tiles.

    Returns:
        The Stream-K part and the data-parallel part.
    """
    c, numbers = e.coordinates, graph.dangling
    tile = c.add(Linear("tile", number_of(graph, numbers), note="output tiles"))
    flatten_into(e, numbers, tile.id)
    sk = c.add(Linear("sk.tile", streamed, note="Stream-K portion"))
    dp = c.add(Linear("dp.tile", whole, note="data-parallel portion"))
    every = c.add(Linear("global", note="global M/N/K tiles"))
    flatten_iterations(e, graph, numbers, every.id)
    before, ranges = e.snapshot(), e.parameters.ranges()
    # The index of the last Stream-K tile, or 0 if there is no Stream-K tile.
    last = {tile.id: maximum(streamed - 1, Integer(0))}
    names = [d.id for d in numbers]
    here = dict(zip(names, before.reverse(last, names, ranges), strict=True))
    read = {before.symbol(dim): here[dim] for dim in work.located if dim in here}
    deepest = cast(Expr, work.depth.xreplace(read)) - 1
    (end,) = before.forward({**here, work.loop.dim: deepest}, [every.id], ranges)
    count = e.parameter(
        "sk_iterations",
        # This minimum changes no value, but states an upper bound that range analysis cannot
        # derive from its bounds on each group's number of k tiles.
        minimum((end + 1) * minimum(streamed, Integer(1)), number_of_iterations(graph, numbers)),
        minimum=0,
        note="iterations that are streamed",
    )
    return _Part(tile.id, sk, c.replace(replace(every, size=count))), _Part(tile.id, dp, dp)


def _walk_tiles(e: KernelEditor, tiles: str, waves: Expr, count: Expr, work: TileWork) -> Operation:
    """A loop over waves of data-parallel output tiles that differ in their number of k tiles.

    Args:
        e: the kernel under construction; the coordinates of waves are added.
        tiles: the dimension that numbers data-parallel tiles.
        waves: number of waves.
        count: number of workgroups; workgroup w computes tiles w, w + count and so on.
        work: the operations on an output tile.
    """
    c = e.coordinates
    c.add(ForLoop("dp.wave", waves, name="Wave"))
    c.add(Workgroup("dp.workgroup", count))
    c.add(ForLoop(WHOLE, name="K", note="iterations in a data-parallel tile"))
    c.connect(Tile(tiles, ("dp.wave", "dp.workgroup")))
    c.connect(PassThrough("dp.workgroup", "workgroup"))
    c.connect(PassThrough(work.loop.dim, WHOLE))
    return For("dp.wave", Integer(0), waves, body=work.whole(WHOLE))


def _walk_strided(
    e: KernelEditor, space: str, waves: Expr, count: Expr, work: TileWork
) -> Operation:
    """A loop over waves of data-parallel output tiles with equally many k tiles.

    In each wave, consecutive workgroups compute consecutive tiles.

    Args:
        e: the kernel under construction; the coordinates of waves are added.
        space: the dimension that numbers the iterations of data-parallel tiles.
        waves: number of waves.
        count: number of workgroups.
        work: the operations on an output tile.
    """
    c, depth = e.coordinates, work.depth
    c.add(ForLoop("dp.wave", waves, name="Wave"))
    c.add(Workgroup("dp.workgroup", count))
    c.add(Linear("dp.local", depth, note="the iterations of a data-parallel tile"))
    c.connect(Tile(space, ("dp.wave", "dp.workgroup", "dp.local")))
    c.connect(PassThrough("dp.workgroup", "workgroup"))
    c.connect(PassThrough("dp.local", ACCUMULATE))
    tile = work.part(ACCUMULATE, depth, work.after)
    return For("dp.wave", Integer(0), waves, body=tile)


def _walk_contiguous(
    e: KernelEditor, space: str, waves: Expr, count: Expr, work: TileWork
) -> Operation:
    """A loop over consecutive data-parallel output tiles of one workgroup.

    Args:
        e: the kernel under construction; the coordinates of the tiles are added.
        space: the dimension that numbers the iterations of data-parallel tiles.
        waves: number of data-parallel tiles of each workgroup.
        count: number of workgroups.
        work: the operations on an output tile.
    """
    c, depth = e.coordinates, work.depth
    local = waves * depth
    c.add(Workgroup("dp.workgroup", count))
    c.add(Linear("dp.local", local, note="a workgroup's data-parallel iterations"))
    c.connect(Tile(space, ("dp.workgroup", "dp.local")))
    c.connect(PassThrough("dp.workgroup", "workgroup"))
    c.connect(Split("dp.local", (TILE, ACCUMULATE), (Integer(1), Integer(1))))
    tile = work.part(ACCUMULATE, depth, work.after)
    return For(TILE, Integer(0), local, depth, tile)
