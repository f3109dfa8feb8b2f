"""Launches that are examined by enumeration: small ones, around the borders of a graph's sizes.

Candidates vary the numbers of tiles, the number of workgroups, and the extents of the last tile.
Each candidate has *features*: which argument of a minimum or maximum decides, whether a condition
holds, whether a remainder is 0, 1 or the largest one, how one size fits into another. The features
come from the expressions and parameters of the graph, so the borders are the graph's. Launches are
ranked so that the first ones have as many different features as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise, permutations, product
from typing import Any, cast

from sympy import Basic, Expr, Integer, Symbol
from sympy.core.relational import Relational

from coordgraph.errors import CoordGraphError
from coordgraph.gemm import AXES
from coordgraph.integers import (
    FloorDiv,
    FloorMod,
    Maximum,
    Minimum,
    compile_function,
    tables_in,
)
from coordgraph.kernel import KernelGraph
from coordgraph.parameters import LARGEST_INDEX
from coordgraph.tilings import macro_tile
from coordgraph.verification.launch import Launch

__all__ = ["ranked_launches"]

Feature = tuple[object, ...]
GROUPS = 3
"""The number of products in examined launches of batches and of groups."""
TILES = (1, 2, 3, 4, 5, 7)
"""Numbers of tiles along one axis that candidates combine."""
MOST_GRID = 24
"""The largest number of workgroups of candidates in which several workgroups share a tile."""
LARGEST_FACTOR = 16
"""The largest constant divisor in the graph around which candidates vary the numbers of tiles."""


def ranked_launches(graph: KernelGraph, count: int, cost: int) -> tuple[Launch, ...]:
    """The launches to examine: small, and the first ones with as many features as possible.

    Args:
        graph: a scheduled graph.
        count: the largest number of launches.
        cost: the largest cost of one launch, see `Launch`.

    Returns:
        The launches; none if every launch that the graph allows costs more than `cost`.
    """
    features = _Features(graph)
    left: list[tuple[Launch, frozenset[Feature]]] = []
    for launch in _candidates(graph):
        if launch.cost <= cost and (found := features.of(launch)) is not None:
            left.append((launch, found))
    chosen: list[Launch] = []
    seen: set[Feature] = set()
    while left and len(chosen) < count:
        # A launch is worth its new features; of several equal ones the cheapest is taken.
        best = max(left, key=lambda pair: (len(pair[1] - seen), -pair[0].cost))
        if not best[1] - seen:  # all features occurred, so a second round begins
            seen = set()
        chosen.append(best[0])
        seen |= best[1]
        left.remove(best)
    return tuple(chosen)


Tiles = tuple[int, int, int, int]
"""Numbers of tiles in m, n and k, and the number of workgroups."""


def _candidates(graph: KernelGraph) -> Iterator[Launch]:
    seen: set[str] = set()
    for number, tiles in enumerate(_tile_counts(graph)):
        launch = _launch(graph, tiles, number)
        if (text := str(launch)) not in seen:
            seen.add(text)
            yield launch


def _tile_counts(graph: KernelGraph) -> Iterator[Tiles]:
    """Numbers of tiles and workgroups, T mod W = 0, 1 and W - 1 and T < W among them."""
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
                # Every third combination keeps the candidates few; all grids and depths occur.
                if (number + depth + grid) % 3 == 0 or total < 4:
                    yield m, n, depth, grid


def _divisors(graph: KernelGraph) -> set[int]:
    """Constants by which expressions of the graph divide numbers of tiles."""
    found: set[int] = set()
    tile = set(macro_tile(graph.coordinates))
    for value in graph.expressions:
        for node in value.atoms(FloorDiv, FloorMod):
            divisor = node.args[1]
            if isinstance(divisor, Integer) and 1 < int(divisor) <= LARGEST_FACTOR:
                found.add(int(divisor))
    return found - tile


def _launch(graph: KernelGraph, tiles: Tiles, number: int) -> Launch:
    """Launch arguments of a problem with these numbers of tiles.

    Args:
        graph: a scheduled graph.
        tiles: the numbers of tiles in m, n and k, and the number of workgroups.
        number: a number that selects how far the last tiles are filled.
    """
    gemm, known = graph.gemm, graph.parameters
    *counts, workgroups = tiles
    shape = macro_tile(graph.coordinates)
    extents = {
        axis: count * extent - _missing(extent, number + index)
        for index, (axis, count, extent) in enumerate(zip(AXES, counts, shape, strict=True))
    }
    tables: dict[str, list[int]] = {}
    for axis, extent in extents.items():
        if gemm.ragged(axis):
            sizes = _group_sizes(extent, number, diagonal=gemm.diagonal)
            tables[gemm.offsets(axis)] = [0, *accumulate(sizes)]
            extents[axis] = sum(sizes)
    values: dict[str, int] = {}
    for parameter in known.given:
        name = parameter.name
        if name in extents:
            values[name] = extents[name]
        elif name == "workgroups":
            values[name] = workgroups
        elif name in ("batches", "groups"):
            values[name] = GROUPS
        elif parameter.minimum > 0:
            values[name] = LARGEST_INDEX if name.startswith("elements_") else parameter.minimum
        if name in values:
            values[name] = min(max(values[name], parameter.minimum), parameter.maximum)
    fixed = [getattr(gemm, axis) or extents[axis] for axis in AXES]
    m, n, k = (-(-length // extent) for length, extent in zip(fixed, shape, strict=True))
    products = GROUPS if gemm.batched or gemm.diagonal else 1
    size = graph.workgroup.size
    grid = int(size) if isinstance(size, Integer) else workgroups
    return Launch(values, tables, products * m * n + grid + k)


def _missing(extent: int, number: int) -> int:
    """How many elements the last tile of an axis lacks, among 0, 1, half and all but one."""
    return (0, 1, extent // 2, extent - 1)[number % 4]


def _group_sizes(extent: int, number: int, *, diagonal: bool) -> tuple[int, int, int]:
    """The extents of three groups; one is empty, except along every axis of a list of products."""
    small = extent // 2 + 1
    if diagonal:
        return (extent, small, extent // 3 + 1)
    return ((extent, 0, small), (0, extent, small), (small, extent, 0))[number % 3]


class _Features:
    """Evaluates the features of launches: facts about sizes that a schedule's borders lie at."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        parameters = graph.parameters
        self._host = [p for p in parameters.items if p.name not in parameters.deferred]
        symbols: list[Symbol] = [p.symbol for p in self._host]
        self._steps: list[Callable[..., tuple[int, ...]] | None] = [
            None if p.value is None else compile_function([p.value], symbols[:i])
            for i, p in enumerate(self._host)
        ]
        self._assumptions = compile_function(
            [a.expr for a in parameters.assumptions if not a.expr.free_symbols - {*symbols}],
            symbols,
        )
        self._most = [
            a.maximum for a in parameters.assumptions if not a.expr.free_symbols - {*symbols}
        ]
        self._nodes = _nodes(graph, {*symbols})
        roots = [arg for node in self._nodes for arg in node.args[:2]]
        self._sides = compile_function(cast(Sequence[Basic], roots), symbols)

    def of(self, launch: Launch) -> frozenset[Feature] | None:
        """The features of a launch; None if the graph's bounds exclude the launch."""
        values: list[int] = []
        try:
            for parameter, step in zip(self._host, self._steps, strict=True):
                given = launch.values.get(parameter.name, 0)
                value = given if step is None else step(*values)[0]
                if not parameter.minimum <= value <= parameter.maximum:
                    return None
                values.append(value)
            limits = zip(self._assumptions(*values), self._most, strict=True)
            if any(value > most for value, most in limits):
                return None
            sides = iter(self._sides(*values))
        except (CoordGraphError, ArithmeticError, LookupError):
            return None
        found: set[Feature] = {
            (p.name, min(value, 2))
            for p, value in zip(self._host, values, strict=True)
            if p.value is not None
        }
        for number, (left, right) in enumerate(zip(sides, sides, strict=True)):
            found.add((number, _relation(self._nodes[number], left, right)))
        found.update(_tile_features(self.graph, launch))
        counts = [(i, v) for i, v in enumerate(values) if self._host[i].name not in AXES]
        for (i, one), (j, other) in permutations(counts, 2):
            # How one count of tiles, workgroups or iterations fits into another.
            found.add((i, j, one > other, _rest(one, other) if other > 1 else None))
        return frozenset(found)


def _nodes(graph: KernelGraph, known: set[Symbol]) -> list[Basic]:
    """The nodes of the graph's expressions at which a formula changes, in parameters only."""
    found = {
        node
        for value in graph.expressions
        for node in value.atoms(FloorMod, Minimum, Maximum, Relational)
        if len(node.args) == 2 and node.free_symbols <= known and not tables_in(cast(Expr, node))
    }
    return sorted(found, key=str)


def _relation(node: Basic, left: int, right: int) -> object:
    """How the two arguments of a node relate; for a remainder, whether it is at an end."""
    if isinstance(node, FloorMod):
        return _rest(left, right)
    return (left > right) - (left < right)


def _rest(value: int, divisor: int) -> str:
    """Where the remainder of a division is: at 0, 1, the largest value, or between."""
    rest = value % divisor if divisor else 0
    return "0" if not rest else "1" if rest == 1 else "last" if rest == divisor - 1 else "other"


def _tile_features(graph: KernelGraph, launch: Launch) -> Iterator[Feature]:
    """Features of every schedule: ragged last tiles, one k tile, tiles against workgroups."""
    shape = dict(zip(AXES, macro_tile(graph.coordinates), strict=True))
    counts: list[int] = []
    for axis in AXES:
        length = getattr(graph.gemm, axis) or launch.values.get(axis, 0)
        yield ("ragged", axis, length % shape[axis] != 0)
        counts.append(-(-length // shape[axis]))
    m, n, k = counts
    yield ("one k tile", k == 1)
    yield ("rows", (m > n) - (m < n))
    yield ("cube", m == n == k)
    for name, entries in launch.tables.items():
        yield (name, *(min(b - a, 1) for a, b in pairwise(entries)))
    if (grid := launch.values.get("workgroups")) is not None:
        rest: Any = m * n % grid
        yield ("waves", rest in (0, 1, grid - 1) and rest, min(m * n // grid, 2))
        yield ("idle", m * n * k < grid)
