"""`WorkCounter`: counts iterations, stored tiles and partial sums of a schedule's workgroups.

A counter is derived from a scheduled graph whose sizes are symbols. `passes.choosing.tally` walks
the control graph of that scheduled graph and returns expressions, which are compiled to NumPy here.
The compiled expressions are evaluated for every workgroup of many problems at once: the workgroup
with most work is found only by comparing all workgroups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Mul, Symbol

from coordgraph import Gemm, KernelGraph, PassError
from coordgraph.control.operations import AddPartial, For, ReceivePartial
from coordgraph.integers import index_symbol, size_symbol
from coordgraph.tilings import macro_tile
from passes.base import Pass
from passes.choosing.numpy_source import SCOPE, Statements
from passes.choosing.tally import NEVER, Definitions, Tally, tally
from passes.kit.tile_work import repeats_main_loop

__all__ = ["COUNTED_TILE", "FIXUPS", "QUANTITIES", "Column", "Counts", "WorkCounter"]

Column = NDArray[np.float64]
"""Type of a one-dimensional array with one number for each problem."""
COUNTED_TILE = (5040, 5040, 64)
"""The macro tile (m, n, k) of the graphs from which a `WorkCounter` is derived.

The extents along m and n are multiples of every number from 1 to 10, so that the tile can be
divided into small tiles of many shapes.
"""
FIXUPS = ("none", "peers", "tree", "turnstile", "scatter")
"""Kinds of fix-up: how partial sums of an output tile are added up; see `passes.kit.fixup`."""
MOST_LANES = 1 << 15
"""Problems with at most this many workgroups in total are counted at a time, so that arrays fit CPU
caches; a problem with more workgroups is counted alone."""
MOST_SINGLE = 1 << 22
"""Number of iterations below which a problem's work counts may be computed in float32.

No value in the computation exceeds four times the number of iterations, and float32 is exact for
integers up to 2**24.
"""
TILES, DEPTH, WORKGROUPS = size_symbol("tiles"), size_symbol("depth"), size_symbol("workgroups")
"""Symbols for the number of output tiles, of k tiles in an output tile, and of workgroups."""


@dataclass(frozen=True)
class Counts:
    """Work counts: arrays with an entry for each problem.

    Each count except `grid`, `busy`, `all_ends`, `all_sends` and `shortest` is the largest value
    that any workgroup has.

    Attributes:
        grid: number of workgroups.
        busy: number of workgroups that have iterations.
        iterations, small_iterations: main loop iterations on macro tiles, and on small tiles (see
            `HeterogeneousTiles`).
        ends, small_ends: numbers of macro tiles and of small tiles that a workgroup stores, whole
            or in part.
        all_ends: number of macro tiles that all workgroups together store, if there are small
            tiles; else 0.
        streamed: iterations in loops that may compute only a part of a tile's iterations.
        sends: number of partial sums that a workgroup sends.
        all_sends: number of partial sums that all workgroups together send.
        receives: number of partial sums that a workgroup receives.
        chain: length of the longest sequence of partial sums of one tile in which each is received
            before the next is sent (`turnstile` only).
        shortest: number of iterations of the shortest segment of a tile, over all workgroups; 0 if
            no tile is divided along k.
    """

    grid: Column
    busy: Column
    iterations: Column
    small_iterations: Column
    ends: Column
    small_ends: Column
    all_ends: Column
    streamed: Column
    sends: Column
    all_sends: Column
    receives: Column
    chain: Column
    shortest: Column


QUANTITIES = len(fields(Counts))
"""Number of fields of `Counts`."""


@dataclass(frozen=True)
class WorkCounter:
    """Counts the work of a schedule's workgroups, for many problems at once.

    Args:
        inputs: names of the arrays that the counts depend on: `tiles` (number of output tiles), or
            `tiles_m` and `tiles_n` if the schedule does not treat all tiles alike; then `depth` (k
            tiles of an output tile) and `workgroups`.
        source: source of a Python function of the inputs that returns the work counts of `Tally`
            that are not constant. A quantity in `varying` is an array with an entry for every
            workgroup of every problem; any other is an array with an entry for every problem.
        quantities: the names of the work counts that the function returns.
        varying: the names of the work counts that differ between workgroups.
        grid: source of an expression for the number of workgroups.
        chosen_grid: whether the number of workgroups is a launch argument.
        fixup: the kind of fix-up, one of `FIXUPS`.
        small: number of small tiles in a macro tile along m and along n; (1, 1) if all tiles have
            one shape.
        all_streamed: whether every main loop may compute only a part of a tile's iterations.
        loops: whether a workgroup may compute several output tiles, or pieces of them, in a loop.
        single: whether no value in the function exceeds four times the problem's number of
            iterations. In this case float32, which takes half the time of float64, is exact if the
            number of iterations is below `MOST_SINGLE`. True only for the library's own schedules.
    """

    inputs: tuple[str, ...]
    source: str
    quantities: tuple[str, ...]
    varying: tuple[str, ...]
    grid: str
    chosen_grid: bool
    fixup: str
    small: tuple[int, int]
    all_streamed: bool
    loops: bool
    single: bool = False

    @classmethod
    def derive(cls, schedule: Pass, tile: tuple[int, int, int] = COUNTED_TILE) -> WorkCounter:
        """Derive the `WorkCounter` of a schedule from a graph to which the schedule is applied.

        Args:
            schedule: a schedule whose grid is a launch argument or follows from the problem.
            tile: the macro tile of the graph.

        Raises:
            PassError: the schedule refuses the problem, or its work cannot be counted.
        """
        problem = Gemm("f32").graph(tile)
        return cls.of(schedule(problem), problem)

    @classmethod
    def of(cls, graph: KernelGraph, problem: KernelGraph) -> WorkCounter:
        """Derive a `WorkCounter` from a scheduled graph.

        Args:
            graph: the scheduled graph.
            problem: the graph to which the schedule was applied.

        Raises:
            PassError: the work of the graph cannot be counted.
        """
        definitions = Definitions()
        sizes = _Sizes.of(problem)
        found = tally(graph, DEPTH, sizes.known, definitions)
        width = graph.workgroup.size
        assert width is not None
        given = {**sizes.known, **{p.symbol: p.value for p in graph.parameters.items if p.value}}
        given = {symbol: value for symbol, value in given.items() if symbol not in sizes.inputs}
        grid = width
        while grid.free_symbols & given.keys():
            grid = cast(Expr, grid.xreplace(given))
        if not grid.free_symbols:
            raise PassError(
                f"the schedule has a fixed number of workgroups, {grid}, but a plan chooses this "
                "number; leave the schedule's option `workgroups` out"
            )
        roots = {name: value for name, value in found.items() if value != _DEFAULTS[name]}
        return _write(definitions, roots, sizes, grid, graph)

    @classmethod
    def from_data(cls, fields: Mapping[str, Any]) -> WorkCounter:
        """The work counter from the plain data that `as_data` returned."""
        found: dict[str, Any] = dict(fields)
        for name in ("inputs", "quantities", "varying", "small"):
            found[name] = tuple(fields[name])
        found["source"] = "\n".join([*fields["source"], ""])
        return cls(**found)

    def as_data(self) -> dict[str, Any]:
        """The work counter as plain data for JSON.

        The generated Python source, which computes work counts, becomes a list of lines.
        """
        return asdict(self) | {"source": self.source.splitlines()}

    @cached_property
    def _functions(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Two compiled functions: the first returns the work counts, the second the grid size."""
        scope = dict(SCOPE)
        grid = f"def grid({', '.join(self.inputs)}):\n    return {self.grid}\n"
        exec(compile(self.source + grid, "<work counts>", "exec"), scope)
        return scope["counts"], scope["grid"]

    def count(self, *inputs: Column) -> Counts:
        """Work counts (iterations, sends, …) of many problems, given an array for each input."""
        return Counts(*self.columns(*inputs))

    def columns(self, *inputs: Column) -> Column:
        """The fields of `Counts`, stacked into an array of shape (QUANTITIES, problems)."""
        _, grid_of = self._functions
        rows = len(inputs[0])
        table = np.zeros((QUANTITIES, rows))
        found = Counts(*table)
        grid = np.broadcast_to(grid_of(*inputs), (rows,)).astype(np.float64)
        found.grid[:] = grid
        with np.errstate(divide="ignore", invalid="ignore"):
            for part in _parts(grid if self.varying else np.ones(rows)):
                self._count(tuple(each[part] for each in inputs), grid[part], found, part)
        return table

    def _count(self, inputs: tuple[Column, ...], grid: Column, found: Counts, part: slice) -> None:
        """Count the work of some problems, and write the counts to their entries in `found`.

        Args:
            inputs: the values of `self.inputs` for these problems.
            grid: number of workgroups of these problems.
            found: the counts of all problems.
            part: the positions of these problems among all problems.
        """
        function, _ = self._functions
        iterations = float(np.max(np.prod(inputs[:-1], axis=0) + inputs[-1] * inputs[-2]))
        exact = np.float32 if self.single and iterations < MOST_SINGLE else np.float64
        lanes = grid.astype(np.intp) if self.varying else np.ones(len(grid), np.intp)
        ends = np.cumsum(lanes)
        starts = ends - lanes

        def spread(column: NDArray[Any]) -> NDArray[Any]:
            """Repeat each problem's value once for each of the problem's workgroups."""
            return np.repeat(column, lanes)

        number = (np.arange(ends[-1]) - spread(starts)).astype(exact)
        values = function(*(column.astype(exact) for column in inputs), number, spread)
        by_name = dict(zip(self.quantities, values, strict=True))

        def largest(name: str) -> Column:
            """The largest value of the work count `name` over the workgroups of each problem."""
            if name in self.varying:
                return np.maximum.reduceat(by_name[name], starts)
            return by_name[name]

        def of_all(name: str) -> Column:
            """The sum of the work count `name` over the workgroups of each problem."""
            if name in self.varying:
                return np.add.reduceat(by_name[name], starts)
            return by_name[name] * grid

        for name in by_name.keys() - _PEAKS:
            getattr(found, name)[part] = largest(name)
        found.busy[part] = self._busy(by_name, starts, grid, spread)
        if self.small != (1, 1):
            found.all_ends[part] = of_all("ends")
        if self.fixup == "none":
            return
        found.all_sends[part] = of_all("sends")
        shortest = largest("shortest")
        found.shortest[part] = np.where(shortest > _NONE, -shortest, 0)
        if self.fixup == "turnstile":
            last = largest("last_turn")
            chain = last + largest("first_turn") + 1
            found.chain[part] = np.where(last > _NONE, chain, 0)

    def _busy(
        self,
        values: dict[str, Column],
        starts: NDArray[np.intp],
        grid: Column,
        spread: Callable[[NDArray[Any]], NDArray[Any]],
    ) -> Column:
        """For each problem, the number of workgroups that have main loop iterations."""
        names = [n for n in ("iterations", "small_iterations") if n in values]
        if not self.varying:
            return grid * np.logical_or.reduce([values[n] > 0 for n in names])
        columns = [values[n] if n in self.varying else spread(values[n]) for n in names]
        working = np.logical_or.reduce([column > 0 for column in columns])
        return np.add.reduceat(working.astype(np.float64), starts)


_DEFAULTS = {name: int(value) for name, value in Tally().items()}
"""Work counts of a workgroup without work, by the name of the count."""
_NONE = float(NEVER)
"""Stands for minus infinity: the maximum over an empty set of workgroups."""
_PEAKS = frozenset({"shortest", "first_turn", "last_turn"})
"""Fields of `Tally` from which `shortest` and `chain` of `Counts` are computed. The other fields of
`Counts` that describe one workgroup have the largest value of any workgroup."""


def _parts(lanes: Column) -> Iterator[slice]:
    """Slices of consecutive problems with at most `MOST_LANES` workgroups in total.

    A problem with more than `MOST_LANES` workgroups is alone in a slice.

    Args:
        lanes: number of workgroups of each problem.
    """
    ends = np.cumsum(lanes)
    if ends[-1] <= MOST_LANES:
        yield slice(None)
        return
    first, done = 0, 0.0
    while first < len(lanes):
        last = max(int(np.searchsorted(ends, done + MOST_LANES, "right")), first + 1)
        yield slice(first, last)
        first, done = last, float(ends[last - 1])


@dataclass(frozen=True)
class _Sizes:
    """The symbols for sizes in a problem's graph, and their values in numbers of tiles.

    Attributes:
        known: values of the symbols: the numbers of tiles, and m, n and k as multiples of the
            tile's extents.
        tiles: the symbols for the numbers of tiles along m and n.
    """

    known: dict[Symbol, Expr]
    tiles: tuple[Symbol, Symbol]

    @property
    def inputs(self) -> tuple[Symbol, ...]:
        """The symbols (tile counts and number of workgroups) that work counts may depend on."""
        return (*self.tiles, DEPTH, WORKGROUPS)

    @classmethod
    def of(cls, problem: KernelGraph) -> _Sizes:
        """The symbols for the sizes of a problem without a schedule, and their values."""
        numbers = [size_symbol(f"tiles_{axis}") for axis in "mnk"]
        counts = dict(zip(numbers, (*numbers[:2], DEPTH), strict=True))
        extents = zip("mnk", numbers, macro_tile(problem.coordinates), strict=True)
        whole = {size_symbol(axis): counts[count] * extent for axis, count, extent in extents}
        return cls({**counts, **whole}, (numbers[0], numbers[1]))


def _write(
    definitions: Definitions,
    roots: dict[str, Expr],
    sizes: _Sizes,
    grid: Expr,
    graph: KernelGraph,
) -> WorkCounter:
    """The `WorkCounter` that computes the work counts `roots`, with formulas as Python source.

    Args:
        definitions: the named expressions on which the work counts depend.
        roots: an expression for each work count, by the count's name.
        sizes: the symbols for sizes in the graph.
        grid: an expression for the number of workgroups.
        graph: the scheduled graph.

    Raises:
        PassError: a work count depends on values other than numbers of tiles and workgroups.
    """
    needed = definitions.needed(roots.values())
    values = {symbol: _together(value, sizes.tiles) for symbol, value in needed.items()}
    grid = _together(grid, sizes.tiles)
    read = frozenset[Symbol]().union(*(v.free_symbols for v in (*values.values(), grid)))
    tiles = sizes.tiles if read & set(sizes.tiles) else (TILES,)
    if tiles != (TILES,):
        values, grid = needed, cast(Expr, grid.xreplace({TILES: Mul(*tiles)}))
    workgroup = index_symbol("workgroup")
    inputs = {symbol: symbol.name for symbol in (*tiles, DEPTH, WORKGROUPS)}
    if unknown := read - {*inputs, *values, workgroup, *sizes.tiles, TILES}:
        names = ", ".join(sorted(map(str, unknown)))
        raise PassError(
            f"the work of a workgroup depends on {names}, so it cannot be counted; let the loops "
            "of the schedule depend only on numbers of tiles and workgroups"
        )
    statements = Statements(values, inputs, workgroup)
    varying = tuple(name for name, value in roots.items() if statements.varies(value))
    head = f"def counts({', '.join(inputs.values())}, workgroup, spread):"
    return WorkCounter(
        tuple(inputs.values()),
        statements.function(head, roots.values()),
        tuple(roots),
        varying,
        Statements({}, inputs, workgroup).text(grid),
        WORKGROUPS in read,
        _fixup(graph),
        _small(graph),
        roots["iterations"] == roots.get("streamed"),
        repeats_main_loop(graph),
    )


def _together(expr: Expr, tiles: tuple[Symbol, Symbol]) -> Expr:
    """An expression with the symbol TILES in place of the product `tiles_m * tiles_n`."""

    def joined(product: Mul) -> Expr:
        """A product with the symbol TILES in place of its factors `tiles_m` and `tiles_n`."""
        return Mul(TILES, *(factor for factor in product.args if factor not in tiles))

    return cast(Expr, expr.replace(lambda e: isinstance(e, Mul) and {*tiles} <= {*e.args}, joined))


def _fixup(graph: KernelGraph) -> str:
    """The kind of fix-up of a graph, one of `FIXUPS`, from its operations on partial sums."""
    operations = graph.control.operations
    if any(isinstance(op, AddPartial) for op in operations):
        return "scatter"
    received = [op for op in operations if isinstance(op, ReceivePartial)]
    if not received:
        return "none"
    if any(op.turn for op in received):
        return "turnstile"
    doubling = any(
        isinstance(op, For)
        and op.step == graph.coordinates.symbol(op.dim)
        and any(isinstance(inner, ReceivePartial) for inner in op.walk())
        for op in operations
    )
    return "tree" if doubling else "peers"


def _small(graph: KernelGraph) -> tuple[int, int]:
    """Number of small tiles in a macro tile along m and n; (1, 1) if all tiles have one shape."""
    large, *small = (tiling.shape for tiling in graph.tilings)
    if not small:
        return (1, 1)
    return large[0] // small[0][0], large[1] // small[0][1]
