"""Forward progress: whether workgroups wait for lower-numbered or higher-numbered workgroups.

If workgroups wait only for lower-numbered workgroups, it is enough that workgroups start in order.
If workgroups wait for higher-numbered workgroups, all must be resident at once: the launcher needs
a cooperative launch, or must refuse a grid that does not fit on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from sympy import Expr, Integer
from sympy.logic.boolalg import false, true

from coordgraph.control.operations import (
    AccumulatePartial,
    AwaitPartial,
    CollectPartial,
    If,
    ReceivePartial,
    SendPartial,
)
from coordgraph.control.resolve import Node, resolve
from coordgraph.coordinates.traverse import Direction, solve
from coordgraph.errors import EvaluationError
from coordgraph.integers import Ranges, index_symbol, simplify
from coordgraph.kernel import KernelGraph

__all__ = ["WaitDirection", "wait_direction"]

WaitDirection = Literal["none", "lower", "higher", "mixed"]
"""Whether a kernel's workgroups wait for lower-numbered or higher-numbered workgroups.

`none` if no workgroup waits, `mixed` if both occur or nothing is proved.
"""
ZERO, SENDER = Integer(0), "partial.sender"
RECEIVES = (ReceivePartial, AwaitPartial, CollectPartial)


def wait_direction(graph: KernelGraph) -> WaitDirection:
    """Whether workgroups wait for partial sums of lower-numbered or of higher-numbered workgroups.

    The number of the workgroup that sends to a workspace slot is computed through the coordinate
    graph (`forward`) from the index of the slot. If several workgroups send to one slot, the number
    is also computed from the sender's turn: the sender's position in the order of these workgroups.
    At every `SendPartial` and `AccumulatePartial`, the computed number must provably be that of the
    executing workgroup.

    Returns:
        `none` if no workgroup waits, `lower` or `higher` if that is proved of every wait, and
        `mixed` if waits differ or nothing is proved.
    """
    nodes = tuple(_live(resolve(graph.control.root.body, graph.scope())))
    sends = [node for node in nodes if isinstance(node.op, SendPartial | AccumulatePartial)]
    receives = [node for node in nodes if isinstance(node.op, RECEIVES)]
    if not receives:
        return "none"
    workgroup = graph.workgroup.symbol
    try:
        for node in sends:
            if not node.scope.ranges.prove_equal(_sender(graph, node), workgroup):
                return "mixed"
        directions: set[WaitDirection] = {_direction(graph, node) for node in receives}
    except EvaluationError:
        return "mixed"
    return directions.pop() if len(directions) == 1 else "mixed"


def _direction(graph: KernelGraph, node: Node) -> WaitDirection:
    """Which workgroups operation `node` provably waits for: `lower`, `higher`, or else `mixed`.

    A `CollectPartial` waits for several senders; the first and the last of them are compared.
    """
    workgroup, ranges = graph.workgroup.symbol, node.scope.ranges
    first = last = _sender(graph, node)
    if isinstance(node.op, CollectPartial):
        if not _in_order(graph, node):
            return "mixed"
        last = _sender(graph, node, node.scope.resolve(node.op.senders) - 1)
    if ranges.prove_less(workgroup, first):
        return "higher"
    return "lower" if ranges.prove_less(last, workgroup) else "mixed"


def _in_order(graph: KernelGraph, node: Node) -> bool:
    """Whether workgroups provably send to a workspace slot in the order of their numbers."""
    turn = index_symbol(SENDER)
    ranges = node.scope.ranges.with_bounds(turn, 0, ())
    here, following = (_sender(graph, node, turn + by, ranges) for by in (0, 1))
    return ranges.prove_less(here, following)


def _sender(
    graph: KernelGraph, node: Node, further: Expr = ZERO, known: Ranges | None = None
) -> Expr:
    """The number of the workgroup that sends to the workspace slot of the operation `node`.

    Args:
        graph: the kernel graph.
        node: an operation on partial sums, which names a workspace slot. If several workgroups send
            to the slot one after another, the operation also names the sender's position (turn) in
            this order.
        further: a number that is added to the turn: 1 gives the next sender to the same slot.
        known: the ranges of symbols; by default the ranges in the operation's scope.
    """
    ranges, bound = known or node.scope.ranges, node.op.bindings
    values = {
        name: node.scope.reverse(name).values[0] + (further if role == "turn" else 0)
        for role in ("slot", "turn")
        for name in bound.get(role, ())
    }
    found = solve(graph.coordinates, Direction.FORWARD, values, [graph.workgroup.id], ranges)
    return simplify(node.scope.expand(found.values[0]), ranges)


def _live(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes and their descendants, except nodes in branches whose condition is never true."""
    for node in nodes:
        yield node
        decided = node.condition if isinstance(node.op, If) else None
        if decided != false:
            yield from _live(node.body)
        if decided != true:
            yield from _live(node.orelse)
