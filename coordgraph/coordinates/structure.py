"""The structure of a coordinate graph: dimensions and edges in a networkx graph.

The graph is bipartite and directed from the tensors to the machine. A dimension is a node, named by
its id; an edge of the coordinate graph, which has several operands on either side, is a node too,
named by its number. Arcs lead from upstream dimensions to the edge and from it to downstream ones,
and say which operands of the edge the dimension is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

import networkx
from sympy import Expr, Symbol

from coordgraph.coordinates.dimensions import Dimension
from coordgraph.coordinates.edges import Edge, Sizes
from coordgraph.errors import VerifyError

__all__ = ["DimensionLike", "Structure"]

DimensionLike = str | Dimension
D = TypeVar("D", bound=Dimension)
Node = str | int
"""The id of a dimension, or the number of an edge."""
Operands = dict[str, tuple[int, ...]]
"""Attributes of an arc."""
ONLY: Operands = {"operands": (0,)}


class Structure:
    """Dimensions and the ordered edges between them; `nx` is the graph that holds them."""

    def __init__(self, dimensions: Iterable[Dimension] = (), edges: Iterable[Edge] = ()) -> None:
        self._dimensions: dict[str, Dimension] = {d.id: d for d in dimensions}
        self._edges: tuple[Edge, ...] = tuple(edges)
        self._nx = networkx.freeze(_bipartite(self._dimensions, self._edges))

    @property
    def nx(self) -> networkx.DiGraph[Node]:
        """The graph as a frozen, bipartite `networkx.DiGraph`, for any algorithm of networkx.

        Nodes are ids of dimensions (attributes `dimension`, and `bipartite` = 0), and the positions
        of edges in `edges` (`edge`, and `bipartite` = 1). An arc has `operands`: the positions of
        its dimension among the edge's operands on that side.
        """
        return self._nx

    @property
    def dimensions(self) -> Mapping[str, Dimension]:
        """Id to dimension, in the order of adding."""
        return MappingProxyType(self._dimensions)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges, in the order in which they were added."""
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
        if not isinstance(other, Structure):
            return NotImplemented
        return self._dimensions == other._dimensions and self._edges == other._edges

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((tuple(self._dimensions.values()), self._edges))

    def __reduce__(self) -> tuple[Any, ...]:
        # Not the hash: that of a string differs from process to process.
        return type(self), (tuple(self), self._edges)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} dimensions, {len(self._edges)} edges>"

    def symbol(self, name: DimensionLike) -> Symbol:
        """The symbol that stands for the index along a dimension."""
        return self[name].symbol

    def size(self, name: DimensionLike) -> Expr | None:
        """The size of a dimension, None where nothing reads it."""
        return self[name].size

    def sizes(self, edge: Edge) -> Sizes:
        """The sizes of both sides of an edge."""
        return Sizes(
            tuple(self[name].size for name in edge.upstream),
            tuple(self[name].size for name in edge.downstream),
        )

    def edges_below(self, name: DimensionLike) -> tuple[Edge, ...]:
        """The edges that lead from a dimension toward the machine."""
        return self._at(self._nx.successors(self[name].id))

    def edges_above(self, name: DimensionLike) -> tuple[Edge, ...]:
        """The edges that lead from a dimension toward the tensors."""
        return self._at(self._nx.predecessors(self[name].id))

    def _at(self, nodes: Iterable[Node]) -> tuple[Edge, ...]:
        return tuple(self._edges[node] for node in nodes if isinstance(node, int))

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
        below one of them leaves the new one at the same position.
        """
        ends = (d for d in self._depth_first if not self._nx.out_degree(d.id))
        return tuple(d for d in ends if isinstance(d, kind))

    @cached_property
    def _depth_first(self) -> tuple[Dimension, ...]:
        """All dimensions, depth first from those that nothing is above, operands in order."""
        tops = [node for node in self._dimensions if not self._nx.in_degree(node)]
        # networkx starts from the nodes in their order: the tops have to be the first.
        ordered: networkx.DiGraph[Node] = networkx.DiGraph()
        ordered.add_nodes_from(tops)
        ordered.add_edges_from(self._nx.edges)
        found = networkx.dfs_preorder_nodes(ordered)
        return tuple(self._dimensions[node] for node in found if isinstance(node, str))

    def below(self, name: DimensionLike) -> frozenset[str]:
        """The ids of all dimensions that edges lead to from this one, toward the machine."""
        found = networkx.descendants(self._nx, self[name].id)
        return frozenset(node for node in found if isinstance(node, str))

    def above(self, name: DimensionLike) -> frozenset[str]:
        """The ids of all dimensions from which edges lead to this one, toward the tensors."""
        found = networkx.ancestors(self._nx, self[name].id)
        return frozenset(node for node in found if isinstance(node, str))

    def is_acyclic(self) -> bool:
        """Whether no dimension lies below itself."""
        return networkx.is_directed_acyclic_graph(self._nx)

    def cycle(self) -> tuple[str, ...]:
        """The ids of dimensions of which each lies below the one before; () where none do."""
        if self.is_acyclic():
            return ()
        arcs = networkx.find_cycle(self._nx)
        return tuple(start for start, *_ in arcs if isinstance(start, str))

    def layers(self) -> tuple[tuple[str, ...], ...]:
        """The ids of dimensions by the longest way to them from the tensors, tensors first."""
        generations = networkx.topological_generations(self._nx)
        found = (tuple(n for n in nodes if isinstance(n, str)) for nodes in generations)
        return tuple(layer for layer in found if layer)

    def _suggest(self, key: object) -> str:
        from difflib import get_close_matches

        close = get_close_matches(str(key), self._dimensions, n=3)
        return f"; did you mean {', '.join(map(repr, close))}?" if close else ""


def _bipartite(dimensions: Mapping[str, Dimension], edges: Iterable[Edge]) -> Any:
    """The networkx graph, see `Structure.nx`."""
    graph: networkx.DiGraph[Node] = networkx.DiGraph()
    graph.add_nodes_from((name, {"dimension": d, "bipartite": 0}) for name, d in dimensions.items())
    graph.add_nodes_from((i, {"edge": e, "bipartite": 1}) for i, e in enumerate(edges))
    graph.add_edges_from(_arcs(edges))
    return graph


def _arcs(edges: Iterable[Edge]) -> Iterator[tuple[Node, Node, Operands]]:
    for number, edge in enumerate(edges):
        for name, at in _positions(edge.upstream):
            yield name, number, at
        for name, at in _positions(edge.downstream):
            yield number, name, at


def _positions(names: tuple[str, ...]) -> Iterable[tuple[str, Operands]]:
    """For each dimension of a side the attributes of its arc; it may be several operands."""
    if len(names) == 1:
        return ((names[0], ONLY),)
    found: dict[str, tuple[int, ...]] = {}
    for position, name in enumerate(names):
        found[name] = (*found.get(name, ()), position)
    return [(name, {"operands": at}) for name, at in found.items()]
