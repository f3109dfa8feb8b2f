"""Fix-up: how the pieces of an output tile that several workgroups computed come together.

Who adds a slot lowers its flag, so the flags are zero again when the kernel ends. The order of the
additions is fixed, which makes every run give the same bits; only `atomic` has none.

- `peers`: a slot for each workgroup; the owner adds all others, one after another.
- `tree`: pieces are added in pairs, pairs of pairs and so on, many at the same time. With J peers,
  one after another come a send and J receives, or ceil(log2(J + 1)) sends and as many receives.
- `turnstile`: a slot for each shared tile. The piece farthest from the owner's sends to it; every
  other one, nearer and nearer, receives, and sends the sum on. The flag says whose turn it is. With
  J peers J sends and J receives come one after another, but no workgroup adds more than one piece,
  and only one tile of sums is read and written: it stays in the cache.
- `atomic`: a slot for each shared tile. Every piece but the owner's is added to it as it comes, in
  no order; when all have been, the owner adds what is there and leaves zeros. With J peers all send
  at the same time, and the owner receives one slot, however many they are. Only this one has other
  bits in every run, so it is never a default and never a candidate for a plan.
- `scatter`: nobody owns a tile; every workgroup with a piece of it sends that, and finishes a share
  of the tile: see `passes.scatter`. All must be resident at the same time. With J peers all send at
  the same time, and then each adds 1/(J + 1) of all pieces.

With an owner, a workgroup's share is contiguous, so at most one of its segments is a piece of a
tile that another workgroup owns: with a slot for each workgroup, each is sent once.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Gt, Integer, Lt

from coordgraph.control.operations import (
    AccumulatePartial,
    Assign,
    Body,
    CollectPartial,
    For,
    If,
    ReceivePartial,
    SendPartial,
    SetCoordinate,
)
from coordgraph.coordinates.dimensions import ForLoop, Linear, User, Workgroup
from coordgraph.coordinates.edges import PassThrough, Tile
from coordgraph.integers import bit_xor, floor_div, minimum
from coordgraph.kernel import KernelEditor
from coordgraph.tensors import Role, Tensor
from passes.tiles import MOST_WORKGROUPS

__all__ = [
    "A_SLOT_A_TILE",
    "OWNERS",
    "REDUCTIONS",
    "SLOT",
    "TURN",
    "Pieces",
    "add_workspace",
    "unknown_option",
]

OWNERS = ("first", "last")
REDUCTIONS = ("peers", "tree", "turnstile", "scatter", "atomic")
A_SLOT_A_TILE = ("turnstile", "atomic")
"""Reductions for which a shared tile has one slot; `TURN` says which of its pieces is meant."""
SLOT, TURN = "partial.slot", "partial.turn"
LEVEL = "fixup.level"


def unknown_option(owner: str, reduction: str) -> str | None:
    """Why there is no such fix-up, or None."""
    if owner not in OWNERS:
        return f"owner={owner} is unknown; there are {', '.join(OWNERS)}"
    if reduction not in REDUCTIONS:
        return f"reduction={reduction} is unknown; there are {', '.join(REDUCTIONS)}"
    return None


def add_workspace(e: KernelEditor, slots: Expr, accumulator: str, reduction: str) -> None:
    """Add partials, which are zero where they are added to, and flags.

    partials --Tile--> slot, row, column; row and column are the output tile's; flags are one a
    slot. What ties slots to those who send is the schedule's.
    """
    c = e.coordinates
    rows, columns = c["D.index.0"].size, c["D.index.1"].size
    assert rows is not None
    assert columns is not None
    role = Role.SUMS if reduction == "atomic" else Role.PARTIALS
    e.tensors += (
        Tensor("partials", accumulator, (slots, rows, columns), role),
        Tensor("flags", "i32", (slots,), Role.FLAGS),
    )
    c.add(User("partials", slots * rows * columns, tensor="partials"))
    c.add(User("flags", slots, tensor="flags"))
    c.add(Linear(SLOT, slots, note="slot of a partial tile"))
    c.connect(Tile("partials", (SLOT, "D.index.0", "D.index.1")))
    c.connect(PassThrough("flags", SLOT))


@dataclass(frozen=True)
class Pieces:
    """The pieces of the output tile at hand, in the order of k, a workgroup each.

    Args:
        low, high: the workgroups with the first and the last piece; those between have the others.
        first, count: iterations of this workgroup's piece.
        depth: iterations of the whole tile.
        slot: the tile's own, where a shared tile has one.
    """

    low: Expr
    high: Expr
    first: Expr
    count: Expr
    depth: Expr
    slot: Expr

    def finish(self, e: KernelEditor, owner: str, reduction: str, after: Body) -> Body:
        """Receive what others have for this piece; then send it, or run `after`, if it is owned.

        Args:
            e: the kernel being built; the coordinates of loops are added.
            owner: `first` or `last` piece of a tile.
            reduction: one of `REDUCTIONS` that has owners.
            after: the epilogue.
        """
        workgroup = Workgroup("workgroup").symbol
        not_first, not_last = Gt(self.first, 0), Lt(self.first + self.count, self.depth)
        if owner == "first":
            away, others, shared, start, stop = 1, not_first, not_last, workgroup + 1, self.high + 1
        else:
            away, others, shared, start, stop = -1, not_last, not_first, self.low, workgroup
        if reduction == "peers":
            peers = For(SLOT, start, stop, body=(ReceivePartial(SLOT),))
            return (If(others, (SendPartial(SLOT),), (If(shared, (peers,)), *after)),)
        if reduction == "tree":
            owner_of, farthest = (self.low, self.high)[::away]
            tree = receive_tree(e, owner_of, farthest, away)
            partial = If(Lt(self.count, self.depth), tree)
            return (partial, If(others, (SendPartial(SLOT),), after))
        slot, turn = Assign("slot", self.slot), Assign("turn", workgroup - self.low)
        if reduction == "atomic":
            lowest, count = turn.symbol + 1, self.high - workgroup
            if owner == "last":
                lowest, count = Integer(0), turn.symbol
            of = Assign("turn_first", lowest)
            collect = CollectPartial(SLOT, turn=TURN, senders=count)
            all_others = For(SLOT, slot.symbol, slot.symbol + 1, body=(collect,))
            receive = If(shared, (of, SetCoordinate(TURN, of.symbol, (all_others,))))
            add_to = SetCoordinate(SLOT, slot.symbol, (AccumulatePartial(SLOT, turn=TURN),))
            send = SetCoordinate(TURN, turn.symbol, (add_to,))
            return (slot, turn, If(others, (send,), (receive, *after)))
        before = Assign("turn_before", turn.symbol + away)
        # A range of one slot, as of several that are waited for.
        add = For(SLOT, slot.symbol, slot.symbol + 1, body=(ReceivePartial(SLOT, turn=TURN),))
        pass_on = SetCoordinate(SLOT, slot.symbol, (SendPartial(SLOT, turn=TURN),))
        return (
            slot,
            turn,
            If(shared, (before, SetCoordinate(TURN, before.symbol, (add,)))),
            If(others, (SetCoordinate(TURN, turn.symbol, (pass_on,)),), after),
        )


def receive_tree(e: KernelEditor, owner: Expr, farthest: Expr, away: int) -> Body:
    """Receive what a piece of a tile adds up for the tree, before it is sent or stored.

    Pieces are numbered from the owner's, j = 0, to the farthest. At the levels s = 1, 2, 4, … the
    pieces with j mod 2s = 0 receive piece j + s, if there is one; so piece j > 0 receives while s
    is less than the lowest bit of j, then sends: once, as it has one slot.

    Args:
        e: the kernel being built; the loop over levels is added.
        owner, farthest: the workgroups with the first and the last piece.
        away: 1 where workgroups of higher number are farther from the owner, -1 of lower ones.
    """
    e.coordinates.add(ForLoop(LEVEL, name="Level", note="how far the piece to receive is away"))
    workgroup, level = Workgroup("workgroup").symbol, e.coordinates[LEVEL].symbol
    distance = Assign("distance", away * (workgroup - owner))
    farther = Assign("farther", away * (farthest - workgroup))
    # One more bit than any distance has: the owner's own number has no lowest bit.
    marked = distance.symbol + (1 << MOST_WORKGROUPS.bit_length())
    lowest_bit = floor_div(bit_xor(marked, marked - 1) + 1, Integer(2))
    stop = minimum(farther.symbol + 1, lowest_bit)
    slot = workgroup + away * level
    # A range of one slot: from its bounds proofs see on which side of the workgroup it lies.
    piece = For(SLOT, slot, slot + 1, body=(ReceivePartial(SLOT),))
    return (distance, farther, For(LEVEL, Integer(1), stop, level, (piece,)))
