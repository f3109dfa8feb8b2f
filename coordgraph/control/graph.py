"""The control graph: what is done, in which order, under which loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar

import networkx

from coordgraph.control.operations import Body, Kernel, Operation
from coordgraph.hooks import Hook

__all__ = ["MERMAID", "ControlEdge", "ControlGraph", "Rewrite", "rewrite"]

OperationT = TypeVar("OperationT", bound=Operation)
Rewrite = Callable[[Operation], "Operation | Body"]
EMPTY = Kernel()


class ControlEdge(Enum):
    """How two operations of a control graph stand to each other."""

    BODY = "Body"
    ELSE = "Else"
    SEQUENCE = "Sequence"


@dataclass(frozen=True)
class ControlGraph:
    """An ordered tree of operations under a `Kernel`, read as a graph.

    `Body` and `Else` lead from an operation to the first of what it holds, `Sequence` from one
    operation to the next. Operations are numbered in order, so ids are deterministic.
    """

    root: Kernel = EMPTY

    @cached_property
    def nx(self) -> networkx.DiGraph[int]:
        """The graph as a frozen `networkx.DiGraph`, for any algorithm of networkx.

        Nodes are the numbers of operations, with the attribute `operation`; arcs have a `kind`.
        """
        graph: networkx.DiGraph[int] = networkx.DiGraph()
        _add(graph, self.root)
        return networkx.freeze(graph)

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """Every operation; its position here is its id."""
        attributes = self.nx.nodes
        return tuple(attributes[number]["operation"] for number in self.nx)

    def of_kind(self, kind: type[OperationT]) -> tuple[OperationT, ...]:
        """The operations of a kind, in order."""
        return tuple(op for op in self.operations if isinstance(op, kind))

    @cached_property
    def edges(self) -> tuple[tuple[int, int, ControlEdge], ...]:
        """(from id, to id, kind) triples, in the order of the ids that they lead to."""
        arcs = self.nx.edges(data="kind")
        return tuple(sorted(arcs, key=lambda arc: arc[1]))

    @property
    def bindings(self) -> dict[tuple[int, str], tuple[str, ...]]:
        """(operation id, role) to the coordinates bound there."""
        return {
            (position, role): names
            for position, op in enumerate(self.operations)
            for role, names in op.bindings.items()
        }

    def rewrite(self, change: Rewrite) -> ControlGraph:
        """The graph with every operation replaced by what `change` makes of it, bottom up."""
        root = rewrite(self.root, change)
        if len(root) != 1 or not isinstance(root[0], Kernel):
            raise TypeError("a rewrite must leave one Kernel at the top")
        return self if root[0] == self.root else ControlGraph(root[0])

    def mermaid(self, **options: Any) -> str:
        """The graph as mermaid text; options as in `coordgraph.show.mermaid.control`."""
        return MERMAID(self, **options)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        text = self.mermaid()
        return {"text/plain": repr(self), "text/markdown": f"```mermaid\n{text}\n```"}

    def __repr__(self) -> str:
        return f"<ControlGraph: {len(self.operations)} operations>"


def _add(graph: networkx.DiGraph[int], op: Operation) -> int:
    """Add an operation and what it holds; returns its number."""
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


def rewrite(op: Operation, change: Rewrite) -> Body:
    """Rewrite the bodies of `op`, then `op` itself; `change` returns an operation or several."""
    bodies = {
        name: tuple(new for child in getattr(op, name) for new in rewrite(child, change))
        for name in op.BODIES
    }
    if any(getattr(op, name) != body for name, body in bodies.items()):
        op = replace(op, **bodies)
    result = change(op)
    return result if isinstance(result, tuple) else (result,)
