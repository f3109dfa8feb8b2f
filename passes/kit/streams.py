"""Streaming: divides main loop iterations into equal contiguous shares, one for each workgroup.

Every Stream-K schedule uses this module (Osama et al., Stream-K, arXiv:2301.03598). A workgroup
processes its share in an outer loop over output tiles and an inner loop over k tiles. A *segment*
is the part of a share that lies in one output tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from sympy import Expr, Integer, Lt

from coordgraph.control.operations import Assign, Body, For, If, SetCoordinate
from coordgraph.coordinates.dimensions import Dimension, ForLoop, Linear, Workgroup
from coordgraph.coordinates.edges import Balance, Edge, Join, PassThrough, Share, Split, Tile
from coordgraph.integers import ceil_div, floor_div, maximum, minimum, symbols_of
from coordgraph.kernel import KernelEditor
from coordgraph.parameters import LARGEST_INDEX
from passes.kit.fixup import A_SLOT_A_TILE, SLOT, TURN, Pieces, add_workspace
from passes.kit.reduce_scatter import Scatter
from passes.kit.tile_work import TileWork

__all__ = ["Stream", "add_loops"]

TILE, ACCUMULATE, BEHIND = "for_tile", "for_k", "for_behind"
"""Ids of the loops over a workgroup's share of iterations.

The index of TILE is the number of iterations in the share before the current segment. The index of
ACCUMULATE is the number of the current iteration in the segment, from 0. If segments run from last
to first, the index of BEHIND is the number of iterations in the share after the segment.
"""
BEGIN = "sk.begin"
"""Id of the dimension whose index is the first iteration of a workgroup's share of iterations. It
exists only if the option `least_segment` (smallest number of iterations in a segment) is more than
1."""


def add_loops(e: KernelEditor) -> None:
    """Add coordinates of the loops over a workgroup's share of iterations: `for_tile`, `for_k`."""
    e.coordinates.add(ForLoop(TILE, name="Tile", note="iterations before this segment"))
    e.coordinates.add(ForLoop(ACCUMULATE, name="K", note="iterations in this segment"))


@dataclass(frozen=True)
class Stream:
    """Divides the iterations of output tiles among workgroups: call `tie`, then `control`.

    Args:
        space: the dimension that counts the iterations of all divided tiles; k varies fastest.
        numbers: the tile numbers (dimensions) that an edge connects to `space`.
        work: the operations on an output tile; tiles may differ in their number of iterations.
        workgroups: number of workgroups, each of which gets one share of the iterations.
        owner: the workgroup that runs the epilogue of a shared tile: the one with the tile's
            `first` or `last` segment. With `first`, it waits for workgroups of higher number. With
            `last`, it waits for workgroups of lower number, and each workgroup runs the segments of
            its share from last to first, so that partial sums are sent early. The reduction
            `scatter`, in which no workgroup owns a tile, ignores this option.
        fixed: indices of coordinates that are set around the operations, such as the selector of a
            `Sunder` edge, which separates a dimension into parts.
        least: smallest number of iterations in a share. If there are few iterations, some
            workgroups get no share and exit at once: a fix-up would take longer than the few
            iterations of such a share.
        least_segment: smallest number of iterations in a segment, unless the tile has fewer. If the
            end of a share would divide a tile so that a segment is shorter, the end moves to the
            nearer boundary of that tile; a tile with less than `2 * least_segment` iterations is
            not shared. This avoids fix-ups of a few iterations.
        reduction: how the partial sums (pieces) of a shared tile are added; see `passes.kit.fixup`.
            `peers`: the owner adds one piece after another. `tree`: pieces are added in pairs,
            which pays off if a tile has more than about seven peers. `turnstile`: pieces are added
            to one slot, one after another. `scatter`: every peer finishes a share of the tile.
            `atomic`: atomic additions to one slot, so last bits differ from run to run.
        balanced: whether the lengths of shares differ by at most one iteration. If False, all
            shares but the last ones have the same length, which is rounded up. With balanced
            shares, `least` and `least_segment` must be 1.
        along: the dimension that counts the iterations of a tile in the order in which `space`
            counts them; '' stands for the dimension of k tiles.
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
    balanced: bool = False
    along: str = ""

    def tie(self, e: KernelEditor, accumulator: str) -> Expr:
        """Add coordinates for workgroups' shares of iterations, loops over them, and workspace.

        Args:
            e: the kernel being built.
            accumulator: the element type of the sums.

        Returns:
            The number of iterations of a share; if shares are balanced, that of the longest share.
        """
        iterations = self.space.size
        assert iterations is not None
        share = e.parameter(
            "share",
            maximum(self._least_share(), ceil_div(iterations, self.workgroups)),
            note="streamed iterations per workgroup",
        )
        # The bound is half of the largest 32-bit integer because the end of a share is also rounded
        # up to a whole tile, which must not overflow.
        e.assume(share * self.workgroups, LARGEST_INDEX // 2)
        c = e.coordinates
        c.add(Workgroup("sk.workgroup", self.workgroups))
        longest = share
        shares: Edge = Tile(self.space.id, ("sk.workgroup", "sk.local"))
        if self.balanced:
            # Every share has at least one iteration, so that every workgroup between the first and
            # the last one of a tile has a segment of it.
            count = e.parameter(
                "shares", minimum(self.workgroups, iterations), note="shares of iterations"
            )
            # The host checks before a launch that this number fits 32 bits; then the products in
            # the formulas of the edge `Balance` fit, too.
            e.assume(count**2)
            c.add(Linear("sk.share", count, note="shares of iterations"))
            c.connect(Tile("sk.share", "sk.workgroup"))
            shares = Balance(self.space.id, ("sk.share", "sk.local"))
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
            return share
        add_workspace(e, self.workgroups, accumulator, self.reduction)
        if self.reduction in A_SLOT_A_TILE:
            # A tile uses the workspace slot of the workgroup that computes its first iterations.
            # The turn of a segment in the slot is the number of earlier segments of the tile. No
            # other tile uses the slot, because only the last tile of a workgroup is continued by
            # the next workgroup.
            c.add(Linear(TURN, note="pieces of the tile before this one"))
            c.connect(Join((SLOT, TURN), "sk.workgroup", (Integer(1), Integer(1))))
        else:
            c.connect(PassThrough(SLOT, "sk.workgroup"))
        return share

    def _least_share(self) -> Expr:
        """Smallest number of iterations in a share, by the options `least` and `least_segment`."""
        if self.least_segment <= self.least:
            return Integer(self.least)
        return maximum(Integer(self.least), minimum(Integer(self.least_segment), self.depth))

    def _slivers(self, e: KernelEditor) -> tuple[Expr, Expr]:
        """Distances, in iterations, within which a share's end moves to the end of a tile.

        A share is the contiguous iterations of one workgroup. The end of a share moves to the end
        of a tile if it is before the tile's end by at most the first distance, or after it by at
        most the second distance. In a tile with fewer iterations than two segments need, every end
        of a share moves to the begin or the end of the tile.
        """
        sliver = Integer(self.least_segment - 1)
        before = minimum(sliver, floor_div(self.depth - 1, Integer(2)))
        behind = minimum(sliver, floor_div(self.depth, Integer(2)))
        return (
            e.parameter(
                "before", before, minimum=0, note="iterations before a tile's end: shares end there"
            ),
            e.parameter(
                "behind", behind, minimum=0, note="iterations after a tile's end: shares end there"
            ),
        )

    @property
    def _loop(self) -> str:
        """The dimension that counts a tile's iterations in the order in which they are executed."""
        return self.along or self.work.loop.dim

    @property
    def depth(self) -> Expr:
        """Number of main loop iterations of the current output tile."""
        return self.work.depth

    def control(self, e: KernelEditor) -> Body:
        """The operations of a workgroup: main loop and fix-up of each segment of its share."""
        graph, iterations = e.snapshot(), self.space.size
        assert iterations is not None
        work, loop = self.work, self._loop
        workgroup, tile = graph.symbol("workgroup"), graph.symbol(TILE)
        at = {**self.fixed, "workgroup": workgroup, TILE: tile, ACCUMULATE: Integer(0)}
        ranges = graph.ranges(e.parameters.ranges())
        start = {"sk.workgroup": workgroup, "sk.local": Integer(0)}
        (first_of_share,) = graph.reverse(start, [self.space.id], ranges)
        begin = first_of_share
        # If the option `least_segment` moves the ends of shares, a share may begin at the end of a
        # tile instead of at a multiple of the share's length, so the coordinate BEGIN holds the
        # share's first iteration.
        if BEGIN in graph:
            begin = at[BEGIN] = graph.symbol(BEGIN)
        # A `Locate` operation around the operations on a tile sets the coordinates `_located` from
        # tables; expressions in the operations read the coordinates by name.
        located = dict(zip(self._located, graph.reverse(at, self._located, ranges), strict=True))
        names = {dim: graph.symbol(dim) for dim in located}
        inside = ranges
        for dim, value in located.items():
            inside = inside.with_found(names[dim], value)
        wanted = [*(d.id for d in self.numbers), loop]
        *numbers, k_first = graph.reverse(at | names, wanted, inside)
        here = {d.id: value for d, value in zip(self.numbers, numbers, strict=True)}

        def holder(k: Expr) -> Expr:
            """The workgroup that computes iteration `k` of the current output tile."""
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
            # Make two loops over a workgroup's share: the first computes its segments and sends
            # their partial sums, the second receives those of other workgroups and finishes tiles.
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
        # A workgroup without iterations exits at once; no other workgroup waits for its sums.
        busy = If(Lt(begin, iterations), (mine, *walk))
        return (SetCoordinate(BEGIN, first_of_share, (busy,)) if BEGIN in graph else busy,)

    @property
    def _located(self) -> tuple[str, ...]:
        """Ids of `Locate` coordinates on which a tile's number of iterations depends."""
        read = {symbol.name for symbol in symbols_of(self.depth)}
        return tuple(dim for dim in self.work.located if dim in read)

    def _backwards(
        self, e: KernelEditor, at: Mapping[str, Expr], mine: Assign, segment: Body
    ) -> Body:
        """A loop over the segments of a workgroup's share of iterations, from last to first.

        Args:
            e: the kernel being built; the loop `for_behind` is added.
            at: indices of coordinates that are set around the loop.
            mine: the assignment of the number of iterations in the share.
            segment: the operations of one segment.
        """
        e.coordinates.add(ForLoop(BEHIND, name="Tile", note="iterations behind this segment"))
        graph, behind = e.snapshot(), e.coordinates[BEHIND].symbol
        ranges = graph.ranges(e.parameters.ranges())
        left = mine.symbol - behind
        # In every segment the last iteration is at least 0, and the first lies before the end
        # of the share. So `maximum` and `minimum` change no value; they make bounds provable.
        last = maximum(left - 1, Integer(0))
        (k_last,) = graph.reverse({**at, TILE: last}, [self._loop], ranges)
        # Segments run from last to first. The last remaining iteration of the share is iteration
        # `k_last` of its tile, so the segment has k_last + 1 iterations; if the share begins inside
        # the tile, the segment has the `left` iterations that remain.
        count = minimum(k_last + 1, left)
        tile = minimum(left - count, mine.symbol - 1)
        body = (SetCoordinate(TILE, tile, segment),)
        return (For(BEHIND, Integer(0), mine.symbol, count, body),)
