"""Fix-up: how the pieces of an output tile that several workgroups computed come together.

A *piece* is the sum of some of a tile's iterations, by one workgroup; its *peers* are the other
workgroups with a piece of the same tile. A *slot* of the workspace holds the sums of one piece and
a flag. The workgroup that adds up a slot resets its flag, so that all flags are 0 again when the
kernel ends. The order of additions is fixed, so that every run gives the same bits; only `atomic`
has no order.

- `peers`: a slot for each workgroup. The owner of the tile adds the pieces of all its peers, one
  after another.
- `tree`: pieces are added in pairs, pairs of pairs and so on, many at the same time. With J peers
  the longest chain is ceil(log2(J + 1)) sends and as many receives; for `peers` it is one send and
  J receives.
- `turnstile`: a slot for each shared tile, which its pieces use in turn. The piece farthest from
  the owner's sends to it; each of the others, nearer and nearer, receives the sum and sends it
  on. The flag says which piece sent last. With J peers J sends and J receives follow one another,
  but no workgroup adds more than one piece, and one tile of sums is read and written: it stays
  in the L2 cache.
- `atomic`: a slot for each shared tile. Every piece but the owner's is added to it by atomic
  additions, in no order; then the owner adds the slot and writes zeros there. All J peers send at
  the same time, and the owner receives one slot, whatever J is. Results differ in their last bits
  from run to run, so `atomic` is never a default and never chosen unasked.
- `scatter`: no workgroup owns a tile. Every workgroup with a piece sends it and finishes a share of
  the tile: see `passes.kit.reduce_scatter`. All workgroups must be resident at the same time. All J
  peers send at the same time, and then each adds 1/(J + 1) of all pieces.

With an owner, a workgroup's share of the iterations is contiguous, so at most one of its segments
is a piece of a tile that another workgroup owns: with a slot for each workgroup, each is sent once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

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
from passes.kit.workgroups import MOST_WORKGROUPS

__all__ = [
    "A_SLOT_A_TILE",
    "OWNERS",
    "REDUCTIONS",
    "SLOT",
    "TURN",
    "Owner",
    "Pieces",
    "Reduction",
    "add_workspace",
]

Owner = Literal["first", "last"]
"""Which piece of a shared tile belongs to the workgroup that runs the tile's epilogue."""
Reduction = Literal["peers", "tree", "turnstile", "scatter", "atomic"]
"""How pieces of a shared tile come together; this module's docstring says what each does."""
OWNERS: tuple[Owner, ...] = get_args(Owner)
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
A_SLOT_A_TILE = ("turnstile", "atomic")
"""Reductions that use one slot for each shared tile; `TURN` is a piece's number in that tile."""
SLOT, TURN = "partial.slot", "partial.turn"
"""Names of dimensions. SLOT: the workspace slot of a partial tile. TURN: which piece of the tile
uses the slot, if the pieces share one."""
LEVEL = "fixup.level"


def add_workspace(e: KernelEditor, slots: Expr, accumulator: str, reduction: str) -> None:
    """Add the workspace tensors `partials` (sums of pieces of tiles) and `flags` (one per slot).

    partials --Tile--> slot, row, column; row and column are those of the output tile. With `atomic`
    the partials must be zero at the start of a launch. The schedule must add the edges from slots
    to the workgroups that send.
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
    """The pieces of one output tile, in the order of k; each belongs to another workgroup.

    Args:
        low, high: the workgroups with the first and the last piece; those between have the others.
        first, count: the first iteration, and the number of iterations, of this workgroup's piece.
        depth: iterations of the whole tile.
        slot: the slot of the tile, for reductions in `A_SLOT_A_TILE`.
    """

    low: Expr
    high: Expr
    first: Expr
    count: Expr
    depth: Expr
    slot: Expr

    def finish(self, e: KernelEditor, owner: str, reduction: str, after: Body) -> Body:
        """Control that adds other pieces to this one, then sends the sum, or runs `after` if owned.

        Args:
            e: the kernel being built; the coordinates of loops are added.
            owner: `first` or `last`: the piece whose workgroup runs the epilogue.
            reduction: one of `REDUCTIONS` except `scatter`, which has no owner.
            after: the operations of the epilogue.
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
        # A loop over one slot, in the form that the other reductions use for several slots.
        add = For(SLOT, slot.symbol, slot.symbol + 1, body=(ReceivePartial(SLOT, turn=TURN),))
        pass_on = SetCoordinate(SLOT, slot.symbol, (SendPartial(SLOT, turn=TURN),))
        return (
            slot,
            turn,
            If(shared, (before, SetCoordinate(TURN, before.symbol, (add,)))),
            If(others, (SetCoordinate(TURN, turn.symbol, (pass_on,)),), after),
        )


def receive_tree(e: KernelEditor, owner: Expr, farthest: Expr, away: int) -> Body:
    """Control that receives pieces in a `tree` reduction, before this piece is sent or stored.

    Pieces are numbered from the owner's, j = 0, to the farthest. At the levels s = 1, 2, 4, … a
    piece with j mod 2s = 0 receives piece j + s, if that exists. So piece j > 0 receives while s is
    less than the lowest set bit of j; then it is sent, once, since it has one slot.

    Args:
        e: the kernel being built; the loop over levels is added.
        owner, farthest: the workgroups with the first and the last piece.
        away: 1 if workgroups of higher number are farther from the owner; -1 if those of lower are.
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
    # A loop over one slot: its bounds prove on which side of the workgroup the slot lies.
    piece = For(SLOT, slot, slot + 1, body=(ReceivePartial(SLOT),))
    return (distance, farther, For(LEVEL, Integer(1), stop, level, (piece,)))
