"""Fix-up: how the pieces of an output tile that several workgroups computed come together.

One workspace slot and one flag for each workgroup: a workgroup's share is contiguous, so at most
one of its segments is a piece of a tile that another workgroup owns. Who adds a slot lowers its
flag, so the flags are zero again when the kernel ends. The order of the additions is fixed, which
makes every run give the same bits.

`peers`: the owner adds all others, one after another. `tree`: pieces are added in pairs, pairs of
pairs and so on, many at the same time. With J peers, one after another come a send and J receives,
or ceil(log2(J + 1)) sends and as many receives: a tree pays from about four peers on.
"""

from __future__ import annotations

from sympy import Expr, Integer

from coordgraph.control.operations import Assign, Body, For, ReceivePartial
from coordgraph.coordinates.dimensions import ForLoop, Linear, User, Workgroup
from coordgraph.coordinates.edges import PassThrough, Tile
from coordgraph.integers import bit_xor, floor_div, minimum
from coordgraph.kernel import KernelEditor
from coordgraph.tensors import Role, Tensor
from passes.tiles import MOST_WORKGROUPS

__all__ = ["REDUCTIONS", "SLOT", "add_workspace", "receive_tree"]

REDUCTIONS = ("peers", "tree")
SLOT = "partial.slot"
LEVEL = "fixup.level"


def add_workspace(e: KernelEditor, sender: str, workgroups: Expr, accumulator: str) -> None:
    """Add partials and flags; `sender` is the dimension whose index is the slot it sends to.

    partials --Tile--> slot, row, column; row and column are the output tile's; flags are one a
    slot. A receiver binds the slot itself.
    """
    c = e.coordinates
    rows, columns = c["D.index.0"].size, c["D.index.1"].size
    assert rows is not None
    assert columns is not None
    e.tensors += (
        Tensor("partials", accumulator, (workgroups, rows, columns), Role.PARTIALS),
        Tensor("flags", "i32", (workgroups,), Role.FLAGS),
    )
    c.add(User("partials", workgroups * rows * columns, tensor="partials"))
    c.add(User("flags", workgroups, tensor="flags"))
    c.add(Linear(SLOT, workgroups, note="slot of a partial tile"))
    c.connect(Tile("partials", (SLOT, "D.index.0", "D.index.1")))
    c.connect(PassThrough("flags", SLOT))
    c.connect(PassThrough(SLOT, sender))


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
