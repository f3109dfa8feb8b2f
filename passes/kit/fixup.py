"""Fix-up: adding the partial sums of an output tile that several workgroups computed.

A *piece* is the partial sum of a tile over some consecutive iterations, computed by one workgroup.
The *peers* of a workgroup are the other workgroups with a piece of the same tile. The *owner* of a
tile is the workgroup that runs its epilogue. A *slot* of the workspace holds one piece and a flag.
The workgroup that receives a slot resets its flag, so all flags are 0 again when the kernel ends.
There are five reductions; in all but `atomic` the order of additions is fixed, so every run gives
the same bits:

- `peers`: the workspace has one slot for each workgroup. The owner of a tile adds the pieces of all
  its peers, one after another.
- `tree`: pieces are added in pairs, pairs of pairs and so on, many at the same time. With J peers
  the longest chain of operations that wait for each other is ceil(log2(J + 1)) sends and as many
  receives; for `peers` it is one send and J receives.
- `turnstile`: the workspace has one slot for each shared tile, in which the pieces are added up one
  after another. The piece farthest from the owner's is written first. The workgroup of each next
  piece, nearer to the owner's, receives the sum so far, adds its piece and writes the result back;
  the flag has the number of the piece that was added last. With J peers, J sends and J receives
  follow one another, but no workgroup receives more than once, and only one tile of sums is read
  and written, which stays in the L2 cache.
- `atomic`: the workspace has one slot for each shared tile. Every piece but the owner's is added to
  it by atomic additions, in any order; then the owner adds the slot to its piece and writes zeros
  to the slot. All J peers send at the same time, and the owner receives only one slot, whatever J
  is. Results differ in their last bits from run to run, so `atomic` is used only if a caller asks
  for it: it is no default, and automatic choice excludes it.
- `scatter`: no workgroup owns a tile. Every workgroup with a piece writes it to the workspace and
  finishes a share of the tile: see `passes.kit.reduce_scatter`. All workgroups must be resident at
  the same time. With J + 1 workgroups, all write at the same time, and then each adds up all pieces
  of 1/(J + 1) of the tile.

One slot for each workgroup suffices if tiles have owners: a workgroup's share of the iterations is
contiguous, so at most one of its segments is a piece of a tile that another workgroup owns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
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
from coordgraph.coordinates.dimensions import (
    ForLoop,
    Linear,
    MacroTileIndex,
    User,
    Workgroup,
)
from coordgraph.coordinates.edges import PassThrough, Tile
from coordgraph.gemm import SUM
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
"""Which workgroup runs the epilogue of a tile that several workgroups share: the workgroup with the
tile's first, or with its last, k tiles."""
Reduction = Literal["peers", "tree", "turnstile", "scatter", "atomic"]
"""How the partial sums of a shared tile are added up; see the docstring of `passes.kit.fixup`."""
OWNERS: tuple[Owner, ...] = get_args(Owner)
"""The values of `Owner`: which workgroup runs the epilogue of a shared tile."""
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
"""The values of `Reduction`: ways to add up the partial sums of a shared tile."""
A_SLOT_A_TILE = ("turnstile", "atomic")
"""Reductions for which the workspace has one slot for each shared tile, not for each workgroup."""
SLOT, TURN = "partial.slot", "partial.turn"
"""Ids of dimensions.

SLOT: the index of a slot of the workspace, which holds a partial sum. TURN: the index of a partial
sum among those of its tile, for reductions in which all partial sums of a tile use one slot.
"""
LEVEL = "fixup.level"
"""Id of the loop over the levels of a `tree` reduction. The loop's index is the distance between
the two partial sums that are added: 1, 2, 4 and so on, counted in partial sums of the tile."""


def add_workspace(e: KernelEditor, slots: Expr, accumulator: str, reduction: str) -> None:
    """Add the workspace tensors `partials` (partial sums of tiles) and `flags` (one per slot).

    Adds the edge `partials --Tile--> slot, row, column`, where row and column are those of an
    output tile; if the epilogue has several sums, `partials --Tile--> slot, sum, row, column`. With
    the reduction `atomic`, `partials` must be zero when the kernel starts. The caller must add
    edges that tie slots to the workgroups that write them.

    Args:
        e: the kernel being built.
        slots: number of slots, each for the partial sums of one output tile.
        accumulator: the element type of the sums.
        reduction: how partial sums are added up: one of `REDUCTIONS`, such as `tree`.
    """
    c = e.coordinates
    sums = (SUM,) if e.graph.gemm.sums > 1 else ()
    for name in sums:
        c.add(MacroTileIndex(name, Integer(e.graph.gemm.sums), note="which sum of the epilogue"))
    shape = tuple(c[dim].fixed_size for dim in (*sums, "D.index.0", "D.index.1"))
    role = Role.SUMS if reduction == "atomic" else Role.PARTIALS
    e.tensors += (
        Tensor("partials", accumulator, (slots, *map(Integer, shape)), role),
        Tensor("flags", "i32", (slots,), Role.FLAGS),
    )
    c.add(User("partials", slots * prod(shape), tensor="partials"))
    c.add(User("flags", slots, tensor="flags"))
    c.add(Linear(SLOT, slots, note="slot of a partial tile"))
    c.connect(Tile("partials", (SLOT, *sums, "D.index.0", "D.index.1")))
    c.connect(PassThrough("flags", SLOT))


@dataclass(frozen=True)
class Pieces:
    """The pieces (partial sums) of one output tile in the order of k, one for each workgroup.

    Args:
        low, high: the workgroups with the first and with the last piece of the tile; the workgroups
            between them have the other pieces.
        first, count: the first iteration, and the number of iterations, of this workgroup's piece.
        depth: number of iterations of the whole tile.
        slot: the workspace slot of the tile; used only by the reductions `turnstile` and `atomic`.
    """

    low: Expr
    high: Expr
    first: Expr
    count: Expr
    depth: Expr
    slot: Expr

    def finish(self, e: KernelEditor, owner: str, reduction: str, after: Body) -> Body:
        """Return operations that add up a tile's partial sums; the tile's owner then runs `after`.

        A workgroup receives partial sums (pieces) of other workgroups, adds them to its own piece,
        and then sends the sum to another workgroup or, if it owns the tile, runs the epilogue.

        Args:
            e: the kernel being built; the coordinates of loops are added.
            owner: the piece whose workgroup owns the tile: `first` or `last`.
            reduction: how the pieces are added up: one of `REDUCTIONS` except `scatter`, in which
                no workgroup owns the tile.
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
        # Partial sums are received from one slot, so the loop has one iteration. Other reductions
        # loop over several slots, and lowering expects a loop.
        add = For(SLOT, slot.symbol, slot.symbol + 1, body=(ReceivePartial(SLOT, turn=TURN),))
        pass_on = SetCoordinate(SLOT, slot.symbol, (SendPartial(SLOT, turn=TURN),))
        return (
            slot,
            turn,
            If(shared, (before, SetCoordinate(TURN, before.symbol, (add,)))),
            If(others, (SetCoordinate(TURN, turn.symbol, (pass_on,)),), after),
        )


def receive_tree(e: KernelEditor, owner: Expr, farthest: Expr, away: int) -> Body:
    """Return operations by which a workgroup receives partial sums in a `tree` reduction.

    A piece is a workgroup's partial sum of a tile. Pieces are numbered from the owner's, j = 0, to
    the farthest. At the levels s = 1, 2, 4, … a piece with j mod 2s = 0 receives piece j + s, if
    that exists. So piece j > 0 receives while s is less than the lowest set bit of j; then its
    workgroup sends the sum, once, to the workgroup's slot.

    Args:
        e: the kernel being built; the loop over levels is added.
        owner, farthest: the workgroups with piece 0 and with the piece of largest number.
        away: 1 if workgroups of higher number are farther from the owner; -1 if those of lower
            number are.
    """
    e.coordinates.add(ForLoop(LEVEL, name="Level", note="how far the piece to receive is away"))
    workgroup, level = Workgroup("workgroup").symbol, e.coordinates[LEVEL].symbol
    distance = Assign("distance", away * (workgroup - owner))
    farther = Assign("farther", away * (farthest - workgroup))
    # `distance` is the number of the workgroup's piece, counted from the owner's. The owner's own
    # number is 0, which has no lowest set bit, so a bit above all bits is added.
    marked = distance.symbol + (1 << MOST_WORKGROUPS.bit_length())
    lowest_bit = floor_div(bit_xor(marked, marked - 1) + 1, Integer(2))
    stop = minimum(farther.symbol + 1, lowest_bit)
    slot = workgroup + away * level
    # This loop has one iteration. From its bounds, the check for forward progress
    # (`coordgraph.progress`) can prove that the received slot has a higher number than the
    # workgroup's own slot (a lower number, if `away` is -1).
    piece = For(SLOT, slot, slot + 1, body=(ReceivePartial(SLOT),))
    return (distance, farther, For(LEVEL, Integer(1), stop, level, (piece,)))
