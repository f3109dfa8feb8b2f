"""`CoordinateGraph`: an immutable graph of dimensions and coordinate transforms between them.

`CoordinateEditor` builds changed copies of a graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeVar

from sympy import Expr
from sympy.logic.boolalg import Boolean, false

from coordgraph.coordinates.dimensions import Dimension
from coordgraph.coordinates.edges import Edge, Sizes
from coordgraph.coordinates.rules import decide
from coordgraph.coordinates.structure import DimensionLike, Structure
from coordgraph.coordinates.traverse import Direction, Known, derivative, solve
from coordgraph.errors import VerifyError
from coordgraph.hooks import Hook
from coordgraph.integers import Ranges

__all__ = ["MERMAID", "CoordinateEditor", "CoordinateGraph", "DimensionLike"]

D = TypeVar("D", bound=Dimension)
_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*\Z")


class CoordinateGraph(Structure):
    """An immutable graph of dimensions (nodes) and coordinate transforms (ordered hyperedges).

    Build a graph with `CoordinateGraph().edit()`; every edit makes a new graph. `reverse` computes
    indices along tensors from indices of the machine (workgroups, loops, threads); `forward`
    computes in the other direction.
    """

    def edit(self) -> CoordinateEditor:
        """An editor that builds a changed copy of the graph: `with g.edit() as e: …; e.graph`."""
        return CoordinateEditor(self)

    def reverse(
        self,
        known: Known,
        wanted: DimensionLike | Iterable[DimensionLike],
        ranges: Ranges | None = None,
    ) -> list[Expr]:
        """Compute indices along tensors (upstream) from indices of the machine (downstream).

        Args:
            known: a mapping from each known dimension to its index (a number, an expression, or
                None for the dimension's symbol). A sequence of dimensions, or a single dimension,
                is short for a mapping of these dimensions to None.
            wanted: the dimensions whose indices are computed, or a single dimension; the result is
                a list in both cases.
            ranges: the known ranges of symbols; by default each index is at least 0 and less than
                the size of its dimension.

        Returns:
            The index of each wanted dimension, in order, as simplified expressions.

        Raises:
            NoPath: no path leads from the known dimensions to a wanted dimension.
            AmbiguousPath: two edges define the index of a dimension on the path.
            NotInvertible: an edge on the path has no reverse formula.
            VerifyError: an argument has a wrong type, or the graph lacks a dimension.
        """
        return list(solve(self, Direction.REVERSE, known, wanted, ranges).values)

    def forward(
        self,
        known: Known,
        wanted: DimensionLike | Iterable[DimensionLike],
        ranges: Ranges | None = None,
    ) -> list[Expr]:
        """Compute indices of the machine (downstream) from indices along tensors (upstream).

        `known` has upstream dimensions with their indices, `wanted` the downstream dimensions whose
        indices are returned. `CoordinateGraph.reverse` takes the same types and raises the same
        errors.
        """
        return list(solve(self, Direction.FORWARD, known, wanted, ranges).values)

    def guards(
        self,
        known: Known,
        wanted: DimensionLike | Iterable[DimensionLike],
        ranges: Ranges | None = None,
    ) -> Boolean:
        """The condition under which the indices that `reverse` computes are not in padding.

        The condition holds if every index on the path is inside its dimension. The arguments are
        the known indices, the wanted dimensions and the ranges of symbols, as for
        `CoordinateGraph.reverse`, which raises the same errors.
        """
        return solve(self, Direction.REVERSE, known, wanted, ranges).guard

    def derivative(
        self,
        wanted: DimensionLike,
        by: DimensionLike,
        known: Known,
        ranges: Ranges | None = None,
    ) -> Expr:
        """How much the index along `wanted` grows when the index along `by` grows by 1.

        Args:
            wanted: the upstream dimension, whose index `reverse` computes.
            by: the dimension whose index grows.
            known: the known dimensions with their indices, as for `CoordinateGraph.reverse`.
            ranges: the known ranges of symbols; by default each index is inside its dimension.
        """
        return derivative(self, wanted, by, known, ranges)

    def ranges(self, base: Ranges | None = None) -> Ranges:
        """A copy of `base` that knows the bounds of every index: at least 0, below the size."""
        sized = ((d.symbol, d.size) for d in self if d.size is not None)
        return (base or Ranges()).with_indices(sized)

    def mermaid(self, **options: Any) -> str:
        """The graph as a Mermaid diagram, with options of `coordgraph.show.mermaid.coordinates`."""
        return MERMAID(self, **options)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        text = self.mermaid()
        return {"text/plain": repr(self), "text/vnd.mermaid": text, "text/markdown": _fence(text)}


def _fence(text: str) -> str:
    return f"```mermaid\n{text}\n```"


MERMAID = Hook[..., str]("CoordinateGraph.mermaid", "coordgraph.show.mermaid")
"""`CoordinateGraph.mermaid` calls this hook, which `coordgraph.show.mermaid` implements."""


class CoordinateEditor:
    """Collects changes to a coordinate graph; `graph` holds the result after the `with` block."""

    def __init__(self, graph: CoordinateGraph) -> None:
        self._dimensions = dict(graph.dimensions)
        self._edges = list(graph.edges)
        self._fitting: set[tuple[Any, ...]] = set()
        """Combinations of edge class, edge fields and operand sizes whose size rule was checked
        already."""
        self.graph = graph
        self._latest = graph

    def __enter__(self) -> CoordinateEditor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None:
            self.graph = self.finish()

    def __contains__(self, name: object) -> bool:
        return name in self._dimensions

    def __getitem__(self, name: str) -> Dimension:
        try:
            return self._dimensions[name]
        except KeyError:
            raise VerifyError(f"there is no dimension '{name}'; add it first") from None

    def add(self, dimension: D) -> D:
        """Add a dimension to the graph; returns the dimension.

        Raises:
            VerifyError: the dimension's id is malformed, or the graph has a dimension with this id.
        """
        if not _ID.match(dimension.id):
            raise VerifyError(
                f"'{dimension.id}' is not a dimension id; use letters, digits and _, in parts "
                "separated by dots, and do not begin with a digit"
            )
        if dimension.id in self._dimensions:
            raise VerifyError(
                f"a dimension '{dimension.id}' exists already; choose another id, or let fresh() "
                "return an unused one"
            )
        self._dimensions[dimension.id] = dimension
        return dimension

    def fresh(self, name: str) -> str:
        """An unused dimension id: `name` itself, or `name_2`, `name_3`, … if `name` is in use."""
        candidate, number = name, 1
        while candidate in self._dimensions:
            number += 1
            candidate = f"{name}_{number}"
        return candidate

    def connect(self, edge: Edge) -> Edge:
        """Add an edge to the graph; returns the edge.

        Raises:
            VerifyError: the graph lacks one of the edge's dimensions, or the sizes of these
                dimensions break the edge's size rule.
        """
        missing = [n for n in (*edge.upstream, *edge.downstream) if n not in self._dimensions]
        if missing:
            raise VerifyError(
                f"{edge}: there is no dimension {', '.join(map(repr, missing))}; add it first"
            )
        self._check_sizes(edge)
        self._edges.append(edge)
        return edge

    def _check_sizes(self, edge: Edge) -> None:
        sizes = Sizes(
            tuple(self._dimensions[name].size for name in edge.upstream),
            tuple(self._dimensions[name].size for name in edge.downstream),
        )
        # The size rule depends only on the edge's class, its fields and the sizes of its operands.
        # Many edges agree in all of these, so the rule is checked once for each combination.
        case = (type(edge), *edge.details.values(), sizes)
        if case in self._fitting:
            return
        for rule in edge.size_rule(sizes):
            if decide(rule, Ranges()) is False:
                needed = "" if rule == false else f"; the sizes must satisfy {rule}"
                raise VerifyError(
                    f"{edge}: sizes {sizes.upstream} upstream and {sizes.downstream} downstream "
                    f"break its size rule{needed}; correct the sizes"
                )
        self._fitting.add(case)

    def disconnect(self, edge: Edge) -> None:
        """Remove an edge from the graph.

        Raises:
            VerifyError: the graph lacks the edge.
        """
        try:
            self._edges.remove(edge)
        except ValueError:
            raise VerifyError(
                f"{edge}: the graph has no such edge to disconnect; give one of the graph's edges"
            ) from None

    def remove(self, name: DimensionLike) -> None:
        """Remove a dimension from the graph.

        Raises:
            VerifyError: the graph lacks the dimension, or has an edge that connects it.
        """
        key = name if isinstance(name, str) else name.id
        for edge in self._edges:
            if key in edge.upstream or key in edge.downstream:
                raise VerifyError(
                    f"'{key}' cannot be removed, because {edge} connects it; disconnect the edge "
                    "first"
                )
        if self._dimensions.pop(key, None) is None:
            raise VerifyError(
                f"there is no dimension '{key}' to remove; give the id of a dimension of this graph"
            )

    def replace(self, dimension: D) -> D:
        """Replace the dimension with the same id as `dimension`; returns the new dimension.

        Raises:
            VerifyError: no dimension has that id, or the new size breaks the size rule of an edge.
        """
        if dimension.id not in self._dimensions:
            raise VerifyError(
                f"there is no dimension '{dimension.id}' to replace; add it with add(), or give a "
                "dimension whose id is in the graph"
            )
        before = self._dimensions[dimension.id]
        self._dimensions[dimension.id] = dimension
        try:
            for edge in self._edges:
                if dimension.id in edge.upstream or dimension.id in edge.downstream:
                    self._check_sizes(edge)
        except VerifyError:
            self._dimensions[dimension.id] = before
            raise
        return dimension

    def finish(self) -> CoordinateGraph:
        """The graph with all changes so far; without new changes, the result of the last call.

        Raises:
            VerifyError: the edges form a cycle.
        """
        latest = self._latest
        dimensions, edges = tuple(self._dimensions.values()), tuple(self._edges)
        if dimensions == tuple(latest) and edges == latest.edges:
            return latest
        graph = CoordinateGraph(dimensions, edges)
        if circle := graph.cycle():
            raise VerifyError(
                f"the edges form a cycle: {' -> '.join(circle)}; disconnect one edge of it"
            )
        self._latest = graph
        return graph
