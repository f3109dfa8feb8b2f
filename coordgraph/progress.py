"""Progress: for whom workgroups wait, derived from the graph.

A workgroup that waits only for lower numbers needs nothing but that workgroups start in order. One
that waits for higher numbers needs all of them to be resident at once: a launcher must then use a
cooperative launch, or refuse a grid that does not fit the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from sympy import Expr
from sympy.logic.boolalg import false, true

from coordgraph.control.operations import AwaitPartial, If, ReceivePartial, SendPartial
from coordgraph.control.resolve import Node, resolve
from coordgraph.coordinates.traverse import Direction, solve
from coordgraph.errors import EvaluationError
from coordgraph.integers import simplify
from coordgraph.kernel import KernelGraph

__all__ = ["WaitDirection", "wait_direction"]

WaitDirection = Literal["none", "lower", "higher", "mixed"]


def wait_direction(graph: KernelGraph) -> WaitDirection:
    """Whether workgroups wait for lower or higher numbers; `mixed` where neither is proved.

    The sender of a slot (and of a turn, where there are turns) is the workgroup that the coordinate
    graph leads to from there. That counts only if from what every `SendPartial` of the kernel sends
    the way leads back to the sender itself.
    """
    nodes = tuple(_live(resolve(graph.control.root.body, graph.scope())))
    sends = [node for node in nodes if isinstance(node.op, SendPartial)]
    receives = [node for node in nodes if isinstance(node.op, ReceivePartial | AwaitPartial)]
    if not receives:
        return "none"
    workgroup = graph.workgroup.symbol
    try:
        for node in sends:
            if not node.scope.ranges.prove_equal(_sender(graph, node), workgroup):
                return "mixed"
        directions: set[WaitDirection] = {
            _direction(node, _sender(graph, node), workgroup) for node in receives
        }
    except EvaluationError:
        return "mixed"
    return directions.pop() if len(directions) == 1 else "mixed"


def _direction(node: Node, sender: Expr, workgroup: Expr) -> WaitDirection:
    """Where the sender stands to the receiver."""
    if node.scope.ranges.prove_less(workgroup, sender):
        return "higher"
    return "lower" if node.scope.ranges.prove_less(sender, workgroup) else "mixed"


def _sender(graph: KernelGraph, node: Node) -> Expr:
    """The workgroup to which the slot of an operation, and its turn, lead."""
    names = [name for role in ("slot", "turn") for name in node.op.bindings.get(role, ())]
    found = solve(
        graph.coordinates,
        Direction.FORWARD,
        dict(zip(names, node.scope.reverse(*names).values, strict=True)),
        [graph.workgroup.id],
        node.scope.ranges,
    )
    return simplify(node.scope.expand(found.values[0]), node.scope.ranges)


def _live(nodes: Iterable[Node]) -> Iterator[Node]:
    """All nodes but those in branches that are never taken."""
    for node in nodes:
        yield node
        decided = node.condition if isinstance(node.op, If) else None
        if decided != false:
            yield from _live(node.body)
        if decided != true:
            yield from _live(node.orelse)
