"""Reduce-scatter: every workgroup with a piece of an output tile finishes a share of that tile.

A *piece* is the partial sum of a tile over some iterations, computed by one workgroup; the *peers*
are all workgroups with a piece of the same tile. All peers write their pieces to the workspace.
When all are written, each of the p peers takes some shares of the tile, adds up all p pieces of
these shares, runs the epilogue on them and stores them. Each element of a piece is written and read
once, whatever p is, and p workgroups add at the same time (compare MPI_Reduce_scatter). Unlike in a
fix-up where one workgroup owns the tile, a workgroup waits for workgroups of higher and of lower
number.

A tile is divided into a fixed number of shares, which are ranges of rows. Peer number t finishes
the shares t, t + p, and so on, so p may be any number; peers whose number is at least the number of
shares finish none. Pieces are added in the order of k, so every run gives the same bits; a peer
also reads its own piece from memory.

Writing a piece waits for nothing, and a workgroup writes all its pieces before it waits for a piece
of another workgroup. So no deadlock is possible as long as all workgroups are resident.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Expr, Integer

from coordgraph.control.operations import (
    AddPartial,
    Assign,
    AwaitPartial,
    Body,
    For,
    InitAccumulator,
    Operation,
    SendPartial,
    SetCoordinate,
)
from coordgraph.coordinates.dimensions import ForLoop, Linear, MacroTileIndex, Workgroup
from coordgraph.coordinates.edges import PassThrough, Tile
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.integers import index_symbol, minimum
from coordgraph.kernel import KernelEditor, KernelGraph
from passes.kit.fixup import SLOT, add_workspace
from passes.kit.tile_work import repeats_main_loop

__all__ = ["PEER", "SHARE", "Scatter", "cut_otherwise", "finishes_shares"]

PEER, END, SHARE = "partial.peer", "partial.end", "fixup.share"
"""Ids of dimensions.

PEER: numbers the workgroups that have partial sums of the tile. END: numbers (0 or 1) the two
workspace slots of a workgroup. SHARE: numbers the shares of a tile (ranges of rows), each of which
one workgroup finishes.
"""
MOST_SHARES = 32
"""Largest number of shares (ranges of rows) into which an output tile is divided. One workgroup
executes the epilogue of a share. If more workgroups have partial sums of the tile, some of them
have no share."""


@dataclass(frozen=True)
class Scatter:
    """The reduce-scatter of one output tile whose partial sums (pieces) several workgroups have.

    Args:
        low, high: the workgroups with the first and with the last piece of the tile; the workgroups
            between them have the other pieces.
        ends: whether a workgroup may have pieces of two tiles, one at each end of its share of the
            iterations; see `tie`.
    """

    low: Expr
    high: Expr
    ends: bool

    @staticmethod
    def tie(e: KernelEditor, workgroups: Expr, below: str, accumulator: str, *, ends: bool) -> None:
        """Add the workspace, tie its slots to the workgroups, and divide tiles into shares.

        The edges::

            slot --Tile--> peer, end; peer --PassThrough--> below
            D.index.0 --Tile--> share, row

        A share is a range of a tile's rows, which one workgroup finishes. A workgroup's iterations
        are contiguous, so they may begin inside one tile and end inside another: each workgroup has
        two slots for partial sums. `end` is 1 for the first partial sum of a tile in the order of
        k, which is at the end of its workgroup's iterations, and otherwise 0. The lowering to a
        target may divide tiles into another number of shares (`cut_otherwise`).

        Args:
            e: the kernel being built.
            workgroups: the number of workgroups that may have partial sums of tiles.
            below: the dimension that numbers the workgroups that may have partial sums.
            accumulator: the element type of the sums.
            ends: whether each workgroup has two slots; if False, each has one slot, and the first
                edge is `slot --PassThrough--> peer`.
        """
        c = e.coordinates
        add_workspace(e, 2 * workgroups if ends else workgroups, accumulator, "scatter")
        c.add(Linear(PEER, workgroups, note="workgroup with a piece of the tile"))
        c.connect(PassThrough(PEER, below))
        if ends:
            c.add(Linear(END, Integer(2), note="1 for the first piece of a tile"))
            c.connect(Tile(SLOT, (PEER, END)))
        else:
            c.connect(PassThrough(SLOT, PEER))
        rows = c["D.index.0"].fixed_size
        height = -(-rows // MOST_SHARES)
        shares = Integer(-(-rows // height))
        c.add(ForLoop(SHARE, shares, name="Share", note="part of a tile that one peer finishes"))
        for tensor, axes in e.graph.gemm.axes.items():
            # The rows of D, and of epilogue operands that vary along m, are divided into shares.
            if tensor not in ("A", "B") and "m" in axes:
                row = f"{tensor}.share.row"
                c.add(MacroTileIndex(row, Integer(height), tensor=tensor, axis=0))
                c.connect(Tile(f"{tensor}.index.0", (SHARE, row)))

    @property
    def _named(self) -> tuple[Assign, Assign]:
        """Operations that assign values to the symbols `low` and `peers`.

        `low` is the first workgroup with partial sums of the tile, `peers` the number of such
        workgroups.
        """
        low = Assign("low", self.low)
        return low, Assign("peers", self.high - low.symbol + 1)

    def _piece(self, peer: Expr, op: Operation) -> Operation:
        """`op`, executed at the workspace slot with the partial sums of the workgroup `peer`."""
        if not self.ends:
            return op
        low, _ = self._named
        return SetCoordinate(END, 1 - minimum(Integer(1), peer - low.symbol), (op,))

    def _each(self, op: Operation) -> For:
        """A loop that applies `op` to every workgroup's partial sums of the tile, in k order."""
        low, peers = self._named
        body = (self._piece(index_symbol(PEER), op),)
        return For(PEER, low.symbol, low.symbol + peers.symbol, body=body)

    def send(self) -> Body:
        """Return operations that write a workgroup's partial sums of a tile to the workspace."""
        low, peers = self._named
        send = SendPartial(SLOT, readers=peers.symbol)
        return (low, peers, self._piece(Workgroup("workgroup").symbol, send))

    def finish(self, e: KernelEditor, after: Body) -> Body:
        """Return operations that wait for all partial sums and finish shares (rows) of a tile.

        Args:
            e: the kernel being built.
            after: the operations of the epilogue, which run on one share (range of rows) at a time.
        """
        low, peers = self._named
        own, shares = Workgroup("workgroup").symbol - low.symbol, e.coordinates[SHARE].size
        assert shares is not None
        share = (InitAccumulator(), self._each(AddPartial(SLOT)), *after)
        return (
            low,
            peers,
            self._each(AwaitPartial(SLOT)),
            For(SHARE, own, shares, peers.symbol, share),
        )


def finishes_shares(graph: KernelGraph) -> bool:
    """Whether each workgroup computes a partial sum of one output tile, and then finishes shares.

    The partial sum is over a part of k. A share is a part of the tile: one workgroup finishes it,
    which means that it adds up the share's partial sums of all workgroups of the tile, and stores
    the result. A workgroup stores the whole tile only if the tile has no other workgroup.
    """
    return SHARE in graph.coordinates and not repeats_main_loop(graph)


def cut_otherwise(c: CoordinateEditor, shares: int) -> None:
    """Remove the edges that divide a tile into shares, and set the number of shares to `shares`.

    A share is a part of a tile that one workgroup finishes. The lowering that calls this function
    adds other edges instead. The upper bound of the loop over `SHARE` that `Scatter.finish` added
    is still the old number of shares, so the lowering must replace that bound as well.
    """
    before = c.finish()
    for edge in before.edges_above(SHARE):
        c.disconnect(edge)
    c.replace(replace(c[SHARE], size=Integer(shares)))
