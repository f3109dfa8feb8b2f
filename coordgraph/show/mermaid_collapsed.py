"""Overview diagrams of large graphs.

Mermaid shows an error in place of a diagram with more arrows than `MOST_ARROWS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from coordgraph.control.graph import ControlEdge, ControlGraph
from coordgraph.coordinates.dimensions import Dimension
from coordgraph.coordinates.edges import Edge
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.show.changed import scope_of
from coordgraph.show.mermaid_picture import Picture

__all__ = ["MOST_ARROWS", "draw_scopes", "operations_inside"]

MOST_ARROWS = 500
"""The largest number of arrows that Mermaid draws: its option `maxEdges`, which a diagram cannot
change."""


def draw_scopes(
    picture: Picture,
    dimensions: Sequence[Dimension],
    edges: Sequence[Edge],
    before: CoordinateGraph,
) -> bool:
    """Draw one node for each scope, if there are more arrows than Mermaid draws.

    A scope has the dimensions whose ids are equal up to the first dot. One arrow represents all
    edges between two scopes. If more than `MOST_ARROWS` arrows remain, those that represent the
    fewest edges are left out.

    Args:
        picture: the diagram.
        dimensions: the dimensions to draw.
        edges: the edges among them.
        before: an earlier version of the graph; scopes with a new or changed dimension, and arrows
            for a new edge, are highlighted.

    Returns:
        Whether the scopes were drawn. Otherwise there are few enough arrows, and nothing was drawn.
    """
    count = sum(map(_arrows, edges))
    if count <= MOST_ARROWS:
        return False
    sizes = Counter(scope_of(d.id) for d in dimensions)
    new = {scope_of(d.id) for d in dimensions if before.dimensions.get(d.id) != d}
    known = Counter(before.edges)
    inside, between = Counter[str](), Counter[tuple[str, str]]()
    new_arrows = set[tuple[str, str]]()
    for edge in edges:
        known[edge] -= 1
        for pair in {(scope_of(u), scope_of(d)) for u in edge.upstream for d in edge.downstream}:
            if pair[0] == pair[1]:
                inside[pair[0]] += 1
            else:
                between[pair] += 1
                new_arrows |= {pair} if known[edge] < 0 else set()
    drawn = between.most_common(MOST_ARROWS)
    picture.comment(
        f"the graph has {count} arrows, and Mermaid draws {MOST_ARROWS}: each node is a scope "
        "(dimensions whose ids are equal up to the first dot); only=[...] draws single dimensions"
    )
    if missing := len(between) - len(drawn):
        picture.comment(f"{missing} arrows between scopes are left out")
    for scope, size in sizes.items():
        node = picture.node(scope, "([", _scope(scope, size, inside[scope]), "])")
        if scope in new:
            picture.added.append(node)
    for (start, end), number in drawn:
        picture.arrow(start, end, f"{number} {_plural('edge', number)}", (start, end) in new_arrows)
    return True


def _arrows(edge: Edge) -> int:
    """How many arrows a diagram has for an edge: one, or one per operand if there are over two."""
    operands = len(edge.upstream) + len(edge.downstream)
    return 1 if operands == 2 else operands


def _scope(scope: str, size: int, edges: int) -> Iterable[str]:
    """The lines of the label of the node that stands for a scope.

    A scope has the dimensions whose ids are equal up to the first dot.

    Args:
        scope: the name of the scope.
        size: how many dimensions the scope has.
        edges: how many edges connect dimensions of the scope.
    """
    if size == 1:
        return (scope,)
    return (f"{scope}.…", f"{size} dimensions, {edges} {_plural('edge', edges)}")


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def operations_inside(graph: ControlGraph) -> dict[int, int]:
    """Choose the operations to draw: a dictionary from their ids to numbers of hidden operations.

    The number counts the operations inside the operation that are not drawn. All operations are
    drawn if Mermaid draws that many arrows. Otherwise operations that are nested too deeply are
    left out. If the outermost operations alone are too many, the last of them are left out as well.
    """
    depths = _depths(graph)
    depth = max(depths)
    while depth > 1 and sum(d <= depth for d in depths) > MOST_ARROWS + 1:
        depth -= 1
    drawn = [i for i, d in enumerate(depths) if d <= depth][: MOST_ARROWS + 1]
    found, outer = dict.fromkeys(drawn, 0), 0
    for number, d in enumerate(depths):
        if number in found:
            outer = number
            continue
        if d <= depth:  # an outermost operation that is not drawn: count it in the kernel's label
            outer = 0
        found[outer] += 1
    return found


def _depths(graph: ControlGraph) -> list[int]:
    """For each operation, by id, the number of operations that enclose it."""
    depths = [0] * len(graph.operations)
    for start, end, kind in graph.edges:
        depths[end] = depths[start] + (kind is not ControlEdge.SEQUENCE)
    return depths
