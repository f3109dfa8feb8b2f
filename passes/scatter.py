"""Reduce-scatter: every workgroup with a piece of an output tile finishes a share of that tile.

All peers leave their pieces in the workspace. When all are there, each of the p peers adds up all
p pieces of its shares of the tile, runs the epilogue for them and stores them: one hop, whatever
p is, and p workgroups that add at the same time (MPI calls this MPI_Reduce_scatter). Others than
in the fix-ups with an owner, everybody waits for higher numbers and for lower ones.

A tile is cut into a fixed number of shares, and peer number t finishes the shares t, t + p, and so
on: any p will do, and peers beyond the number of shares finish none. Pieces are added in the order
of k, so that every run gives the same bits; also the own piece comes back from memory.

What is sent waits for nothing, and a workgroup sends all of its pieces before it waits for the
first: so nobody waits for ever, as long as all workgroups are resident.
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
from coordgraph.kernel import KernelEditor
from passes.fixup import SLOT, add_workspace

__all__ = ["PEER", "SHARE", "Scatter", "cut_otherwise"]

PEER, END, SHARE = "partial.peer", "partial.end", "fixup.share"
MOST_SHARES = 32
"""Of a tile. With more peers than that some finish nothing."""


@dataclass(frozen=True)
class Scatter:
    """The pieces of the output tile at hand, and what their workgroups do with them.

    Args:
        low, high: the workgroups with the first and the last piece; those between have the others.
        ends: a workgroup's share of the iterations may be cut at both of its ends; see `tie`.
    """

    low: Expr
    high: Expr
    ends: bool

    @staticmethod
    def tie(e: KernelEditor, workgroups: Expr, below: str, accumulator: str, *, ends: bool) -> None:
        """Add the workspace, tie its slots to those who send, cut tiles into shares.

        The edges::

            slot --Tile--> peer, end; peer --PassThrough--> workgroup
            D.index.0 --Tile--> share, row

        A contiguous share may have a piece of one tile where it begins and one of another where it
        ends, so it has two slots: `end` is 1 for the first piece of a tile, with which its
        workgroup's share ends, else 0. Lowering may cut tiles otherwise (`cut_otherwise`).

        Args:
            e: the kernel being built.
            workgroups: how many may have pieces.
            below: the coordinate that says which of them this one is.
            accumulator: the type of the sums.
            ends: two slots for each; else one, and `slot --PassThrough--> peer`.
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
        for tensor in ("C", "D"):
            row = f"{tensor}.share.row"
            c.add(MacroTileIndex(row, Integer(height), tensor=tensor, axis=0))
            c.connect(Tile(f"{tensor}.index.0", (SHARE, row)))

    @property
    def _named(self) -> tuple[Assign, Assign]:
        low = Assign("low", self.low)
        return low, Assign("peers", self.high - low.symbol + 1)

    def _piece(self, peer: Expr, op: Operation) -> Operation:
        """`op` on the piece of a peer."""
        if not self.ends:
            return op
        low, _ = self._named
        return SetCoordinate(END, 1 - minimum(Integer(1), peer - low.symbol), (op,))

    def _each(self, op: Operation) -> For:
        """`op` on the pieces of all peers, in the order of k."""
        low, peers = self._named
        body = (self._piece(index_symbol(PEER), op),)
        return For(PEER, low.symbol, low.symbol + peers.symbol, body=body)

    def send(self) -> Body:
        """Leave this workgroup's piece for all peers."""
        low, peers = self._named
        send = SendPartial(SLOT, readers=peers.symbol)
        return (low, peers, self._piece(Workgroup("workgroup").symbol, send))

    def finish(self, e: KernelEditor, after: Body) -> Body:
        """Wait until all pieces are there, then finish this workgroup's shares of the tile.

        Args:
            e: the kernel being built.
            after: the epilogue, which in here covers one share.
        """
        low, peers = self._named
        turn, shares = Workgroup("workgroup").symbol - low.symbol, e.coordinates[SHARE].size
        assert shares is not None
        share = (InitAccumulator(), self._each(AddPartial(SLOT)), *after)
        return (
            low,
            peers,
            self._each(AwaitPartial(SLOT)),
            For(SHARE, turn, shares, peers.symbol, share),
        )


def cut_otherwise(c: CoordinateEditor, shares: int) -> None:
    """Take away how a tile is cut into shares, so that lowering can tie so many of them itself.

    `Scatter.finish` asks for the shares below the size that the schedule knew: lowering must put
    the new one into the loop over `SHARE`.
    """
    before = c.finish()
    for edge in before.edges_above(SHARE):
        c.disconnect(edge)
    c.replace(replace(c[SHARE], size=Integer(shares)))
