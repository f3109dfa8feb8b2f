"""The structure of a coordinate graph: dimensions and edges, stored in a networkx graph.

The networkx graph is bipartite, and directed from the tensors (upstream) to workgroups, loops and
threads (downstream). One kind of node is a dimension's id. The other kind is the number of a
coordinate transform, which is an edge with several operands on either side. Arcs lead from upstream
dimensions to the transform, and from the transform to downstream dimensions; an arc's attribute
says at which operand positions the dimension stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from sympy import Expr, Symbol

from coordgraph.coordinates.dimensions import Dimension
from coordgraph.coordinates.edges import Edge, Sizes
from coordgraph.errors import VerifyError
from coordgraph.late import late_module

if TYPE_CHECKING:
    import networkx
else:
    # Commands that list passes or read options make no graph, and networkx takes long to load.
    networkx = late_module("networkx")

__all__ = ["DimensionLike", "Structure"]

DimensionLike = str | Dimension
"""A dimension, or the id of a dimension."""
D = TypeVar("D", bound=Dimension)
Node = str | int
"""A node of the networkx graph: a dimension's id, or the position of an edge in
`Structure.edges`."""
Operands = dict[str, tuple[int, ...]]
"""Attributes of an arc of the networkx graph between a dimension and a coordinate transform:
`operands` has the positions of the dimension among the transform's operands on that side."""
ONLY: Operands = {"operands": (0,)}
"""Attributes of an arc of the networkx graph between a dimension and a coordinate transform, if the
dimension is the transform's only upstream or only downstream operand, which has position 0."""
Given = frozenset[tuple[str, int | None]]
"""Ids of dimensions whose indices are known, each with its index if that is a constant."""

SHOWN = 20
"""Number of dimensions that the error about an unknown dimension lists."""


class Structure:
    """Dimensions and the ordered edges between them, with queries about their connections.

    Args:
        dimensions: the dimensions, with different ids.
        edges: the coordinate transforms between them.
    """

    def __init__(self, dimensions: Iterable[Dimension] = (), edges: Iterable[Edge] = ()) -> None:
        self._dimensions: dict[str, Dimension] = {d.id: d for d in dimensions}
        self._edges: tuple[Edge, ...] = tuple(edges)
        self.cached_definers: dict[tuple[str, Given], dict[str, list[Edge]]] = {}
        """The edges that compute each dimension, by direction and known indices; a cache of
        `coordgraph.coordinates.traverse`."""
        self.cached_paths: dict[tuple[str, Given, tuple[str, ...]], tuple[Edge, ...]] = {}
        """The edges to evaluate, in order, by direction, known indices and wanted dimensions.

        Like `cached_definers`, this is a cache of `coordgraph.coordinates.traverse`.
        """

    @cached_property
    def nx(self) -> networkx.DiGraph[Node]:
        """The graph as a frozen bipartite `networkx.DiGraph`, to which networkx algorithms apply.

        A node is the id of a dimension (with the attributes `dimension`, and `bipartite` = 0) or
        the position of an edge in `edges` (with the attributes `edge`, and `bipartite` = 1). An arc
        has the attribute `operands`: the positions of its dimension among the edge's operands on
        that side.
        """
        return networkx.freeze(_bipartite(self._dimensions, self._edges))

    @property
    def dimensions(self) -> Mapping[str, Dimension]:
        """The dimensions by id, in the order in which they were added."""
        return MappingProxyType(self._dimensions)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges, in the order in which they were added."""
        return self._edges

    def __getitem__(self, name: DimensionLike) -> Dimension:
        key = name.id if isinstance(name, Dimension) else name
        if not isinstance(key, str):
            raise VerifyError(f"{name!r} is no dimension; give an id, such as 'A.0'")
        try:
            return self._dimensions[key]
        except KeyError:
            raise VerifyError(f"there is no dimension '{key}'{self._suggest(key)}") from None

    def listed(self, names: DimensionLike | Iterable[DimensionLike], what: str) -> list[Dimension]:
        """The dimensions that an argument lists; a single id or `Dimension` becomes a list of one.

        Args:
            names: dimensions, or their ids.
            what: the name of the argument in error messages.

        Raises:
            VerifyError: the graph lacks one of the dimensions, or `names` is neither a dimension
                nor a list of dimensions.
        """
        if isinstance(names, str | Dimension):
            return [self[names]]
        if isinstance(names, Mapping) or not isinstance(names, Iterable):
            raise VerifyError(
                f"{what} = {names!r} is no list of dimensions; give ids, such as ['A.0', 'A.1']"
            )
        return [self[name] for name in names]

    def __contains__(self, name: object) -> bool:
        return (name.id if isinstance(name, Dimension) else name) in self._dimensions

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self._dimensions.values())

    def __len__(self) -> int:
        return len(self._dimensions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Structure):
            return NotImplemented
        return self._dimensions == other._dimensions and self._edges == other._edges

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((tuple(self._dimensions.values()), self._edges))

    def __reduce__(self) -> tuple[Any, ...]:
        # Do not pickle the cached hash, because hashes of strings differ between processes.
        return type(self), (tuple(self), self._edges)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} dimensions, {len(self._edges)} edges>"

    def symbol(self, name: DimensionLike) -> Symbol:
        """The symbol that stands for the index along a dimension."""
        return self[name].symbol

    def size(self, name: DimensionLike) -> Expr | None:
        """The size of a dimension, or None for a dimension without a size.

        A loop with a varying trip count has no size.
        """
        return self[name].size

    def sizes(self, edge: Edge) -> Sizes:
        """The sizes of an edge's upstream and downstream operands, in operand order."""
        return Sizes(
            tuple(self[name].size for name in edge.upstream),
            tuple(self[name].size for name in edge.downstream),
        )

    def edges_below(self, name: DimensionLike) -> tuple[Edge, ...]:
        """The edges with the dimension `name` as an upstream operand."""
        return self._below.get(self[name].id, ())

    def edges_above(self, name: DimensionLike) -> tuple[Edge, ...]:
        """The edges with the dimension `name` as a downstream operand."""
        return self._above.get(self[name].id, ())

    @cached_property
    def _below(self) -> dict[str, tuple[Edge, ...]]:
        return _by_operand((edge, edge.upstream) for edge in self._edges)

    @cached_property
    def _above(self) -> dict[str, tuple[Edge, ...]]:
        return _by_operand((edge, edge.downstream) for edge in self._edges)

    def of_kind(self, kind: type[D], **details: Any) -> tuple[D, ...]:
        """The dimensions of a class whose fields have given values: `of_kind(User, tensor="A")`.

        Args:
            kind: the class of dimension.
            details: the required values of the dimensions' fields, by field name.
        """
        return tuple(
            d
            for d in self
            if isinstance(d, kind) and all(getattr(d, k) == v for k, v in details.items())
        )

    def dangling(self, kind: type[Dimension]) -> tuple[Dimension, ...]:
        """The dimensions of a class that are no upstream operand of any edge.

        The dimensions are ordered depth first from the tensors. So if a pass adds an edge from a
        dangling dimension to a new dimension, the new dimension takes the position of the dangling
        one in the result.
        """
        ends = (d for d in self._depth_first if d.id not in self._below)
        return tuple(d for d in ends if isinstance(d, kind))

    @cached_property
    def _depth_first(self) -> tuple[Dimension, ...]:
        """All dimensions in depth-first order, from those that are no edge's downstream operand.

        The search visits the downstream operands of an edge in operand order.
        """
        tops = [node for node in self._dimensions if node not in self._above]
        # networkx searches from the nodes in the order in which they were added, so dimensions
        # that are no downstream operand of an edge are added first.
        ordered: networkx.DiGraph[Node] = networkx.DiGraph()
        ordered.add_nodes_from(tops)
        ordered.add_edges_from(self.nx.edges)
        found = networkx.dfs_preorder_nodes(ordered)
        return tuple(self._dimensions[node] for node in found if isinstance(node, str))

    def below(self, name: DimensionLike) -> frozenset[str]:
        """The ids of all dimensions downstream of the dimension `name`, away from the tensors."""
        found = networkx.descendants(self.nx, self[name].id)
        return frozenset(node for node in found if isinstance(node, str))

    def above(self, name: DimensionLike) -> frozenset[str]:
        """The ids of all dimensions upstream of the dimension `name`, toward the tensors."""
        found = networkx.ancestors(self.nx, self[name].id)
        return frozenset(node for node in found if isinstance(node, str))

    def is_acyclic(self) -> bool:
        """Whether the coordinate graph has no cycle."""
        return networkx.is_directed_acyclic_graph(self.nx)

    def cycle(self) -> tuple[str, ...]:
        """The ids of the dimensions on one cycle of the graph, in order; () if it has none."""
        if self.is_acyclic():
            return ()
        arcs = networkx.find_cycle(self.nx)
        return tuple(start for start, *_ in arcs if isinstance(start, str))

    def layers(self) -> tuple[tuple[str, ...], ...]:
        """The ids of dimensions, grouped by the length of the longest path to the dimension.

        Paths begin at dimensions that are no downstream operand of an edge, such as tensors and
        allocations of shared memory; the first group has these dimensions.
        """
        generations = networkx.topological_generations(self.nx)
        found = (tuple(n for n in nodes if isinstance(n, str)) for nodes in generations)
        return tuple(layer for layer in found if layer)

    def _suggest(self, key: object) -> str:
        from difflib import get_close_matches

        if close := get_close_matches(str(key), self._dimensions, n=3):
            return f"; did you mean {', '.join(map(repr, close))}?"
        names = [*self._dimensions]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return f"; there are {', '.join(names[:SHOWN])}{more}" if names else ""


def _by_operand(sides: Iterable[tuple[Edge, tuple[str, ...]]]) -> dict[str, tuple[Edge, ...]]:
    """A dictionary from each dimension id to the edges that have the dimension as an operand.

    Args:
        sides: pairs of an edge and the ids of its operands on one side (upstream or downstream).
    """
    found: dict[str, list[Edge]] = {}
    for edge, names in sides:
        for name in dict.fromkeys(names):
            found.setdefault(name, []).append(edge)
    return {name: tuple(edges) for name, edges in found.items()}


def _bipartite(dimensions: Mapping[str, Dimension], edges: Iterable[Edge]) -> Any:
    """Build the bipartite networkx graph that `Structure.nx` describes."""
    graph: networkx.DiGraph[Node] = networkx.DiGraph()
    graph.add_nodes_from((name, {"dimension": d, "bipartite": 0}) for name, d in dimensions.items())
    graph.add_nodes_from((i, {"edge": e, "bipartite": 1}) for i, e in enumerate(edges))
    graph.add_edges_from(_arcs(edges))
    return graph


def _arcs(edges: Iterable[Edge]) -> Iterator[tuple[Node, Node, Operands]]:
    """The arcs of the networkx graph, as (from, to, attributes), for the operands of all edges."""
    for number, edge in enumerate(edges):
        for name, at in _positions(edge.upstream):
            yield name, number, at
        for name, at in _positions(edge.downstream):
            yield number, name, at


def _positions(names: tuple[str, ...]) -> Iterable[tuple[str, Operands]]:
    """(id, attributes of its arc) of each dimension in `names`, an edge's operands on one side.

    A dimension that occurs at several operand positions has only one arc.
    """
    if len(names) == 1:
        return ((names[0], ONLY),)
    found: dict[str, tuple[int, ...]] = {}
    for position, name in enumerate(names):
        found[name] = (*found.get(name, ()), position)
    return [(name, {"operands": at}) for name, at in found.items()]
