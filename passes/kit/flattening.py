"""Edges from several dimensions (tile numbers, k tiles) to one that counts index combinations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from sympy import Expr, Integer, Symbol

from coordgraph import KernelGraph, PassError
from coordgraph.coordinates.dimensions import Dimension
from coordgraph.coordinates.edges import Concatenate, Edge, Flatten, PassThrough, Ragged
from coordgraph.integers import index_symbol, load, maximum
from coordgraph.kernel import KernelEditor
from coordgraph.products import ragged_edge, tile_plane
from coordgraph.tables import Table, place_of
from passes.kit.tile_work import accumulation_loop

__all__ = [
    "flatten_into",
    "flatten_iterations",
    "number_of",
    "number_of_iterations",
    "why_no_plane",
]


def number_of(graph: KernelGraph, dimensions: tuple[Dimension, ...]) -> Expr:
    """The number of tiles that several tile-number dimensions count together, over all groups.

    Args:
        graph: a graph without a schedule.
        dimensions: dimensions that number tiles along m, n or k, or that number groups, such as
            `graph.dangling`.

    Raises:
        PassError: a tile number has no size, and no table gives the total.
    """
    return _together(graph, dimensions).size


def number_of_iterations(graph: KernelGraph, numbers: tuple[Dimension, ...]) -> Expr:
    """The number of main loop iterations (k tiles) of all output tiles together.

    Args:
        graph: a graph without a schedule.
        numbers: the dimensions that number output tiles.

    Raises:
        PassError: a dimension has no size, and no table gives the total.
    """
    return _together(graph, (*numbers, graph.coordinates[accumulation_loop(graph).dim])).size


def why_no_plane(graph: KernelGraph) -> str | None:
    """Why no pass can reorder the output tiles of a product; None if they can be reordered."""
    if any(d.size is None for d in tile_plane(graph)):
        return (
            "each group has its own numbers of tile rows and tile columns, and the pass orders one "
            "grid of tiles; use it on groups that divide only m or only k"
        )
    return None


def flatten_iterations(
    e: KernelEditor, graph: KernelGraph, numbers: tuple[Dimension, ...], below: str
) -> None:
    """Connect tile numbers and the k tiles of output tiles to one dimension; k varies fastest.

    Args:
        e: the editor of `graph`.
        graph: a graph without a schedule: no edge computes its tile numbers.
        numbers: the dimensions that number output tiles, which are connected.
        below: the id of an existing dimension whose size is `number_of_iterations(…)`.
    """
    flatten_into(e, (*numbers, graph.coordinates[accumulation_loop(graph).dim]), below)


def flatten_into(e: KernelEditor, above: tuple[Dimension, ...], below: str) -> None:
    """Connect several dimensions to one that counts their index combinations in row-major order.

    If `above` is a single dimension, its indices stay the same. If each group has its own number of
    tiles, the indices of one group follow those of the group before it: `group, m, n, k
    --Concatenate--> below`.

    Args:
        e: the editor of a graph without a schedule: no edge computes its tile numbers.
        above: the dimensions to connect, which are tile numbers and perhaps the loop over k tiles.
        below: the id of an existing dimension whose size is `number_of(graph, above)`.
    """
    e.coordinates.connect(_together(e.graph, above).edge(below))


class _Together(NamedTuple):
    """An edge that connects several dimensions to one dimension, and the size of the one dimension.

    Args:
        size: the size of the one dimension.
        edge: a function that returns the edge, given the id of the one dimension.
    """

    size: Expr
    edge: Callable[[str], Edge]


def _together(graph: KernelGraph, dimensions: tuple[Dimension, ...]) -> _Together:
    """The edge that connects several dimensions to one dimension, and that dimension's size.

    Raises:
        PassError: a dimension has no size, and no table gives the product of all sizes.
    """
    names = tuple(d.id for d in dimensions)
    sizes = [d.size for d in dimensions]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        several = Flatten if len(names) > 1 else PassThrough
        return _Together(prod(known, start=Integer(1)), lambda below: several(names, (below,)))
    parted = {d.id: _parted(graph, d.id) for d in dimensions if d.size is None}
    (group,) = {edge.downstream[0] for edge in parted.values()}
    tables = tuple(
        parted[d.id].table if d.id in parted else "" for d in dimensions if d.id != group
    )
    if len(parted) == 1:
        # Groups differ along one axis only, so the prefix sums along that axis suffice to count the
        # tiles of all groups.
        (only,) = parted.values()
        whole = graph.coordinates[only.upstream[0]].size
        among = [d.size for d in dimensions if d.size is not None and d.id != group]
        if whole is not None and dimensions[-1].id in parted:
            size = prod((size for size in among), start=whole)
            above = (group, *(name for name in names if name != group))
            return _Together(size, lambda below: Concatenate(above, (below,), only.table))
    starts = _counted(graph, [edge.table for edge in parted.values()])
    all_of_them = starts and maximum(load(starts.symbol, graph.coordinates[group].size or 0), 1)
    sums = (p.symbol for p in graph.parameters.items if p.value == all_of_them)
    size = next(sums, None) if starts and names[0] == group else None
    if starts is None or size is None:
        listed = ", ".join(parted)
        raise PassError(
            "the graph has no table that counts the tiles of the groups before each group along "
            f"{listed}; use a graph from Gemm.graph(), which adds that table"
        )
    return _Together(size, lambda below: Concatenate(names, (below,), starts.name, tables))


def _parted(graph: KernelGraph, tiles: str) -> Ragged:
    """The `Ragged` edge that divides a dimension of tiles among groups.

    Raises:
        PassError: there is no such edge, so the number of tiles of a group is unknown.
    """
    found = ragged_edge(graph, tiles)
    if found is None:
        raise PassError(
            f"the dimension '{tiles}' has neither a size nor a Ragged edge that divides it among "
            "groups; give the dimension a size or a Ragged edge"
        )
    return found


def _counted(graph: KernelGraph, along: Sequence[str]) -> Table | None:
    """The table that counts the tiles of all groups before a group, if several axes have groups.

    Entry i is the number of tiles in groups 0 to i - 1. A group's number of tiles is the product of
    its numbers of tiles along the axes in `along`. The result is None if there is no such table.

    Args:
        graph: the kernel.
        along: for each axis along which groups differ, the name of the table whose entry i is the
            number of tiles along the axis in groups 0 to i - 1.
    """
    for table in graph.parameters.tables:
        steps = (_rise(index_symbol(name), place_of(table.name)) for name in along)
        if table.step == prod(steps, start=Integer(1)):
            return table
    return None


def _rise(table: Symbol, place: Symbol) -> Expr:
    """The difference of two consecutive table entries: `table[place + 1] - table[place]`."""
    return load(table, place + 1) - load(table, place)
