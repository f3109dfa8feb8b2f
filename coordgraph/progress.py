"""Progress: for whom workgroups wait, derived from the graph.

A workgroup that waits only for lower numbers needs nothing but that workgroups start in order. One
that waits for higher numbers needs all of them to be resident at once: a launcher must then use a
cooperative launch, or refuse a grid that does not fit the device.
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
ZERO, SENDER = Integer(0), "partial.sender"
RECEIVES = (ReceivePartial, AwaitPartial, CollectPartial)


def wait_direction(graph: KernelGraph) -> WaitDirection:
    """Whether workgroups wait for lower or higher numbers; `mixed` where neither is proved.

    The sender of a slot (and of a turn, where there are turns) is the workgroup that the coordinate
    graph leads to from there; of several that add to a slot, any. That counts only if from what
    every `SendPartial` or `AccumulatePartial` of the kernel sends the way leads back to the sender
    itself.
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
    """Where the sender stands to the receiver, or all of them: from the first to the last."""
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
    """Whether senders of later turns have higher numbers."""
    turn = index_symbol(SENDER)
    ranges = node.scope.ranges.with_bounds(turn, 0, ())
    here, following = (_sender(graph, node, turn + by, ranges) for by in (0, 1))
    return ranges.prove_less(here, following)


def _sender(
    graph: KernelGraph, node: Node, further: Expr = ZERO, known: Ranges | None = None
) -> Expr:
    """The workgroup to which the slot of an operation, and its turn, lead.

    Args:
        graph: the kernel.
        node: the operation.
        further: turns behind the one that the operation names.
        known: the ranges of what these name; by default those at the operation.
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
    """All nodes but those in branches that are never taken."""
    for node in nodes:
        yield node
        decided = node.condition if isinstance(node.op, If) else None
        if decided != false:
            yield from _live(node.body)
        if decided != true:
            yield from _live(node.orelse)
