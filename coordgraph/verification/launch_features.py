"""Features of launches: which cases of the graph's formulas (minima, conditions) occur in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, permutations
from typing import cast

from sympy import Basic, Expr, Symbol
from sympy.core.relational import Relational

from coordgraph.errors import CoordGraphError
from coordgraph.gemm import AXES
from coordgraph.integers import (
    FloorMod,
    Maximum,
    Minimum,
    compile_function,
    nodes_of,
    symbols_of,
    tables_in,
)
from coordgraph.kernel import KernelGraph
from coordgraph.tilings import macro_tile
from coordgraph.verification.launch import Launch
from coordgraph.verification.packing import PACKED

__all__ = ["LaunchFeatures"]

Feature = tuple[object, ...]


class LaunchFeatures:
    """Evaluates features of launches, such as whether a remainder in the graph's formulas is 0."""

    def __init__(self, graph: KernelGraph) -> None:
        self._gemm = graph.gemm
        self._shape = dict(zip(AXES, macro_tile(graph.coordinates), strict=True))
        self._bits: dict[Feature, int] = {}
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

    def of(self, launch: Launch) -> int | None:
        """The features of a launch as a bit set; None if the graph does not allow the launch.

        A feature is, for example, that the remainder m mod 128 is 0.
        """
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
        except (CoordGraphError, ArithmeticError, LookupError):
            return None  # a division by 0 here is reported by the function `zero_divisions`
        try:
            sides = iter(self._sides(*values))
        # A formula divides by 0 in this launch, but it may be in a branch that the kernel does not
        # execute. So the launch is kept, without features of formulas.
        except ArithmeticError:
            sides = iter(())
        except (CoordGraphError, LookupError):
            return None
        found: set[Feature] = {
            (p.name, min(value, 2))
            for p, value in zip(self._host, values, strict=True)
            if p.value is not None or p.maximum == 1
        }
        for number, (left, right) in enumerate(zip(sides, sides, strict=True)):
            found.add((number, _relation(self._nodes[number], left, right)))
        found.update(self._of_tiles(launch))
        names = [p.name for p in self._host]
        lengths = {i for i, name in enumerate(names) if name in AXES or name.startswith(PACKED)}
        counts = [(i, v) for i, v in enumerate(values) if i not in lengths]
        for (i, one), (j, other) in permutations(counts, 2):
            # For every two parameters that count tiles, workgroups or iterations, one feature says
            # whether the remainder `one % other` is 0, 1 or `other - 1` (see `_rest`).
            found.add((i, j, "rest", _rest(one, other) if other > 1 else None))
            found.add((i, j, "times", (one // other).bit_length() if other else None))
        return sum(1 << self._bits.setdefault(feature, len(self._bits)) for feature in found)

    def _of_tiles(self, launch: Launch) -> Iterator[Feature]:
        """Yield features from tile counts, such as whether an axis ends with a partial tile."""
        counts: list[int] = []
        for axis, extent in self._shape.items():
            length = getattr(self._gemm, axis) or launch.values.get(axis, 0)
            yield ("ragged", axis, length % extent != 0)
            counts.append(-(-length // extent))
        m, n, k = counts
        yield ("one k tile", k == 1)
        yield ("rows", (m > n) - (m < n))
        yield ("cube", m == n == k)
        for name, entries in launch.tables.items():
            yield (name, *(min(b - a, 1) for a, b in pairwise(entries)))
        if (grid := launch.values.get("workgroups")) is not None:
            yield ("waves", _rest(m * n, grid), min(m * n // grid, 2))
            yield ("idle", m * n * k < grid)


def _nodes(graph: KernelGraph, known: set[Symbol]) -> list[Basic]:
    """The graph's minima, maxima, comparisons and remainders of launch parameters.

    The values of their arguments decide which case occurs in a launch, for example which argument
    of a minimum is less. Subexpressions that contain indices or entries of tables are left out.
    """
    found = {
        node
        for value in graph.expressions
        for node in nodes_of(value, FloorMod, Minimum, Maximum, Relational)
        if len(node.args) == 2 and symbols_of(node) <= known and not tables_in(cast(Expr, node))
    }
    return sorted(found, key=str)


def _relation(node: Basic, left: int, right: int) -> object:
    """How the arguments of `node` compare: the sign of `left - right`.

    For a node `left % right`, the class of this remainder; see `_rest`.
    """
    if isinstance(node, FloorMod):
        return _rest(left, right)
    return (left > right) - (left < right)


def _rest(value: int, divisor: int) -> str:
    """The class of `value % divisor`: `0`, `1`, `last` for `divisor - 1`, else `other`."""
    rest = value % divisor if divisor else 0
    return "0" if not rest else "1" if rest == 1 else "last" if rest == divisor - 1 else "other"
