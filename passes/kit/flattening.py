"""Flattening: count several tile numbers, or tile numbers and k tiles, by one dimension."""

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
    """How many tiles the tile numbers count together: over all groups, if groups have their own.

    Raises:
        PassError: a tile number has no size, and no table gives the total.
    """
    return _together(graph, dimensions).size


def number_of_iterations(graph: KernelGraph, numbers: tuple[Dimension, ...]) -> Expr:
    """How many k tiles, over all output tiles, the accumulation loops cover together.

    Raises:
        PassError: a dimension has no size, and no table gives the total.
    """
    return _together(graph, (*numbers, graph.coordinates[accumulation_loop(graph).dim])).size


def why_no_plane(graph: KernelGraph) -> str | None:
    """Why the grid of tiles of one product cannot be reordered, or None if it can."""
    if any(d.size is None for d in tile_plane(graph)):
        return (
            "every group has numbers of rows and columns of tiles of its own, and orders are of "
            "one grid; groups that part m or k alone can be walked in another order"
        )
    return None


def flatten_iterations(
    e: KernelEditor, graph: KernelGraph, numbers: tuple[Dimension, ...], below: str
) -> None:
    """Tie tile numbers and the k tiles of each output tile to one dimension, k fastest.

    Args:
        e: the editor of `graph`.
        graph: a graph without a schedule: its tile numbers are tied to nothing.
        numbers: the tile numbers to tie.
        below: the id of an existing dimension whose size is `number_of_iterations`.
    """
    flatten_into(e, (*numbers, graph.coordinates[accumulation_loop(graph).dim]), below)


def flatten_into(e: KernelEditor, above: tuple[Dimension, ...], below: str) -> None:
    """Tie several dimensions to one, row-major; a single dimension passes through unchanged.

    If each group has its own number of tiles, the groups follow one another, a block for each:
    `group, m, n, k --Concatenate--> below`.

    Args:
        e: the editor of a graph without a schedule: its tile numbers are tied to nothing.
        above: the tile numbers to tie.
        below: the id of an existing dimension whose size is `number_of(above)`.
    """
    e.coordinates.connect(_together(e.graph, above).edge(below))


class _Together(NamedTuple):
    """Dimensions that are counted together: their total size, and the edge to one dimension."""

    size: Expr
    edge: Callable[[str], Edge]


def _together(graph: KernelGraph, dimensions: tuple[Dimension, ...]) -> _Together:
    """The total size of dimensions and the edge that ties them to one.

    Raises:
        PassError: a dimension has no size, and no table gives the total.
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
        # One table of blocks is enough: groups differ along one axis only.
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
        raise PassError(f"how many of {listed} there are together is in no table")
    return _Together(size, lambda below: Concatenate(names, (below,), starts.name, tables))


def _parted(graph: KernelGraph, tiles: str) -> Ragged:
    found = ragged_edge(graph, tiles)
    if found is None:
        raise PassError(f"how many '{tiles}' there are in each group is nowhere said")
    return found


def _counted(graph: KernelGraph, along: Sequence[str]) -> Table | None:
    """The table that counts all axes together: each step is the product of the axes' steps."""
    for table in graph.parameters.tables:
        steps = (_rise(index_symbol(name), place_of(table.name)) for name in along)
        if table.step == prod(steps, start=Integer(1)):
            return table
    return None


def _rise(table: Symbol, place: Symbol) -> Expr:
    return load(table, place + 1) - load(table, place)
