"""Find the indices inside a macro tile over which an operation on the tile's elements loops."""

from __future__ import annotations

from collections.abc import Mapping

from sympy import Expr

from coordgraph.coordinates.dimensions import Dimension, MacroTileIndex
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.errors import EvaluationError

__all__ = ["bound_below", "free_indices", "indices_below", "size_of"]


def bound_below(graph: CoordinateGraph, axis: Dimension, known: Mapping[str, Expr]) -> list[str]:
    """Ids of the dimensions directly downstream of `axis` that have a value in `known`.

    Args:
        graph: the coordinate graph.
        axis: the dimension of an index inside a macro tile.
        known: values of dimensions, by id.
    """
    return [d for edge in graph.edges_below(axis) for d in edge.downstream if d in known]


def free_indices(
    graph: CoordinateGraph, known: Mapping[str, Expr], others: frozenset[str]
) -> list[MacroTileIndex]:
    """The indices inside macro tiles that have no value in `known`; operations iterate over them.

    Where a tile is cut into shares and the number of the share has a value in `known`, the index
    inside the share replaces the index inside the tile.

    Args:
        graph: the coordinate graph.
        known: values of dimensions, by id.
        others: ids of dimensions to leave out, which index macro tiles of other shapes.
    """
    indices = [axis for axis in graph.of_kind(MacroTileIndex) if axis.id not in others]
    cut = {axis.id for axis in indices if bound_below(graph, axis, known)}
    above = {
        axis.id: {u for edge in graph.edges_above(axis) for u in edge.upstream} for axis in indices
    }
    parts = {axis for axis, up in above.items() if up & above.keys()}
    return [
        axis
        for axis in indices
        if axis.id not in known
        and axis.id not in cut
        and (axis.id not in parts or above[axis.id] & cut)
    ]


def indices_below(
    graph: CoordinateGraph, user: Dimension, known: Mapping[str, Expr], others: frozenset[str]
) -> list[MacroTileIndex]:
    """The indices inside the macro tiles of tensor `user` that have no value in `known`.

    They are sorted by the axis of the tensor.

    Args:
        graph: the coordinate graph.
        user: the tensor.
        known: values of dimensions, by id.
        others: ids of dimensions to leave out, which index macro tiles of other shapes.
    """
    below = graph.below(user)
    found = (d for d in free_indices(graph, known, others) if d.id in below)
    return sorted(found, key=lambda d: -1 if d.axis is None else d.axis)


def size_of(dimension: Dimension) -> Expr:
    """The size of a dimension.

    Raises:
        EvaluationError: the dimension has no size.
    """
    if dimension.size is None:
        raise EvaluationError(f"the dimension '{dimension.id}' has no size; give it one")
    return dimension.size
