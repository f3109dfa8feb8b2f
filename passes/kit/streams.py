"""Streaming: divide a range of all iterations into equal contiguous shares, one per workgroup.

Shared by every Stream-K schedule. A share is walked by an outer loop over output tiles and an
inner accumulation loop; a *segment* is the part of a share that lies in one output tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from sympy import Expr, Integer, Lt

from coordgraph.control.operations import Assign, Body, For, If, SetCoordinate
from coordgraph.coordinates.dimensions import Dimension, ForLoop, Linear, Workgroup
from coordgraph.coordinates.edges import Edge, Join, PassThrough, Share, Split, Tile
from coordgraph.integers import ceil_div, floor_div, maximum, minimum, symbols_of
from coordgraph.kernel import KernelEditor
from coordgraph.parameters import LARGEST_INDEX
from passes.kit.fixup import A_SLOT_A_TILE, SLOT, TURN, Pieces, add_workspace
from passes.kit.reduce_scatter import Scatter
from passes.kit.tile_work import TileWork

__all__ = ["Stream", "add_loops"]

TILE, ACCUMULATE, BEHIND = "for_tile", "for_k", "for_behind"
BEGIN = "sk.begin"


def add_loops(e: KernelEditor) -> None:
    """Add the loop coordinates of a streamed walk: `ForTile` and `ForK`, which count iterations."""
    e.coordinates.add(ForLoop(TILE, name="Tile", note="iterations before this segment"))
    e.coordinates.add(ForLoop(ACCUMULATE, name="K", note="iterations in this segment"))


@dataclass(frozen=True)
class Stream:
    """A streamed range being built: call `tie` for its coordinates, then `control`.

    Args:
        space: the dimension to stream; it counts iterations of all tiles, K fastest.
        numbers: the tile numbers above `space`.
        work: the operations on an output tile; tiles may differ in their number of iterations.
        workgroups: number of workgroups that share the range.
        owner: the segment of a shared tile whose workgroup runs the epilogue. `first` waits for
            workgroups of higher number. `last` waits for those of lower number, and each workgroup
            walks its tiles from the last to the first, so that pieces are sent early. Ignored with
            `scatter`, where no workgroup owns a tile.
        fixed: coordinates that are set around this walk (a `Sunder`'s selector).
        least: smallest number of iterations in a share. If the range is short, some workgroups get
            no share and exit at once, because the fix-up would take longer than their iterations.
        least_segment: smallest number of iterations in a segment, unless the tile has fewer. If
            the border of a share would leave a shorter segment, the border moves to the end of the
            tile; a tile of fewer than twice as many iterations is not shared. So no fix-up is spent
            on a few iterations.
        reduction: how the pieces of a shared tile are added up; see `passes.kit.fixup`. `peers`:
            the owner adds one piece after another. `tree`: pieces are added in pairs, which pays
            if a tile has more than about seven peers. `turnstile`: the pieces pass one slot, one by
            one. `scatter`: every peer finishes a share of the tile. `atomic`: atomic additions to
            one slot, so the last bits differ from run to run.
    """

    space: Linear
    numbers: tuple[Dimension, ...]
    work: TileWork
    workgroups: Expr
    owner: str
    fixed: Mapping[str, Expr]
    least: int = 1
    least_segment: int = 1
    reduction: str = "peers"

    def tie(self, e: KernelEditor, accumulator: str) -> None:
        """Add the coordinates: shares of workgroups, loops over each share, workspace slots."""
        iterations = self.space.size
        assert iterations is not None
        share = e.parameter(
            "share",
            maximum(self._least_share(), ceil_div(iterations, self.workgroups)),
            note="streamed iterations per workgroup",
        )
        # Half the range: the end of a share, rounded up to a whole tile, must still fit 32 bits.
        e.assume(share * self.workgroups, LARGEST_INDEX // 2)
        c = e.coordinates
        c.add(Workgroup("sk.workgroup", self.workgroups))
        longest = share
        shares: Edge = Tile(self.space.id, ("sk.workgroup", "sk.local"))
        if self.least_segment > 1:
            before, behind = self._slivers(e)
            c.add(Linear(BEGIN, iterations, note="where a workgroup's share begins"))
            parts = ("sk.workgroup", BEGIN, "sk.local")
            shares = Share(self.space.id, parts, share, self.depth, before, behind)
            longest += before + behind
        c.add(Linear("sk.local", longest, note="a workgroup's streamed iterations"))
        c.connect(shares)
        c.connect(PassThrough("sk.workgroup", "workgroup"))
        c.connect(Split("sk.local", (TILE, ACCUMULATE), (Integer(1), Integer(1))))
        if self.reduction == "scatter":
            Scatter.tie(e, self.workgroups, "sk.workgroup", accumulator, ends=True)
            return
        add_workspace(e, self.workgroups, accumulator, self.reduction)
        if self.reduction in A_SLOT_A_TILE:
            # A tile uses the slot of its first workgroup, and turns count from that workgroup. No
            # other tile uses the slot: only the last tile of a share continues in the next one.
            c.add(Linear(TURN, note="pieces of the tile before this one"))
            c.connect(Join((SLOT, TURN), "sk.workgroup", (Integer(1), Integer(1))))
        else:
            c.connect(PassThrough(SLOT, "sk.workgroup"))

    def _least_share(self) -> Expr:
        """Smallest share: shorter ones could leave a short segment in the middle of a tile."""
        if self.least_segment <= self.least:
            return Integer(self.least)
        return maximum(Integer(self.least), minimum(Integer(self.least_segment), self.depth))

    def _slivers(self, e: KernelEditor) -> tuple[Expr, Expr]:
        """How far before and after the end of a tile a share's border is moved to that end.

        In a tile that is too short for two segments, every border is moved to one of its ends.
        """
        sliver = Integer(self.least_segment - 1)
        before = minimum(sliver, floor_div(self.depth - 1, Integer(2)))
        behind = minimum(sliver, floor_div(self.depth, Integer(2)))
        return (
            e.parameter("before", before, minimum=0, note="so near in front of a tile, or"),
            e.parameter("behind", behind, minimum=0, note="so far into it, a share's border moves"),
        )

    @property
    def depth(self) -> Expr:
        """Iterations of the current output tile."""
        return self.work.depth

    def control(self, e: KernelEditor) -> Body:
        """The control that walks a workgroup's share: segments, their accumulation, fix-up."""
        graph, iterations = e.snapshot(), self.space.size
        assert iterations is not None
        work, loop = self.work, self.work.loop.dim
        workgroup, tile = graph.symbol("workgroup"), graph.symbol(TILE)
        at = {**self.fixed, "workgroup": workgroup, TILE: tile, ACCUMULATE: Integer(0)}
        ranges = graph.ranges(e.parameters.ranges())
        start = {"sk.workgroup": workgroup, "sk.local": Integer(0)}
        (first_of_share,) = graph.reverse(start, [self.space.id], ranges)
        begin = first_of_share
        if BEGIN in graph:  # computed once, as a coordinate
            begin = at[BEGIN] = graph.symbol(BEGIN)
        # Coordinates that `Locate` sets around a tile's work are read by name inside it.
        located = dict(zip(self._located, graph.reverse(at, self._located, ranges), strict=True))
        names = {dim: graph.symbol(dim) for dim in located}
        inside = ranges
        for dim, value in located.items():
            inside = inside.with_found(names[dim], value)
        wanted = [*(d.id for d in self.numbers), loop]
        *numbers, k_first = graph.reverse(at | names, wanted, inside)
        here = {d.id: value for d, value in zip(self.numbers, numbers, strict=True)}

        def holder(k: Expr) -> Expr:
            """The workgroup whose share holds iteration `k` of this output tile."""
            return graph.forward({**here, loop: k}, ["sk.workgroup"], inside)[0]

        length = graph.derivative(self.space.id, "sk.workgroup", start, ranges)
        length += first_of_share - begin
        mine = Assign("iterations", minimum(length, iterations - begin))
        first = Assign("k_first", k_first)
        count = Assign("k_count", minimum(self.depth - first.symbol, mine.symbol - tile))
        low, high = holder(Integer(0)), holder(self.depth - 1)
        (k_here,) = graph.reverse(at, [loop], ranges)
        depth = cast(Expr, self.depth.xreplace({names[dim]: at for dim, at in located.items()}))
        step = minimum(depth - k_here, mine.symbol - tile)
        if self.reduction == "scatter":
            # Two walks: this workgroup sends all of its pieces before it waits for any other piece.
            scatter, cut = Scatter(low, high, ends=True), Lt(count.symbol, self.depth)
            end = (If(cut, scatter.send(), work.after),)
            finish = (first, count, If(cut, scatter.finish(e, work.after)))
            walk: Body = tuple(
                For(TILE, Integer(0), mine.symbol, step, body)
                for body in (
                    work.part(ACCUMULATE, count.symbol, end, first=(first, count)),
                    work.at(ACCUMULATE, finish),
                )
            )
        else:
            pieces = Pieces(low, high, first.symbol, count.symbol, self.depth, slot=low)
            finish = pieces.finish(e, self.owner, self.reduction, work.after)
            segment = work.part(ACCUMULATE, count.symbol, finish, first=(first, count))
            if self.owner == "first":
                walk = (For(TILE, Integer(0), mine.symbol, step, segment),)
            else:
                walk = self._backwards(e, at, mine, segment)
        # A workgroup without iterations exits at once; no other workgroup waits for it.
        busy = If(Lt(begin, iterations), (mine, *walk))
        return (SetCoordinate(BEGIN, first_of_share, (busy,)) if BEGIN in graph else busy,)

    @property
    def _located(self) -> tuple[str, ...]:
        """The coordinates set by `Locate` that the number of iterations of a tile depends on."""
        read = {symbol.name for symbol in symbols_of(self.depth)}
        return tuple(dim for dim in self.work.located if dim in read)

    def _backwards(
        self, e: KernelEditor, at: Mapping[str, Expr], mine: Assign, segment: Body
    ) -> Body:
        """The walk of a share's segments from the last to the first."""
        e.coordinates.add(ForLoop(BEHIND, name="Tile", note="iterations behind this segment"))
        graph, behind = e.snapshot(), e.coordinates[BEHIND].symbol
        ranges = graph.ranges(e.parameters.ranges())
        left = mine.symbol - behind
        # In every segment the last iteration is at least 0, and the first lies before the end of
        # the share. So `maximum` and `minimum` change no value here: they make the bounds provable.
        last = maximum(left - 1, Integer(0))
        (k_last,) = graph.reverse({**at, TILE: last}, [self.work.loop.dim], ranges)
        # A segment ends where the segment after it begins; it begins where its tile begins.
        count = minimum(k_last + 1, left)
        tile = minimum(left - count, mine.symbol - 1)
        body = (SetCoordinate(TILE, tile, segment),)
        return (For(BEHIND, Integer(0), mine.symbol, count, body),)
