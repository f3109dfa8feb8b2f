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
from coordgraph.coordinates.edges import Join, PassThrough, Split, Tile
from coordgraph.integers import ceil_div, floor_div, maximum, minimum
from coordgraph.kernel import KernelEditor
from coordgraph.parameters import LARGEST_INDEX
from passes.fixup import SLOT, TURN, Pieces, add_workspace
from passes.scatter import Scatter
from passes.tiles import TileWork

__all__ = ["Stream", "add_loops"]

TILE, ACCUMULATE = "for_tile", "for_k"


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
    reduction: str = "peers"

    def tie(self, e: KernelEditor, accumulator: str) -> Expr:
        """Tile the space over workgroups and split the share; returns the share."""
        iterations = self.space.size
        assert iterations is not None
        share = e.parameter(
            "share",
            maximum(Integer(self.least), ceil_div(iterations, self.workgroups)),
            note="streamed iterations per workgroup",
        )
        # Half, so that the end of a share fits 32 bits also when it is rounded up to a whole tile.
        e.assume(share * self.workgroups, LARGEST_INDEX // 2)
        c = e.coordinates
        c.add(Workgroup("sk.workgroup", self.workgroups))
        c.add(Linear("sk.local", share, note="a workgroup's streamed iterations"))
        c.connect(Tile(self.space.id, ("sk.workgroup", "sk.local")))
        c.connect(PassThrough("sk.workgroup", "workgroup"))
        c.connect(Split("sk.local", (TILE, ACCUMULATE), (Integer(1), Integer(1))))
        if self.reduction == "scatter":
            Scatter.tie(e, self.workgroups, "sk.workgroup", accumulator, ends=True)
            return share
        add_workspace(e, self.workgroups, accumulator)
        if self.reduction == "turnstile":
            # The slot is that of the tile's first workgroup; turns count from there.
            c.add(Linear(TURN, note="pieces of the tile before this one"))
            c.connect(Join((SLOT, TURN), "sk.workgroup", (Integer(1), Integer(1))))
        else:
            c.connect(PassThrough(SLOT, "sk.workgroup"))
        return share

    def control(self, e: KernelEditor, work: TileWork, share: Expr) -> Body:
        """The walk of a share: segments, their accumulation, fix-up."""
        graph, iterations = e.snapshot(), self.space.size
        assert iterations is not None
        workgroup, tile = graph.symbol("workgroup"), graph.symbol(TILE)
        at = {**self.fixed, "workgroup": workgroup, TILE: tile, ACCUMULATE: Integer(0)}
        ranges = graph.ranges(e.parameters.ranges())
        *numbers, k_first = graph.reverse(at, [*(d.id for d in self.numbers), self.loop], ranges)
        here = {d.id: value for d, value in zip(self.numbers, numbers, strict=True)}

        def holder(k: Expr) -> Expr:
            """The workgroup whose share holds iteration `k` of this output tile."""
            return graph.forward({**here, self.loop: k}, ["sk.workgroup"], ranges)[0]

        mine = Assign("iterations", minimum(share, iterations - share * workgroup))
        first = Assign("k_first", k_first)
        count = Assign("k_count", minimum(self.depth - first.symbol, mine.symbol - tile))
        low, high = holder(Integer(0)), holder(self.depth - 1)
        if self.reduction == "scatter":
            # All that others wait for is sent before this workgroup waits for the first of them.
            scatter, cut = Scatter(low, high, ends=True), Lt(count.symbol, self.depth)
            end = (If(cut, scatter.send(), work.after),)
            finish = (If(cut, work.at(ACCUMULATE, scatter.finish(e, work.after))),)
            step = minimum(self.depth - k_first, mine.symbol - tile)
            walks = tuple(
                For(TILE, Integer(0), mine.symbol, step, (first, count, *body))
                for body in (work.part(ACCUMULATE, count.symbol, end), finish)
            )
            return (If(Lt(share * workgroup, iterations), (mine, *walks)),)
        pieces = Pieces(low, high, first.symbol, count.symbol, self.depth, slot=low)
        finish = pieces.finish(e, self.owner, self.reduction, work.after)
        segment = (
            first,
            count,
            *work.part(ACCUMULATE, count.symbol, finish),
        )
        if self.owner == "first":
            step = minimum(self.depth - k_first, mine.symbol - tile)
            walk: Body = (For(TILE, Integer(0), mine.symbol, step, segment),)
        else:
            walk = self._backwards(e, share * workgroup, mine, segment)
        # A workgroup without iterations leaves at once; nobody waits for it.
        return (If(Lt(share * workgroup, iterations), (mine, *walk)),)

    def _backwards(self, e: KernelEditor, begin: Expr, mine: Assign, segment: Body) -> Body:
        """Segments from the last to the first."""
        e.coordinates.add(ForLoop("visit", name="Visit", note="segments, from the last"))
        visit = e.coordinates["visit"].symbol
        tiles_end = Assign("tiles_end", ceil_div(begin + mine.symbol, self.depth))
        start = maximum(begin, (tiles_end.symbol - 1 - visit) * self.depth) - begin
        visits = tiles_end.symbol - floor_div(begin, self.depth)
        # The share is not empty, so the minimum changes nothing; from it proofs see that no segment
        # begins behind its share.
        body = SetCoordinate(TILE, minimum(start, mine.symbol - 1), segment)
        return (tiles_end, For("visit", Integer(0), visits, body=(body,)))
