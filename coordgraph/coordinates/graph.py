"""The coordinate graph: dimensions tied by edges, immutable."""

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
    """Dimensions and the ordered hyperedges between them.

    Build one with `CoordinateGraph().edit()`; every edit makes a new graph. Ask it for indices
    with `reverse` (machine to tensor) and `forward` (tensor to machine).
    """

    def edit(self) -> CoordinateEditor:
        """A context manager that builds the next graph: `with g.edit() as e: …; e.graph`."""
        return CoordinateEditor(self)

    def reverse(
        self,
        known: Known,
        wanted: Iterable[DimensionLike],
        ranges: Ranges | None = None,
    ) -> list[Expr]:
        """Upstream indices from downstream ones, simplified.

        Args:
            known: dimension to value (number or expression), or dimensions that keep their symbol.
            wanted: the dimensions whose index to express.
            ranges: what is known of the symbols; by default, that each is inside its size.

        Raises:
            NoPath: no route leads from the known dimensions to a wanted one.
            AmbiguousPath: two routes define one coordinate that is needed.
            NotInvertible: an edge on the route has no formula in this direction.
        """
        return list(solve(self, Direction.REVERSE, known, wanted, ranges).values)

    def forward(
        self,
        known: Known,
        wanted: Iterable[DimensionLike],
        ranges: Ranges | None = None,
    ) -> list[Expr]:
        """Downstream indices from upstream ones; as `reverse`, the other way."""
        return list(solve(self, Direction.FORWARD, known, wanted, ranges).values)

    def guards(
        self,
        known: Known,
        wanted: Iterable[DimensionLike],
        ranges: Ranges | None = None,
    ) -> Boolean:
        """The condition under which reversed indices are inside their tensors, not in padding."""
        return solve(self, Direction.REVERSE, known, wanted, ranges).guard

    def derivative(
        self,
        wanted: DimensionLike,
        by: DimensionLike,
        known: Known,
        ranges: Ranges | None = None,
    ) -> Expr:
        """How far `wanted` moves when `by` advances by one, from the same formulas."""
        return derivative(self, wanted, by, known, ranges)

    def ranges(self, base: Ranges | None = None) -> Ranges:
        """`base` extended by the range of every dimension's symbol: from 0 to below its size."""
        sized = ((d.symbol, d.size) for d in self if d.size is not None)
        return (base or Ranges()).with_indices(sized)

    def mermaid(self, **options: Any) -> str:
        """The graph as mermaid text; options as in `coordgraph.show.mermaid.coordinates`."""
        return MERMAID(self, **options)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        text = self.mermaid()
        return {"text/plain": repr(self), "text/vnd.mermaid": text, "text/markdown": _fence(text)}


def _fence(text: str) -> str:
    return f"```mermaid\n{text}\n```"


MERMAID = Hook[..., str]("CoordinateGraph.mermaid", "coordgraph.show.mermaid")


class CoordinateEditor:
    """Collects changes; `graph` holds the result once the `with` block has ended."""

    def __init__(self, graph: CoordinateGraph) -> None:
        self._dimensions = dict(graph.dimensions)
        self._edges = list(graph.edges)
        self._fitting: set[tuple[Any, ...]] = set()
        """Kinds of edges with sizes that do not break their rule."""
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
            raise VerifyError(f"there is no dimension '{name}'") from None

    def add(self, dimension: D) -> D:
        """Add a dimension; its id must be new."""
        if not _ID.match(dimension.id):
            raise VerifyError(
                f"'{dimension.id}' is not a dimension id: letters, digits and _ in dotted parts"
            )
        if dimension.id in self._dimensions:
            raise VerifyError(f"there is a dimension '{dimension.id}' already; use fresh()")
        self._dimensions[dimension.id] = dimension
        return dimension

    def fresh(self, name: str) -> str:
        """`name`, or `name_2`, `name_3`, … where it is taken."""
        candidate, number = name, 1
        while candidate in self._dimensions:
            number += 1
            candidate = f"{name}_{number}"
        return candidate

    def connect(self, edge: Edge) -> Edge:
        """Add an edge; its dimensions must be there and its size rule must not be broken."""
        missing = [n for n in (*edge.upstream, *edge.downstream) if n not in self._dimensions]
        if missing:
            raise VerifyError(f"{edge}: there is no dimension {', '.join(map(repr, missing))}")
        self._check_sizes(edge)
        self._edges.append(edge)
        return edge

    def _check_sizes(self, edge: Edge) -> None:
        sizes = Sizes(
            tuple(self._dimensions[name].size for name in edge.upstream),
            tuple(self._dimensions[name].size for name in edge.downstream),
        )
        # The rule reads nothing else, and many edges of a graph are alike.
        case = (type(edge), *edge.details.values(), sizes)
        if case in self._fitting:
            return
        for rule in edge.size_rule(sizes):
            if decide(rule, Ranges()) is False:
                needed = "" if rule == false else f"; needed is {rule}"
                raise VerifyError(
                    f"{edge}: its sizes break its rule: {sizes.upstream} upstream, "
                    f"{sizes.downstream} downstream{needed}"
                )
        self._fitting.add(case)

    def disconnect(self, edge: Edge) -> None:
        """Take an edge out."""
        try:
            self._edges.remove(edge)
        except ValueError:
            raise VerifyError(f"{edge}: there is no such edge") from None

    def remove(self, name: DimensionLike) -> None:
        """Take a dimension out; no edge may touch it any more."""
        key = name if isinstance(name, str) else name.id
        for edge in self._edges:
            if key in edge.upstream or key in edge.downstream:
                raise VerifyError(f"'{key}' cannot be removed: {edge} touches it")
        if self._dimensions.pop(key, None) is None:
            raise VerifyError(f"there is no dimension '{key}'")

    def replace(self, dimension: D) -> D:
        """Put another record in the place of the dimension with the same id; its edges must fit."""
        if dimension.id not in self._dimensions:
            raise VerifyError(f"there is no dimension '{dimension.id}'")
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
        """The next graph, or the last one where nothing has changed since.

        Raises:
            VerifyError: edges go round in a circle.
        """
        latest = self._latest
        dimensions, edges = tuple(self._dimensions.values()), tuple(self._edges)
        if dimensions == tuple(latest) and edges == latest.edges:
            return latest
        graph = CoordinateGraph(dimensions, edges)
        if circle := graph.cycle():
            raise VerifyError(f"the edges go round in a circle: {' -> '.join(circle)}")
        self._latest = graph
        return graph
