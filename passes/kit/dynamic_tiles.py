"""Dynamic tiles: persistent workgroups take output tiles from a counter in device memory."""

from __future__ import annotations

from sympy import Expr, Integer

from coordgraph.control.operations import Body, Operation, SetCoordinate
from coordgraph.control.tickets import DynamicFor, TakeTicket
from coordgraph.coordinates.dimensions import User
from coordgraph.kernel import KernelEditor
from coordgraph.tensors import Role, Tensor

__all__ = ["COUNTER", "dynamic_loop"]

COUNTER = "counter"
"""Name of the tensor that holds one 32-bit counter, and id of its dimension. Workgroups increment
the counter; the value that a workgroup gets (its ticket) says which output tile it computes next.
"""


def dynamic_loop(e: KernelEditor, tile: str, tiles: Expr, count: Expr, body: Body) -> Operation:
    """A loop in which each workgroup takes its next output tile when it has finished one.

    Adds the tensor `counter`. The first tile of a workgroup has the workgroup's own number, so that
    no workgroup waits for the counter before its first tile.

    Args:
        e: the kernel being built, in which `workgroup_count` added the dimension `workgroup`.
        tile: the id of the dimension that numbers output tiles.
        tiles: number of output tiles.
        count: number of workgroups.
        body: the operations on an output tile.
    """
    e.assume(tiles + count)
    e.tensors += (Tensor(COUNTER, "i32", (Integer(1),), Role.COUNTERS),)
    e.coordinates.add(User(COUNTER, Integer(1), tensor=COUNTER))
    take = TakeTicket(tile, COUNTER, count, tiles)
    start = e.coordinates["workgroup"].symbol
    loop = DynamicFor(tile, start, tiles, (*body, take))
    return SetCoordinate(COUNTER, Integer(0), (loop,))
