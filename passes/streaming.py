"""Streaming: a range of the global tile space in equal contiguous shares, one a workgroup.

Shared by every Stream-K schedule. A share is walked by an outer loop over output tiles and an
inner accumulation loop; a *segment* is the part of a share that lies in one output tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sympy import Expr, Integer, Lt

from coordgraph.control.operations import Assign, Body, For, If, SetCoordinate
from coordgraph.coordinates.dimensions import Dimension, ForLoop, Linear, Workgroup
from coordgraph.coordinates.edges import Edge, Join, PassThrough, Share, Split, Tile
from coordgraph.integers import ceil_div, floor_div, maximum, minimum
from coordgraph.kernel import KernelEditor
from coordgraph.parameters import LARGEST_INDEX
from passes.fixup import SLOT, TURN, Pieces, add_workspace
from passes.scatter import Scatter
from passes.tiles import TileWork

__all__ = ["Stream", "add_loops"]

TILE, ACCUMULATE = "for_tile", "for_k"
BEGIN = "sk.begin"


def add_loops(e: KernelEditor) -> None:
    """The loop coordinates of a streamed walk: `ForTile` and `ForK` count iterations."""
    e.coordinates.add(ForLoop(TILE, name="Tile", note="iterations before this segment"))
    e.coordinates.add(ForLoop(ACCUMULATE, name="K", note="iterations in this segment"))


@dataclass(frozen=True)
class Stream:
    """A streamed range being built: coordinates first, then control.

    Args:
        space: the dimension to stream, K fastest.
        numbers: the tile numbers above it, and `depth`, the iterations of one output tile.
        workgroups: how many share it.
        owner: which segment of a shared tile runs the epilogue: `first` waits for workgroups of
            higher number, `last` for lower ones, and walks its last tile first so that what
            others wait for is done early. With `scatter` nobody owns a tile: then it means nothing.
        fixed: coordinates that are set around this walk (a `Sunder`'s selector).
        least: iterations in a share, at least. Where the range is short, workgroups that would
            spend more on bringing partials together than on their iterations leave at once.
        least_segment: iterations in a segment, at least, unless the tile has fewer. A share whose
            border would leave less to one side of it in a tile ends, or begins, with the tile
            instead; a tile of fewer than twice as many is not shared. So no fix-up is spent on a
            few iterations.
        reduction: how pieces of a shared tile come together: the owner adds its `peers` one after
            another, pieces are added by a `tree`, or they go through a `turnstile`, one by one
            into one accumulator, or every peer finishes a share (`scatter`); see `passes.fixup`. A
            tree pays where a tile has more than about seven peers.
    """

    space: Linear
    numbers: tuple[Dimension, ...]
    loop: str
    depth: Expr
    workgroups: Expr
    owner: str
    fixed: Mapping[str, Expr]
    least: int = 1
    least_segment: int = 1
    reduction: str = "peers"

    def tie(self, e: KernelEditor, accumulator: str) -> None:
        """Part the space among workgroups and split their shares."""
        iterations = self.space.size
        assert iterations is not None
        share = e.parameter(
            "share",
            maximum(self._least_share(), ceil_div(iterations, self.workgroups)),
            note="streamed iterations per workgroup",
        )
        # Half, so that the end of a share fits 32 bits also when it is rounded up to a whole tile.
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
        add_workspace(e, self.workgroups, accumulator)
        if self.reduction == "turnstile":
            # The slot is that of the tile's first workgroup; turns count from there.
            c.add(Linear(TURN, note="pieces of the tile before this one"))
            c.connect(Join((SLOT, TURN), "sk.workgroup", (Integer(1), Integer(1))))
        else:
            c.connect(PassThrough(SLOT, "sk.workgroup"))

    def _least_share(self) -> Expr:
        """Borders nearer to each other could leave a short segment in the middle of a tile."""
        if self.least_segment <= self.least:
            return Integer(self.least)
        return maximum(Integer(self.least), minimum(Integer(self.least_segment), self.depth))

    def _slivers(self, e: KernelEditor) -> tuple[Expr, Expr]:
        """How far before and behind the end of a tile a border moves to it.

        All of a tile is one or the other where it is too short for two segments.
        """
        sliver = Integer(self.least_segment - 1)
        before = minimum(sliver, floor_div(self.depth - 1, Integer(2)))
        behind = minimum(sliver, floor_div(self.depth, Integer(2)))
        return (
            e.parameter("before", before, minimum=0, note="so near in front of a tile, or"),
            e.parameter("behind", behind, minimum=0, note="so far into it, a share's border moves"),
        )

    def control(self, e: KernelEditor, work: TileWork) -> Body:
        """The walk of a share: segments, their accumulation, fix-up."""
        graph, iterations = e.snapshot(), self.space.size
        assert iterations is not None
        workgroup, tile = graph.symbol("workgroup"), graph.symbol(TILE)
        at = {**self.fixed, "workgroup": workgroup, TILE: tile, ACCUMULATE: Integer(0)}
        ranges = graph.ranges(e.parameters.ranges())
        start = {"sk.workgroup": workgroup, "sk.local": Integer(0)}
        (first_of_share,) = graph.reverse(start, [self.space.id], ranges)
        begin = first_of_share
        if BEGIN in graph:  # worked out once
            begin = at[BEGIN] = graph.symbol(BEGIN)
        *numbers, k_first = graph.reverse(at, [*(d.id for d in self.numbers), self.loop], ranges)
        here = {d.id: value for d, value in zip(self.numbers, numbers, strict=True)}

        def holder(k: Expr) -> Expr:
            """The workgroup whose share holds iteration `k` of this output tile."""
            return graph.forward({**here, self.loop: k}, ["sk.workgroup"], ranges)[0]

        length = graph.derivative(self.space.id, "sk.workgroup", start, ranges)
        length += first_of_share - begin
        mine = Assign("iterations", minimum(length, iterations - begin))
        first = Assign("k_first", k_first)
        count = Assign("k_count", minimum(self.depth - first.symbol, mine.symbol - tile))
        low, high = holder(Integer(0)), holder(self.depth - 1)
        if self.reduction == "scatter":
            # All that others wait for is sent before this workgroup waits for the first of them.
            scatter, cut = Scatter(low, high, ends=True), Lt(count.symbol, self.depth)
            end = (If(cut, scatter.send(), work.after),)
            finish = (If(cut, work.at(ACCUMULATE, scatter.finish(e, work.after))),)
            step = minimum(self.depth - k_first, mine.symbol - tile)
            walk: Body = tuple(
                For(TILE, Integer(0), mine.symbol, step, (first, count, *body))
                for body in (work.part(ACCUMULATE, count.symbol, end), finish)
            )
        else:
            pieces = Pieces(low, high, first.symbol, count.symbol, self.depth, slot=low)
            finish = pieces.finish(e, self.owner, self.reduction, work.after)
            segment = (first, count, *work.part(ACCUMULATE, count.symbol, finish))
            if self.owner == "first":
                step = minimum(self.depth - k_first, mine.symbol - tile)
                walk = (For(TILE, Integer(0), mine.symbol, step, segment),)
            else:
                walk = self._backwards(e, begin, mine, segment)
        # A workgroup without iterations leaves at once; nobody waits for it.
        busy = If(Lt(begin, iterations), (mine, *walk))
        return (SetCoordinate(BEGIN, first_of_share, (busy,)) if BEGIN in graph else busy,)

    def _backwards(self, e: KernelEditor, begin: Expr, mine: Assign, segment: Body) -> Body:
        """Segments from the last to the first."""
        e.coordinates.add(ForLoop("visit", name="Visit", note="segments, from the last"))
        visit = e.coordinates["visit"].symbol
        tiles_end = Assign("tiles_end", ceil_div(begin + mine.symbol, self.depth))
        start = maximum(begin, (tiles_end.symbol - 1 - visit) * self.depth) - begin
        visits = tiles_end.symbol - floor_div(begin, self.depth)
        # Where there is a segment the share is not empty, so the minimum changes nothing; from it
        # proofs see that no segment begins behind its share.
        body = SetCoordinate(TILE, minimum(start, mine.symbol - 1), segment)
        return (tiles_end, For("visit", Integer(0), visits, body=(body,)))
