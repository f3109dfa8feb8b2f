"""Candidates for the launches that checks examine: problems with full and with partial tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, product
from math import gcd

from sympy import Add, Integer
from sympy.core.relational import Relational

from coordgraph.gemm import AXES, rows_of
from coordgraph.integers import FloorDiv, FloorMod, Maximum, Minimum, nodes_of, symbols_of
from coordgraph.kernel import KernelGraph
from coordgraph.tilings import macro_tile
from coordgraph.verification.launch import Launch
from coordgraph.verification.packing import packed_elements

__all__ = ["far_launches", "launch_candidates", "launch_of"]

GROUPS = 3
"""Number of products in each examined launch of a batched or grouped problem."""
SPARE_ROWS = 2
"""Number of rows of D that no table entry names, in launches that scatter the rows of D."""
TILES = (1, 2, 3, 4, 5, 7)
"""Numbers of tiles along one axis that candidate launches combine."""
MOST_GRID = 24
"""Largest number of workgroups that is tried for launches with about two or more workgroups per
output tile, unless the graph fixes the number of workgroups."""
LARGEST_FACTOR = 16
"""The largest constant divisor in a graph's formulas for which candidate launches have as many
tiles as the divisor, one more and one less."""
FARTHEST = 256
"""Largest constant in a graph's formulas that launches exceed: for a smaller or equal constant,
launches with more tiles than the constant are examined."""
Tiles = tuple[int, int, int, int]
"""Type: number of tiles along m, along n and along k, and number of workgroups."""


def launch_candidates(graph: KernelGraph) -> Iterator[Launch]:
    """Candidate launches of small problems, without duplicates.

    Args:
        graph: a scheduled graph.
    """
    seen: set[str] = set()
    shape, options = macro_tile(graph.coordinates), _options(graph)
    for number, tiles in enumerate(_tile_counts(graph)):
        for launch in _with_options(launch_of(graph, shape, tiles, number), options):
            if (text := str(launch)) not in seen:
                seen.add(text)
                yield launch


def _with_options(launch: Launch, options: Mapping[str, int]) -> Iterator[Launch]:
    """Yield the launch, and if `options` is not empty, the launch with these arguments."""
    yield launch
    if options:
        yield replace(launch, values={**launch.values, **options})


def _options(graph: KernelGraph) -> dict[str, int]:
    """The launch arguments that can only be 0 or 1, by name, each with the value 1.

    `read_c` is one: it says whether C is given. The result is empty if no formula of the graph uses
    any of them, since then their values do not change what a launch does.
    """
    given = [p for p in graph.parameters.given if (p.minimum, p.maximum) == (0, 1)]
    used = any(p.symbol in symbols_of(value) for p in given for value in graph.expressions)
    return dict.fromkeys((p.name for p in given), 1) if used else {}


def _tile_counts(graph: KernelGraph) -> Iterator[Tiles]:
    """Yield numbers of tiles and of workgroups of launches.

    In some of the launches the workgroups get equal shares of the tiles, in others unequal ones.
    """
    size = graph.workgroup.size
    near = {c + by for c in _divisors(graph) for by in (-1, 0, 1)} - {0}
    depths = sorted({1, 2, 3, 7} | near)
    if isinstance(size, Integer):
        grid = int(size)
        for total in (grid, grid + 1, grid - 1, 2 * grid, 2 * grid + 1, 3 * grid - 1, 2, 1):
            for rows in (1, 2, 3):
                if total > 0 and total % rows == 0:
                    for depth in depths:
                        yield rows, total // rows, depth, grid
                        yield total // rows, rows, depth, grid
        return
    wide = [*TILES, *(x for x in sorted(near) if x > max(TILES))]
    for number, (m, n) in enumerate(product(wide, wide)):
        total = m * n
        if total > 40:
            continue
        for depth in depths:
            near_total = {total, total + 1, total - 1, total // 2, total // 2 + 1, total // 3}
            deep = {2 * total + 1, 3 * total - 1, total * depth, total * depth + 1}
            grids = {3, 4, 8} | near_total | {g for g in deep if g <= MOST_GRID}
            for grid in sorted(grids - {0}):
                # Yield about one combination in seven: the candidates stay few, and every number of
                # workgroups and of k tiles still occurs.
                if (number + depth + grid) % 7 == 0 or total == 1:
                    yield m, n, depth, grid


def _divisors(graph: KernelGraph) -> set[int]:
    """Constants by which the graph's formulas divide: 2 to LARGEST_FACTOR, but no tile extents."""
    found: set[int] = set()
    tile = set(macro_tile(graph.coordinates))
    for value in graph.expressions:
        for node in nodes_of(value, FloorDiv, FloorMod):
            divisor = node.args[1]
            if isinstance(divisor, Integer) and 1 < int(divisor) <= LARGEST_FACTOR:
                found.add(int(divisor))
    return found - tile


def far_launches(graph: KernelGraph, count: int) -> Iterator[Launch]:
    """Launches whose sizes are just above constants that the graph compares with or divides by.

    A wrong limit, such as a loop that ends after c iterations, shows only if one workgroup has more
    than c tiles or k tiles.

    Args:
        graph: a scheduled graph.
        count: the largest number of constants for which launches are made; the smallest constants
            are taken, extents of the tile after all others.
    """
    size, shape = graph.workgroup.size, macro_tile(graph.coordinates)
    options = _options(graph)
    extents = {e - by for e in shape for by in (0, 1)}
    for c in sorted(_thresholds(graph), key=lambda c: (c in extents, c))[:count]:
        past = c + 1
        # If pieces of k divide each tile, as in split-k, their number is a factor of the grid.
        pieces = 1 if size is None else int(size.as_coeff_Mul()[0])
        if isinstance(size, Integer):
            grid = int(size)
            every = grid * past  # a share of c + 1 tiles, or of c + 1 k tiles, for each workgroup
            for m, n, k in ((past, 1, 1), (1, past, 1), (1, 1, past), (1, 1, every), (every, 1, 1)):
                yield from _with_options(launch_of(graph, shape, (m, n, k, grid), 1), options)
            continue
        # (tiles along m, n and k; workgroups). In `alone`, one workgroup sums c + 1 k tiles. In
        # `second`, two workgroups share a tile, and the second one begins at k tile c.
        alone, second = (1, 1, past, 1), (1, 1, 2 * c, 2)
        every = [(past, 1, 1, 3), (1, past, 1, 3), (1, 1, c, past), alone, second]
        every += [(1, 1, pieces * past, 1)] * (pieces > 1)
        for tiles in every:
            yield from _with_options(launch_of(graph, shape, tiles, 1), options)


def _thresholds(graph: KernelGraph) -> set[int]:
    """Constants up to FARTHEST in comparisons, minima, maxima and remainders in the formulas."""
    return {
        int(part)
        for value in graph.expressions
        for node in nodes_of(value, FloorMod, Minimum, Maximum, Relational)
        for arg in node.args
        for part in (arg.args if isinstance(arg, Add) else (arg,))
        if isinstance(part, Integer) and 1 < int(part) <= FARTHEST
    }


def launch_of(graph: KernelGraph, shape: tuple[int, int, int], tiles: Tiles, number: int) -> Launch:
    """Launch arguments of a problem with the given numbers of tiles.

    Args:
        graph: a scheduled or lowered graph.
        shape: the extents of a macro tile in m, n and k, in elements.
        tiles: the numbers of tiles in m, n and k, and the number of workgroups.
        number: selects how full the last tiles are; different numbers give different extents.
    """
    gemm, known = graph.gemm, graph.parameters
    *counts, workgroups = tiles
    extents = {
        axis: count * extent - _missing(extent, number + index)
        for index, (axis, count, extent) in enumerate(zip(AXES, counts, shape, strict=True))
    }
    tables: dict[str, list[int]] = {}
    for axis, extent in extents.items():
        if gemm.ragged(axis):
            tile = shape[AXES.index(axis)]
            sizes = _group_sizes(extent, tile, number, diagonal=gemm.diagonal)
            tables[gemm.offsets(axis)] = [0, *accumulate(sizes)]
            extents[axis] = sum(sizes)
    values: dict[str, int] = {}
    for table, tensor in gemm.tables_of_rows.items():
        count = extents["m"] if gemm.m is None else gemm.m
        tables[table], values[rows_of(tensor)] = _rows(count, distinct=tensor == "D")
    packed = packed_elements(gemm, [p.name for p in known.given], tables)
    for parameter in known.given:
        name = parameter.name
        if name in values:
            continue
        if name in extents:
            values[name] = extents[name]
        elif name == "workgroups":
            values[name] = workgroups
        elif name in ("batches", "groups"):
            values[name] = GROUPS
        elif parameter.minimum > 0:
            values[name] = packed.get(name, parameter.minimum)
        if name in values:
            values[name] = min(max(values[name], parameter.minimum), parameter.maximum)
    fixed = [getattr(gemm, axis) or values.get(axis, extents[axis]) for axis in AXES]
    # The trace counts output tiles of the unit size: a large tile is a span of many such tiles.
    unit = (*graph.tilings.unit, shape[2]) if graph.tilings else shape
    m, n, k = (-(-length // extent) for length, extent in zip(fixed, unit, strict=True))
    products = GROUPS if gemm.batched or gemm.diagonal else 1
    size = graph.workgroup.size
    grid = int(size) if isinstance(size, Integer) else values.get("workgroups", workgroups)
    return Launch(values, tables, products * m * n + grid + k)


def _rows(count: int, *, distinct: bool) -> tuple[list[int], int]:
    """The entries of a table of row numbers, not in order, and the number of rows of its tensor.

    Args:
        count: number of entries of the table.
        distinct: True if all row numbers must differ, as for rows of D, which the kernel writes;
            if False, some row numbers occur twice.
    """
    rows = count + SPARE_ROWS if distinct else -(-count // 2)
    step = next(step for step in (7, 5, 3, 2, 1) if gcd(step, rows) == 1)
    return [(step * place + 1) % rows for place in range(count)], rows


def _missing(extent: int, number: int) -> int:
    """Number of padding elements in the last tile of an axis.

    `number % 4` selects 0, 1, half of the tile's `extent`, or all elements of the tile but one.
    """
    return (0, 1, extent // 2, extent - 1)[number % 4]


def _group_sizes(extent: int, tile: int, number: int, *, diagonal: bool) -> tuple[int, int, int]:
    """Extents of three groups along an axis, in elements; which one is 0 depends on `number`.

    The last tile of one group has a single element, because a wrong rounding of the number of its
    tiles shows there. If `diagonal` is True (each group has its own matrices A, B and D), no extent
    is 0.
    """
    small = extent // 2 // tile * tile + 1
    if diagonal:
        return (extent, small, extent // 3 + 1)
    return ((extent, 0, small), (0, extent, small), (small, extent, 0))[number % 3]
