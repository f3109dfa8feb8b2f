"""Checks of dynamic loops, whose indices workgroups take from an atomic counter as *tickets*.

Every index must be executed exactly once, and the result must not depend on the workgroup that
executes the index. `coordgraph.control.tickets` explains why every index is executed once.
"""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr, Symbol
from sympy.core.basic import Basic

from coordgraph.control.operations import (
    Assign,
    Kernel,
    Locate,
    Operation,
    Scope,
    SetCoordinate,
)
from coordgraph.control.resolve import Node
from coordgraph.control.tickets import (
    DynamicFor,
    FetchTicket,
    PassTicket,
    ReadTicket,
    TakeTicket,
)
from coordgraph.errors import CoordGraphError
from coordgraph.integers import symbols_of
from coordgraph.kernel import KernelGraph

__all__ = ["problems_of_lowered_tickets", "problems_of_tickets", "unproved_loops"]

AROUND = (Kernel, Scope, SetCoordinate)
"""Operations that may contain a `DynamicFor` (a loop whose indices workgroups take from an atomic
counter): each of these operations executes its body exactly once."""


def problems_of_tickets(graph: KernelGraph) -> Iterator[str]:
    """Error messages about the `DynamicFor` loops of a scheduled graph; none if all are correct.

    Every workgroup must execute such a loop once, and must take one ticket (the next index, from an
    atomic counter) in every iteration: else an index is never executed, or the loop never ends.
    """
    loops = graph.control.of_kind(DynamicFor)
    if len(loops) > 1:
        yield f"the kernel has {len(loops)} dynamic loops, and may have one; use For for the others"
    yield from _outside(graph.control.root, AROUND)
    for loop in loops:
        own = [op for op in loop.body if isinstance(op, TakeTicket) and op.dim == loop.dim]
        if len(own) != 1:
            yield (
                f"DynamicFor {loop.dim}: its body has {len(own)} operations TakeTicket of "
                f"'{loop.dim}', and needs exactly one, which every iteration executes"
            )
    taken = sum(isinstance(op, TakeTicket) for loop in loops for op in loop.body)
    if taken != len(graph.control.of_kind(TakeTicket)):
        yield "a TakeTicket is not directly in the body of a DynamicFor; move it there"
    if graph.control.of_kind(ReadTicket):
        yield "a ReadTicket belongs to a lowered graph; use TakeTicket in a scheduled graph"


def problems_of_lowered_tickets(graph: KernelGraph) -> Iterator[str]:
    """Error messages about the `DynamicFor` loops of a lowered graph; none if all are correct.

    A loop is correct if exactly one operation, directly in its body, computes the next index. A
    ticket (a loop index from an atomic counter) must be fetched by an operation of the graph.
    """
    follow, found = (TakeTicket, ReadTicket), 0
    for loop in graph.control.of_kind(DynamicFor):
        own = [op for op in loop.body if isinstance(op, follow) and op.dim == loop.dim]
        found += len(own)
        if len(own) != 1:
            yield (
                f"DynamicFor {loop.dim}: its body has {len(own)} operations TakeTicket or "
                f"ReadTicket of '{loop.dim}', and needs exactly one, which computes the next index"
            )
    if found != sum(isinstance(op, follow) for op in graph.control.operations):
        yield "a TakeTicket or ReadTicket is not directly in the body of its DynamicFor; move it"
    fetched = {op.ticket for op in graph.control.of_kind(FetchTicket)}
    for op in graph.control.of_kind(PassTicket):
        if op.ticket not in fetched:
            yield f"PassTicket: no FetchTicket takes the ticket '{op.ticket}'; add one before it"


def _outside(op: Operation, allowed: tuple[type[Operation], ...]) -> Iterator[str]:
    """Messages about each `DynamicFor` inside an operation whose class is not in `allowed`.

    Such an operation may execute its body never or more than once.
    """
    for child in op.children:
        if isinstance(child, DynamicFor) and not isinstance(op, allowed):
            yield (
                f"DynamicFor {child.dim} is in a {op.kind}, so workgroups may not execute it "
                "exactly once; move it out"
            )
        yield from _outside(child, allowed)


def unproved_loops(graph: KernelGraph, nodes: tuple[Node, ...]) -> Iterator[str]:
    """Why results of `DynamicFor` loops may depend on which workgroup takes which index.

    Yields nothing if it is proved that they do not.

    Proved means: each index is executed exactly once, the counter is 0 at the end, and no operation
    in the loop depends on the workgroup that executes it. What a check finds for one assignment of
    indices to workgroups then holds for every assignment. The graph must pass
    `problems_of_tickets`.

    Args:
        graph: a scheduled graph.
        nodes: the resolved operations of the graph.
    """
    workgroup = graph.workgroup
    outer: set[Symbol] = {workgroup.symbol}
    for root in nodes:
        for node in root.walk():
            if isinstance(node.op, DynamicFor):
                yield from _unequal(graph, node)
                yield from _readers(node, outer)
            outer |= _bound(graph, node.op)


def _unequal(graph: KernelGraph, node: Node) -> Iterator[str]:
    """Messages if a `DynamicFor` loop may execute an index twice, or never execute an index."""
    loop, size = node.loop, graph.workgroup.size
    assert loop is not None
    tickets = (inner for inner in node.body if isinstance(inner.op, TakeTicket))
    wanted: list[tuple[str, Expr, Expr | None, str]] = [
        ("start", loop.start, graph.workgroup.symbol, "the workgroup's number")
    ]
    for inner in tickets:
        op, resolve = inner.op, inner.scope.resolve
        assert isinstance(op, TakeTicket)
        wanted.append(("first", resolve(op.first), size, "the number of workgroups"))
        wanted.append(("count", resolve(op.count), loop.stop, "the number of indices"))
    for name, value, other, what in wanted:
        if other is None or not node.scope.ranges.prove_equal(value, other):
            yield f"{name} = {value} of the dynamic loop is not proved to be {what}"


def _readers(node: Node, outer: set[Symbol]) -> Iterator[str]:
    """Messages about operations in a loop that read a symbol of `outer`.

    The symbols of `outer` have values that depend on the executing workgroup, such as its number.
    """
    for inner in (each for child in node.body for each in child.walk()):
        if isinstance(inner.op, TakeTicket):
            continue
        if read := {s for value in _values(inner) for s in symbols_of(value)} & outer:
            names = ", ".join(sorted(symbol.name for symbol in read))
            yield (
                f"{inner.op.kind} in the dynamic loop reads {names}, which depends on the "
                "workgroup that executes it"
            )


def _values(node: Node) -> Iterator[Basic]:
    """The expressions that an operation evaluates: indices, bounds, conditions and values."""
    if node.loop is not None:
        yield from (node.loop.start, node.loop.stop, node.loop.step)
    yield from (value for value in (node.condition, node.value) if value is not None)
    yield from node.values
    try:
        for _, index, guard in node.index_expressions():
            yield from (index, guard)
    except CoordGraphError:  # another check reports an index that no path computes
        return


def _bound(graph: KernelGraph, op: Operation) -> set[Symbol]:
    """The symbols to which an operation gives a value that may depend on the workgroup."""
    match op:
        case Assign(symbol=symbol):
            return {symbol}
        case SetCoordinate(dim=dim):
            return {graph.coordinates.symbol(dim)}
        case Locate(dims=dims):
            return {graph.coordinates.symbol(dim) for dim in dims}
        case _:
            return set()
