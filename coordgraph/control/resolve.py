"""Resolve a control graph: compute, as expressions, all values that its operations need.

The result is a tree of nodes with the shape of the control graph. The interpreter and the code
generators walk this tree and evaluate or print its expressions; they derive no index of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sympy import Expr
from sympy.logic.boolalg import Boolean

from coordgraph.control.asynchronous import Counter
from coordgraph.control.operations import (
    Assign,
    Body,
    For,
    If,
    Inside,
    Locate,
    Operation,
    SetCoordinate,
)
from coordgraph.control.scope import Loop, Scoped
from coordgraph.control.tickets import DynamicFor
from coordgraph.coordinates.dimensions import Register, Unroll
from coordgraph.coordinates.traverse import Solution

__all__ = ["Node", "resolve"]

NOT_ADDRESSED = ("registers", "a_registers", "b_registers", "dim", "dims", "phase", "turn", "along")
"""Fields of operations that name dimensions whose indices do not address memory: registers, loop
indices, phases of mbarriers, the order in which workgroups use a flag (`turn`), and indices with
which an epilogue computes (`along`)."""


@dataclass(frozen=True, eq=False)
class Node:
    """An operation with its scope, and with the expressions that it needs in that scope.

    Args:
        op: the operation.
        scope: the scope in which the operation is executed.
        body, orelse: the nodes of the operations in the operation's bodies.
        loop: for a `For` or `DynamicFor`, the loop's index symbol, bounds and step.
        condition: for an `If` or `Inside`, the condition under which `body` is executed.
        value: for a `SetCoordinate` or `Assign`, the value to compute; None if nothing is computed.
        values: for a `Locate`, the indices to compute.
    """

    op: Operation
    scope: Scoped
    body: tuple[Node, ...] = ()
    orelse: tuple[Node, ...] = ()
    loop: Loop | None = None
    condition: Boolean | None = None
    value: Expr | None = None
    values: tuple[Expr, ...] = ()
    _places: dict[str, Solution] = field(default_factory=dict[str, Solution])

    def place(self, dim: str) -> Solution:
        """The index along `dim` in the node's scope, and the condition that it is not padding."""
        if dim not in self._places:
            self._places[dim] = self.scope.reverse(dim)
        return self._places[dim]

    def walk(self) -> Iterator[Node]:
        """The node and all its descendants, in preorder."""
        yield self
        for child in (*self.body, *self.orelse):
            yield from child.walk()

    def index_expressions(self) -> Iterator[tuple[str, Expr, Boolean]]:
        """(id, index, guard) of each dimension by which the operation addresses memory.

        The guard is the condition under which the index is not padding.
        """
        for role, names in self.op.bindings.items():
            if role in NOT_ADDRESSED:
                continue
            for name in names:
                if not isinstance(self.scope.coordinates[name], Register | Unroll):
                    found = self.place(name)
                    yield name, found.values[0], found.guard


def resolve(body: Body, scope: Scoped) -> tuple[Node, ...]:
    """Make a `Node` for each operation of a body; an `Assign` adds to the scope of later ones."""
    nodes: list[Node] = []
    for op in body:
        match op:
            case For():
                loop, inside = scope.enter_for(op)
                nodes.append(Node(op, scope, resolve(op.body, inside), loop=loop))
            case DynamicFor():
                loop, inside = scope.enter_dynamic(op)
                nodes.append(Node(op, scope, resolve(op.body, inside), loop=loop))
            case If() | Inside():
                condition = scope.condition(op)
                yes = resolve(op.body, scope.enter_if(condition))
                no = resolve(op.orelse, scope.enter_if(~condition))
                nodes.append(Node(op, scope, yes, no, condition=condition))
            case SetCoordinate():
                value, inside = scope.enter_set(op)
                nodes.append(Node(op, scope, resolve(op.body, inside), value=value))
            case Locate():
                values, inside = scope.enter_locate(op)
                nodes.append(Node(op, scope, resolve(op.body, inside), values=values))
            case Counter():
                nodes.append(Node(op, scope, resolve(op.body, scope.enter_counter(op))))
            case Assign():
                value, after = scope.assign(op)
                nodes.append(Node(op, scope, value=value))
                scope = after
            case _:
                nodes.append(Node(op, scope, resolve(op.children, scope)))
    return tuple(nodes)
