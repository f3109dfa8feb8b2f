"""Derive an index: find its path through the coordinate graph, and evaluate it edge by edge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from sympy import Expr, Integer, Symbol
from sympy.logic.boolalg import And, Boolean, Or, false, true

from coordgraph.control.scope import Scoped
from coordgraph.coordinates.edges import Edge
from coordgraph.coordinates.rules import simplify_condition
from coordgraph.coordinates.traverse import Direction, solve
from coordgraph.derivation.addresses import address_of
from coordgraph.derivation.needs import needs_of, starts_of
from coordgraph.derivation.numbers import with_numbers
from coordgraph.derivation.points import (
    Point,
    check_inside,
    described,
    launch_values,
    missing_values,
    read_point,
)
from coordgraph.derivation.record import (
    Derivation,
    EdgeStep,
    GuardStep,
    IndexStep,
    ParameterStep,
)
from coordgraph.errors import EvaluationError, NoEntry
from coordgraph.integers import evaluate, simplify, symbols_of
from coordgraph.kernel import EXPLAIN, KernelGraph
from coordgraph.provenance.record import PROBLEM, Origin

__all__ = ["derive"]


@EXPLAIN.implement
def derive(
    graph: KernelGraph,
    wanted: str,
    at: Mapping[Any, Any] | None = None,
    *,
    forward: bool = False,
) -> Derivation:
    """Derive the index along the dimension `wanted`, edge by edge, from the indices in `at`."""
    direction = Direction.FORWARD if forward else Direction.REVERSE
    point = read_point(graph, at or {})
    ranges = graph.parameters.ranges()
    wanted = graph.coordinates[wanted].id
    if forward and not graph.coordinates.edges_above(wanted):
        raise EvaluationError(
            f"'{wanted}' is where the forward direction starts, so no edge computes it; leave out "
            "--forward (in Python: forward=True)"
        )
    used, missing = starts_of(graph.coordinates, direction, wanted, point.known, ranges)
    derivation = _Deriver(graph, direction, point, used, missing)
    return derivation.derive(wanted)


class _Deriver:
    """Walks the path of edges that computes one index, and collects its formulas and values.

    Args:
        graph: the kernel graph.
        direction: the direction of the path: to the tensors, or from the tensors.
        point: the indices, launch parameters and tables that the caller gives.
        used: names of the given coordinates that the path reads, as `starts_of` finds them.
        missing: names of the coordinates that the path reads and that the caller did not give.
    """

    def __init__(
        self,
        graph: KernelGraph,
        direction: Direction,
        point: Point,
        used: Sequence[str],
        missing: Sequence[str],
    ) -> None:
        self.graph, self.coordinates = graph, graph.coordinates
        self.direction, self.point, self.missing = direction, point, missing
        choices = self._choices()
        self.known: dict[str, Expr] = {}
        for name in (*used, *missing):
            value = point.known.get(name)
            number = isinstance(value, Integer) and name not in choices
            self.known[name] = self.coordinates.symbol(name) if number or value is None else value
        scope = Scoped(self.coordinates, graph.parameters.ranges()).hardware(self.known)
        self.ranges = scope.ranges

    def derive(self, wanted: str) -> Derivation:
        """The derivation of the index along the dimension `wanted`, with a step for each edge.

        Raises:
            EvaluationError: the caller gives numbers for some but not all of the coordinates and
                parameters that the index depends on.
        """
        solution = solve(self.coordinates, self.direction, self.known, [wanted], self.ranges)
        expression = solution.values[0]
        formulas = self._formulas(solution.path, wanted)
        read = {
            s.name
            for _, _, computed, guards, _ in formulas
            for e in (*computed.values(), *guards)
            for s in symbols_of(e)
        }
        read |= {s.name for s in symbols_of(expression)}
        values = self._values(read, wanted)
        steps = self._steps(formulas, values, wanted)
        if self.point.numeric and not self._open(read) and wanted not in values:
            raise EvaluationError(
                f"the index '{wanted}' has no value at this point; give numbers for all "
                "coordinates and launch parameters that it depends on"
            )
        derived = wanted in values
        address = address_of(
            self.graph, wanted, expression, self.known, self.ranges, values if derived else {}
        )
        dimension = self.coordinates[wanted]
        return Derivation(
            dimension.id,
            dimension.label,
            self.direction,
            {name: self.point.known.get(name, value) for name, value in self.known.items()},
            self._parameters(read, values),
            steps,
            expression,
            solution.guard,
            values if derived else {},
            address,
            _maker(self.graph.provenance.dimension(dimension.id)),
        )

    def _choices(self) -> set[str]:
        """Names of the selectors among the coordinates that the caller gives as numbers.

        The number of a selector decides which other indices an edge reads in the reverse
        direction. The result is empty for the forward direction.
        """
        if self.direction is Direction.FORWARD:
            return set()
        return {
            name
            for edge in self.coordinates.edges
            for name in edge.downstream
            if isinstance(value := self.point.known.get(name), Integer)
            and edge.reverse_needs({name: value})
            != edge.reverse_needs({name: self.coordinates.symbol(name)})
        }

    def _formulas(self, path: Iterable[Edge], wanted: str) -> list[_Formulas]:
        """For each edge on the path: its formulas, in terms of the indices that the edge reads."""
        path = tuple(path)
        forward = self.direction is Direction.FORWARD
        computed = set(self.known)
        found: list[_Formulas] = []
        for edge in path:
            reads, results = (
                (edge.upstream, edge.downstream) if forward else (edge.downstream, edge.upstream)
            )
            sizes = self.coordinates.sizes(edge)
            indices = [self._local(name) if name in computed else None for name in reads]
            if forward:
                formulas = edge.forward(cast("list[Expr]", indices), sizes, self.ranges)
                guards: tuple[Boolean, ...] = ()
            else:
                formulas = edge.reverse(indices, sizes, self.ranges)
                symbols = [self.coordinates.symbol(name) for name in results]
                guards = edge.guard(symbols, indices, sizes)
            outputs = {
                name: simplify(formula, self.ranges)
                for name, formula in zip(results, formulas, strict=True)
                if name not in computed
            }
            computed |= set(outputs)
            needs = needs_of(edge, self.direction, self.known)
            reads = tuple(dict.fromkeys(name for name in reads if name in needs))
            conditions = (true,) * len(edge.downstream) if forward else edge.reads_when(indices)
            found.append((edge, reads, outputs, guards, conditions))
        return _in_use(found, wanted)

    def _local(self, name: str) -> Expr:
        """The index of a dimension in formulas: the caller's number if given, else a symbol."""
        value = self.known.get(name)
        return value if isinstance(value, Integer) else self.coordinates.symbol(name)

    def _open(self, read: Iterable[str]) -> bool:
        """Whether some index or parameter that the path reads is given as a symbol or expression.

        The derived index then has a formula but no value.
        """
        return bool(self.point.symbolic & {*read, *self.known}) or any(
            not isinstance(value, Integer)
            for name, value in self.point.known.items()
            if name in self.known and name not in self.point.symbolic
        )

    def _symbols_of_size(self, name: str) -> frozenset[Symbol]:
        size = self.coordinates.size(name)
        return frozenset() if size is None else frozenset(symbols_of(size))

    def _values(self, read: Iterable[str], wanted: str) -> dict[str, Any]:
        """The values that the formula of the index `wanted` needs, by name.

        They are the coordinates that the caller gave, and the parameters and tables in `read`.

        Args:
            read: names of the coordinates, parameters and tables that the formula reads.
            wanted: the name of the dimension whose index is derived.

        Raises:
            EvaluationError: the caller gave no value for a coordinate or parameter in `read`.
        """
        if not self.point.numeric:
            return {}
        sizes = {n: self._symbols_of_size(n) for n in (*self.known, wanted)}
        bounds = {s.name for symbols in sizes.values() for s in symbols}
        values = launch_values(self.graph, self.point, {*read, *bounds})
        lacking = [described(self.graph, name, values) for name in self.missing]
        lacking += missing_values(self.graph, self.point, read)
        if lacking:
            raise EvaluationError(
                f"the index '{wanted}' at this point also depends on {', '.join(lacking)}; give "
                "these values too, or None for those that are to stay symbols"
            )
        check_inside(self.graph, self.point, self.known, values)
        shown = {*read, *(s.name for s in sizes[wanted])}
        kept = launch_values(self.graph, self.point, shown)
        indices = {n: i for n in self.known if (i := self.point.index(n)) is not None}
        return {**kept, **indices}

    def _steps(
        self, formulas: list[_Formulas], values: dict[str, Any], wanted: str
    ) -> tuple[EdgeStep, ...]:
        """The derivation's step for each edge; adds the values of computed indices to `values`."""
        composed = {self.coordinates.symbol(n): v for n, v in self.known.items()}
        applies = _applies(formulas, wanted)
        computed: list[tuple[IndexStep, ...]] = []
        last = self._last(name for _, _, outputs, _, _ in formulas for name in outputs)
        for _, _, outputs, _, _ in formulas:
            indices: list[IndexStep] = []
            for name, formula in outputs.items():
                whole = simplify(cast(Expr, formula.xreplace(composed)), self.ranges)
                value = _number(formula, values)
                numbers = "" if value is None else with_numbers(formula, values)
                indices.append(IndexStep(name, formula, whole, value, numbers, last.get(name)))
                if value is not None:
                    values[name] = value
            composed.update({self.coordinates.symbol(i.dimension): i.expression for i in indices})
            computed.append(tuple(indices))
        steps: list[EdgeStep] = []
        # `padding` is True after a guard has failed: the indices that are computed after that may
        # be outside their dimensions.
        padding = False
        for (edge, reads, _, guards, _), found, condition in zip(
            formulas, computed, applies, strict=True
        ):
            checked = tuple(self._guard(g, condition, composed, values) for g in guards)
            if not padding:
                found = tuple(self._placed(i, guards, condition, values) for i in found)
            padding |= any(guard.refuses for guard in checked)
            maker = _maker(self.graph.provenance.edge(edge))
            steps.append(EdgeStep(edge, self.direction, reads, found, checked, maker))
        return tuple(steps)

    def _last(self, names: Iterable[str]) -> dict[str, int]:
        """For each dimension in `names`, its largest valid index: its size minus 1.

        A dimension is left out if the launch parameters that the caller gives do not determine its
        size.
        """
        if not self.point.numeric:
            return {}
        sizes = {n: size for n in names if (size := self.coordinates.size(n)) is not None}
        read = {s.name for size in sizes.values() for s in symbols_of(size)}
        values = launch_values(self.graph, self.point, read)
        found = {name: _number(size, values) for name, size in sizes.items()}
        return {name: size - 1 for name, size in found.items() if size is not None}

    def _placed(
        self,
        index: IndexStep,
        guards: Iterable[Boolean],
        applies: Boolean,
        values: Mapping[str, Any],
    ) -> IndexStep:
        """A copy of `index` with `outside` set if its value is not inside its dimension.

        `index` itself is returned if a guard may make the index padding, if nothing uses the index,
        or in the forward direction, where the indices that the caller gives may be padding.
        """
        symbol = self.coordinates.symbol(index.dimension)
        if (
            self.direction is Direction.FORWARD
            or index.value is None
            or index.last is None
            or 0 <= index.value <= index.last
            or any(symbol in symbols_of(guard) for guard in guards)
            or _number(applies, values) is False
        ):
            return index
        return replace(index, outside=True)

    def _guard(
        self,
        guard: Boolean,
        applies: Boolean,
        composed: Mapping[Any, Expr],
        values: Mapping[str, Any],
    ) -> GuardStep:
        whole = simplify_condition(cast(Boolean, guard.xreplace(dict(composed))), self.ranges)
        value, applied = _number(guard, values), _number(applies, values)
        return GuardStep(
            guard,
            applies,
            None if value is None else bool(value),
            None if applied is None else bool(applied),
            "" if value is None else with_numbers(guard, values),
            whole == true,
        )

    def _parameters(
        self, read: Iterable[str], values: Mapping[str, Any]
    ) -> tuple[ParameterStep, ...]:
        wanted = {*read, *values}
        return tuple(
            ParameterStep(p.name, p.value, values.get(p.name), p.note)
            for p in self.graph.parameters.items
            if p.name in wanted
        )


def _maker(origin: Origin) -> str:
    """The names of the passes that added or changed an edge or a dimension, separated by commas."""
    made = () if origin.made in ("", PROBLEM) else (origin.made,)
    return ", ".join((*made, *origin.changed))


_Formulas = tuple[Edge, tuple[str, ...], dict[str, Expr], tuple[Boolean, ...], tuple[Boolean, ...]]
"""An edge, the dimensions that it reads, the formula of each index that it computes, its guards,
and for each downstream operand the condition under which the edge reads it."""


def _in_use(found: list[_Formulas], wanted: str) -> list[_Formulas]:
    """Keep only the formulas of `wanted` and of indices that later edges or guards read."""
    used = {wanted}
    kept: list[_Formulas] = []
    for edge, reads, outputs, guards, conditions in reversed(found):
        mine = {name: formula for name, formula in outputs.items() if name in used}
        names = {s.name for g in guards for s in symbols_of(g)}
        mine.update({name: f for name, f in outputs.items() if name in names})
        used |= set(reads)
        kept.append((edge, reads, mine, guards, conditions))
    return kept[::-1]


def _applies(formulas: list[_Formulas], wanted: str) -> list[Boolean]:
    """For each edge in `formulas`, the condition under which the index `wanted` depends on it."""
    read: dict[str, Boolean] = {wanted: true}
    found: list[Boolean] = []
    for edge, _, outputs, _, conditions in reversed(formulas):
        here = Or(*(read[name] for name in outputs if name in read))
        found.append(here)
        for name, condition in zip(edge.downstream, conditions, strict=True):
            read[name] = Or(read.get(name, false), And(here, condition))
    return found[::-1]


def _number(expr: Expr | Boolean, values: Mapping[str, Any]) -> int | None:
    """The value of an expression; None if a symbol has no value or a table lacks the entry."""
    if not values and symbols_of(expr):
        return None
    with suppress(KeyError, NoEntry, ZeroDivisionError):
        return evaluate(expr, values)
    return None
