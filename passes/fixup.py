"""Fix-up: how the pieces of an output tile that several workgroups computed come together.

One workspace slot and one flag for each workgroup: a workgroup's share is contiguous, so at most
one of its segments is a piece of a tile that another workgroup owns. The owner adds its peers'
slots in order, which makes every run give the same bits, and lowers each flag after reading, so
the flags are zero again when the kernel ends.
"""

from __future__ import annotations

from sympy import Expr

from coordgraph.coordinates.dimensions import Linear, User
from coordgraph.coordinates.edges import PassThrough, Tile
from coordgraph.kernel import KernelEditor
from coordgraph.tensors import Role, Tensor

__all__ = ["SLOT", "add_workspace"]

SLOT = "partial.slot"


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
