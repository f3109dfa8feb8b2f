"""`ControlGraph`: the operations of a kernel, their order, and the loops around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from coordgraph.control.operations import Body, Kernel, Operation
from coordgraph.hooks import Hook
from coordgraph.late import late_module

if TYPE_CHECKING:
    import networkx
else:
    # Commands that list passes or read options make no graph, and networkx takes long to load.
    networkx = late_module("networkx")

__all__ = ["MERMAID", "ControlEdge", "ControlGraph", "Rewrite", "rewrite"]

OperationT = TypeVar("OperationT", bound=Operation)
Rewrite = Callable[[Operation], "Operation | Body"]
"""A function that returns an operation's replacement: an operation, or a tuple of operations."""
EMPTY = Kernel()
"""A kernel without operations."""


class ControlEdge(Enum):
    """The kind of an edge between two operations of a control graph."""

    BODY = "Body"
    """The edge leads from an operation to the first operation of its body."""
    ELSE = "Else"
    """The edge leads from an `If` to the first operation of its else-body."""
    SEQUENCE = "Sequence"
    """The edge leads from an operation to the next operation in the same body."""


@dataclass(frozen=True)
class ControlGraph:
    """The operations of a kernel: an ordered tree, whose root is a `Kernel`.

    An operation's id is its number in preorder. Edges have the kinds of `ControlEdge`.

    Args:
        root: the kernel, whose body holds all other operations.
    """

    root: Kernel = EMPTY

    @cached_property
    def nx(self) -> networkx.DiGraph[int]:
        """The control graph as a frozen `networkx.DiGraph`, to which networkx algorithms apply.

        A node is an operation's id, with the attribute `operation`; an edge has the attribute
        `kind`, a `ControlEdge`.
        """
        graph: networkx.DiGraph[int] = networkx.DiGraph()
        _add(graph, self.root)
        return networkx.freeze(graph)

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """All operations in preorder; an operation's position is its id."""
        attributes = self.nx.nodes
        return tuple(attributes[number]["operation"] for number in self.nx)

    def of_kind(self, kind: type[OperationT]) -> tuple[OperationT, ...]:
        """The operations of a class, in preorder."""
        return tuple(op for op in self.operations if isinstance(op, kind))

    @cached_property
    def edges(self) -> tuple[tuple[int, int, ControlEdge], ...]:
        """The edges as triples (id of the first operation, id of the second operation, kind).

        The triples are ordered by the second operation's id.
        """
        arcs = self.nx.edges(data="kind")
        return tuple(sorted(arcs, key=lambda arc: arc[1]))

    @property
    def bindings(self) -> dict[tuple[int, str], tuple[str, ...]]:
        """The ids of the dimensions that operations name, by (operation id, role).

        A role is the name of a field, such as `tile`.
        """
        return {
            (position, role): names
            for position, op in enumerate(self.operations)
            for role, names in op.bindings.items()
        }

    def rewrite(self, change: Rewrite) -> ControlGraph:
        """Replace every operation by the result of `change`, inner operations first.

        The result is this graph itself if nothing changes.

        Raises:
            TypeError: `change` replaces the `Kernel` by anything but a `Kernel`.
        """
        root = rewrite(self.root, change)
        if len(root) != 1 or not isinstance(root[0], Kernel):
            raise TypeError(
                f"the rewrite returned {len(root)} operations for the Kernel, or one of another "
                "class; return exactly one Kernel"
            )
        return self if root[0] == self.root else ControlGraph(root[0])

    def mermaid(self, **options: Any) -> str:
        """The control graph as a Mermaid diagram, with options of `show.mermaid.control`."""
        return MERMAID(self, **options)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        text = self.mermaid()
        return {"text/plain": repr(self), "text/markdown": f"```mermaid\n{text}\n```"}

    def __repr__(self) -> str:
        return f"<ControlGraph: {len(self.operations)} operations>"


def _add(graph: networkx.DiGraph[int], op: Operation) -> int:
    """Add `op` and the operations in its bodies to a networkx graph; returns the id of `op`."""
    own = len(graph)
    graph.add_node(own, operation=op)
    for name in op.BODIES:
        previous, kind = own, ControlEdge.ELSE if name == "orelse" else ControlEdge.BODY
        for child in getattr(op, name):
            number = _add(graph, child)
            graph.add_edge(previous, number, kind=kind)
            previous, kind = number, ControlEdge.SEQUENCE
    return own


MERMAID = Hook[..., str]("ControlGraph.mermaid", "coordgraph.show.mermaid")
"""`ControlGraph.mermaid` calls this hook, which `coordgraph.show.mermaid` implements."""


def rewrite(op: Operation, change: Rewrite) -> Body:
    """Replace the operations in the bodies of `op`, then `op` itself, by the results of `change`.

    Args:
        op: the operation.
        change: returns the replacement of an operation: an operation, or a tuple of operations.
    """
    bodies = {
        name: tuple(new for child in getattr(op, name) for new in rewrite(child, change))
        for name in op.BODIES
    }
    if any(getattr(op, name) != body for name, body in bodies.items()):
        op = replace(op, **bodies)
    result = change(op)
    return result if isinstance(result, tuple) else (result,)
