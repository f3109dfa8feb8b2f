"""The coordinate graph: dimensions tied by edges, immutable."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

import networkx as nx
from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean, false

from coordgraph.coordinates.dimensions import Dimension
from coordgraph.coordinates.edges import Edge, Sizes
from coordgraph.coordinates.rules import decide
from coordgraph.coordinates.traverse import Direction, Known, derivative, solve
from coordgraph.errors import VerifyError
from coordgraph.integers import Ranges

__all__ = ["CoordinateEditor", "CoordinateGraph", "DimensionLike"]

DimensionLike = str | Dimension
D = TypeVar("D", bound=Dimension)
_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*\Z")


class CoordinateGraph:
    """Dimensions and the ordered hyperedges between them.

    Build one with `CoordinateGraph().edit()`; every edit makes a new graph. Ask it for indices
    with `reverse` (machine to tensor) and `forward` (tensor to machine).
    """

    __slots__ = ("_above", "_below", "_dimensions", "_edges", "_hash")

    def __init__(self, dimensions: Iterable[Dimension] = (), edges: Iterable[Edge] = ()) -> None:
        self._dimensions: dict[str, Dimension] = {d.id: d for d in dimensions}
        self._edges: tuple[Edge, ...] = tuple(edges)
        self._above: dict[str, list[Edge]] = {}
        self._below: dict[str, list[Edge]] = {}
        for edge in self._edges:
            for name in dict.fromkeys(edge.upstream):
                self._below.setdefault(name, []).append(edge)
            for name in dict.fromkeys(edge.downstream):
                self._above.setdefault(name, []).append(edge)
        self._hash: int | None = None

    @property
    def dimensions(self) -> Mapping[str, Dimension]:
        """Id to dimension, in the order of adding."""
        return MappingProxyType(self._dimensions)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges in the order of adding."""
        return self._edges

    def __getitem__(self, name: DimensionLike) -> Dimension:
        key = name if isinstance(name, str) else name.id
        try:
            return self._dimensions[key]
        except KeyError:
            raise VerifyError(f"there is no dimension '{key}'{self._suggest(key)}") from None

    def __contains__(self, name: object) -> bool:
        return (name.id if isinstance(name, Dimension) else name) in self._dimensions

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self._dimensions.values())

    def __len__(self) -> int:
        return len(self._dimensions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CoordinateGraph):
            return NotImplemented
        return self._dimensions == other._dimensions and self._edges == other._edges

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((tuple(self._dimensions.values()), self._edges))
        return self._hash

    def __repr__(self) -> str:
        return f"<CoordinateGraph: {len(self)} dimensions, {len(self._edges)} edges>"

    def symbol(self, name: DimensionLike) -> Symbol:
        """The symbol that stands for the index along a dimension."""
        return self[name].symbol

    def size(self, name: DimensionLike) -> Expr | None:
        """The size of a dimension, None where nothing reads it."""
        return self[name].size

    def edges_below(self, name: DimensionLike) -> tuple[Edge, ...]:
        """The edges that lead from a dimension toward the machine."""
        return tuple(self._below.get(self[name].id, ()))

    def edges_above(self, name: DimensionLike) -> tuple[Edge, ...]:
        """The edges that lead from a dimension toward the tensors."""
        return tuple(self._above.get(self[name].id, ()))

    def of_kind(self, kind: type[D], **details: Any) -> tuple[D, ...]:
        """The dimensions of a kind, and with these fields: `of_kind(User, tensor="A")`."""
        return tuple(
            d
            for d in self
            if isinstance(d, kind) and all(getattr(d, k) == v for k, v in details.items())
        )

    def dangling(self, kind: type[Dimension]) -> tuple[Dimension, ...]:
        """The dimensions of a kind that no edge ties to the machine yet.

        In the order in which they hang under the tensors, so that a pass that puts a new dimension
        below one of them leaves the new one in its place.
        """
        hanging = (d for d in self._from_above() if d.id not in self._below)
        return tuple(d for d in hanging if isinstance(d, kind))

    def _from_above(self) -> Iterator[Dimension]:
        """All dimensions, depth first from those that nothing is above, operands in order."""
        seen: set[str] = set()
        stack = [name for name in reversed(self._dimensions) if name not in self._above]
        while stack:
            if (name := stack.pop()) in seen:
                continue
            seen.add(name)
            yield self._dimensions[name]
            for edge in reversed(self._below.get(name, ())):
                stack += reversed(edge.downstream)

    def below(self, name: DimensionLike) -> frozenset[str]:
        """The ids of all dimensions that edges lead to from this one, toward the machine."""
        found: set[str] = set()
        stack = [self[name].id]
        while stack:
            for edge in self._below.get(stack.pop(), ()):
                stack += [d for d in edge.downstream if d not in found]
                found.update(edge.downstream)
        return frozenset(found)

    def is_acyclic(self) -> bool:
        """Whether no dimension lies below itself."""
        above = {
            name: [upper for edge in edges for upper in edge.upstream]
            for name, edges in self._above.items()
        }
        try:
            TopologicalSorter(above).prepare()
        except CycleError:
            return False
        return True

    def sizes(self, edge: Edge) -> Sizes:
        """The sizes of both sides of an edge."""
        return Sizes(
            tuple(self[name].size for name in edge.upstream),
            tuple(self[name].size for name in edge.downstream),
        )

    def edit(self) -> CoordinateEditor:
        """A context manager that builds the next graph: `with g.edit() as e: …; e.graph`."""
        return CoordinateEditor(self)

    def networkx(self) -> nx.DiGraph[Any]:
        """Bipartite view, upstream to downstream: ids of dimensions, and `(position, kind)`."""
        view: nx.DiGraph[Any] = nx.DiGraph()
        for dimension in self:
            view.add_node(dimension.id, dimension=dimension)
        for position, edge in enumerate(self._edges):
            node = (position, edge.kind)
            view.add_node(node, edge=edge)
            for operand, name in enumerate(edge.upstream):
                view.add_edge(name, node, operand=operand)
            for operand, name in enumerate(edge.downstream):
                view.add_edge(node, name, operand=operand)
        return view

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
        """`base`, and that every dimension's symbol is inside its size."""
        sized = ((d.symbol, d.size) for d in self if d.size is not None)
        return (base or Ranges()).with_indices(sized)

    def mermaid(self, **options: Any) -> str:
        """The graph as mermaid text; options as in `coordgraph.show.mermaid.coordinates`."""
        from coordgraph.show.mermaid import coordinates

        return coordinates(self, **options)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        text = self.mermaid()
        return {"text/plain": repr(self), "text/vnd.mermaid": text, "text/markdown": _fence(text)}

    def _suggest(self, key: object) -> str:
        from difflib import get_close_matches

        close = get_close_matches(str(key), self._dimensions, n=3)
        return f"; did you mean {', '.join(map(repr, close))}?" if close else ""


def _fence(text: str) -> str:
    return f"```mermaid\n{text}\n```"


class CoordinateEditor:
    """Collects changes; `graph` holds the result once the `with` block has ended."""

    def __init__(self, graph: CoordinateGraph) -> None:
        self._dimensions = dict(graph.dimensions)
        self._edges = list(graph.edges)
        self._ranges = Ranges()
        self.graph = graph

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
        for rule in edge.size_rule(sizes):
            if decide(rule, self._ranges) is False:
                needed = "" if rule == false else f"; needed is {rule}"
                raise VerifyError(
                    f"{edge}: its sizes break its rule: {sizes.upstream} upstream, "
                    f"{sizes.downstream} downstream{needed}"
                )

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
        """The next graph; VerifyError where edges go round in a circle."""
        graph = CoordinateGraph(self._dimensions.values(), self._edges)
        if not graph.is_acyclic():
            circle = [str(a) for a, _ in nx.find_cycle(graph.networkx()) if isinstance(a, str)]
            raise VerifyError(f"the edges go round in a circle: {' -> '.join(circle)}")
        return graph
