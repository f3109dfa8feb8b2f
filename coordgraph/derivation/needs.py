"""Find the coordinates from which an index is computed, and which of them the caller must give."""

from __future__ import annotations

from collections.abc import Mapping

from sympy import Expr

from coordgraph.coordinates.edges import Edge
from coordgraph.coordinates.structure import Structure
from coordgraph.coordinates.traverse import Direction
from coordgraph.errors import AmbiguousPath, NotInvertible
from coordgraph.integers import Ranges

__all__ = ["needs_of", "starts_of"]


def needs_of(edge: Edge, direction: Direction, known: Mapping[str, Expr]) -> tuple[str, ...]:
    """The dimensions whose index an edge reads when it is evaluated in a direction."""
    return edge.reverse_needs(dict(known)) if direction is Direction.REVERSE else edge.upstream


def starts_of(
    graph: Structure,
    direction: Direction,
    wanted: str,
    known: Mapping[str, Expr],
    ranges: Ranges,
) -> tuple[list[str], list[str]]:
    """The coordinates that the path to a dimension starts from.

    Args:
        graph: the coordinate graph.
        direction: whether the path leads to the tensors (reverse) or from them (forward).
        wanted: the id of the dimension.
        known: the known indices, by dimension.
        ranges: the known ranges of the launch parameters.

    Returns:
        The known coordinates that the path reads, and the missing ones: dimensions that no edge
        computes in this direction.

    Raises:
        AmbiguousPath: several edges compute an index on the path, and the known indices are enough
            for none of them.
    """
    search = _Search(graph, direction, known, ranges)
    found, parted = search.starts(wanted)
    if parted:
        raise AmbiguousPath(search.choice(wanted, parted))
    return [n for n in known if n in found], [n for n in found if n not in known]


class _Search:
    """A search from a dimension to the coordinates that its index depends on."""

    def __init__(
        self,
        graph: Structure,
        direction: Direction,
        known: Mapping[str, Expr],
        ranges: Ranges,
    ) -> None:
        self.graph, self.direction, self.known, self.ranges = graph, direction, known, ranges
        self._derivable: dict[str, bool] = {}
        self._invertible: dict[int, bool] = {}

    def edges_to(self, name: str) -> tuple[Edge, ...]:
        """The edges that compute a dimension's index in the direction of the search."""
        reverse = self.direction is Direction.REVERSE
        edges = self.graph.edges_below(name) if reverse else self.graph.edges_above(name)
        return tuple(filter(self.invertible, edges))

    def invertible(self, edge: Edge) -> bool:
        """Whether an edge can be evaluated in the direction of the search.

        For example, an index cannot be split by strides if different operand indices may have the
        same strided sum. The caller must then give the indices that the edge would compute; in the
        kernel, an operation of the control graph sets them.
        """
        if id(edge) not in self._invertible:
            needs = needs_of(edge, self.direction, self.known)
            reverse = self.direction is Direction.REVERSE
            reads = edge.downstream if reverse else edge.upstream
            indices = [
                self.known.get(name, self.graph.symbol(name)) if name in needs else None
                for name in reads
            ]
            try:
                if reverse:
                    edge.reverse(indices, self.graph.sizes(edge), self.ranges)
                else:
                    given = [index for index in indices if index is not None]
                    edge.forward(given, self.graph.sizes(edge), self.ranges)
                self._invertible[id(edge)] = True
            except NotInvertible:
                self._invertible[id(edge)] = False
        return self._invertible[id(edge)]

    def derivable(self, name: str) -> bool:
        """Whether the index along a dimension can be computed from the known indices."""
        if name not in self._derivable:
            self._derivable[name] = name in self.known or any(map(self.ready, self.edges_to(name)))
        return self._derivable[name]

    def ready(self, edge: Edge) -> bool:
        """Whether all indices that an edge reads can be computed from the known indices."""
        return all(map(self.derivable, needs_of(edge, self.direction, self.known)))

    def starts(self, *wanted: str) -> tuple[list[str], list[str]]:
        """The coordinates at which the paths to `wanted` start, and the ambiguous dimensions.

        A dimension is ambiguous if several edges compute its index, and the known indices are
        enough for none of them.
        """
        starts, parted = dict[str, None](), dict[str, None]()
        seen, stack = set[str](), [*reversed(wanted)]
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            edges = self.edges_to(name)
            if name in self.known or not edges:
                starts[name] = None
                continue
            # Several edges that can be evaluated are no error here: the traversal that evaluates
            # the path refuses such a graph later and names the edges.
            chosen = [edge for edge in edges if self.ready(edge)] or edges
            if len(chosen) > 1 and not self.ready(chosen[0]):
                parted[name] = None
                continue
            for edge in chosen:
                stack += reversed(needs_of(edge, self.direction, self.known))
        return [*starts], [*parted]

    def choice(self, wanted: str, parted: list[str]) -> str:
        """The error message about a dimension whose index several edges compute.

        The message is about the first dimension in `parted`, and names the indices to give.

        Args:
            wanted: the id of the dimension whose index is to be computed.
            parted: the ids of all dimensions whose index several edges compute, as `starts` returns
                them.
        """
        name = parted[0]
        ways: list[str] = []
        for edge in self.edges_to(name):
            starts, more = self.starts(*needs_of(edge, self.direction, self.known))
            lacking = [n for n in (*starts, *more) if n not in self.known]
            ways.append(f"{', '.join(lacking)} (by {edge})")
        return (
            f"the index '{wanted}' depends on '{name}', which {len(ways)} edges can compute; give "
            f"'{name}' itself, or the coordinates that one of the edges needs: {'; or '.join(ways)}"
        )
