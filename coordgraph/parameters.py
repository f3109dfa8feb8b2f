"""Parameters: the integers of a kernel that are known at launch.

Problem sizes are launch arguments; tile counts, shares and the like are expressions in them that
the host evaluates once a launch. Bounds on them decide how wide index arithmetic must be, so they
are checked at every launch.

A parameter whose value reads a table, itself or through another parameter, is *deferred*: the
kernel works it out when it begins. The host knows its bounds alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from sympy import Expr, Integer, Symbol, sympify

from coordgraph.errors import CoordGraphError, LaunchError, NoEntry, VerifyError
from coordgraph.integers import (
    Ranges,
    evaluate,
    index_symbol,
    simplify,
    size_symbol,
    symbols_of,
    tables_in,
    to_text,
)
from coordgraph.tables import Table, tabulate
from coordgraph.validation import whole

__all__ = ["LARGEST_INDEX", "LARGEST_SIZE", "Assumption", "Parameter", "Parameters"]

LARGEST_INDEX = 2**31 - 1
"""What a 32-bit signed index can hold."""
LARGEST_SIZE = 2**31 - 4096
"""The largest m, n or k: padded to a whole tile it still fits 32 bits."""


@dataclass(frozen=True)
class Parameter:
    """A launch-time integer: given by the caller, or `value` in terms of earlier parameters."""

    name: str
    minimum: int = 1
    maximum: int = LARGEST_SIZE
    value: Expr | None = None
    note: str = ""

    @property
    def symbol(self) -> Symbol:
        """Positive where the minimum says so, else non-negative."""
        return size_symbol(self.name) if self.minimum >= 1 else index_symbol(self.name)


@dataclass(frozen=True)
class Assumption:
    """`expr <= maximum`, checked at launch; index widths rely on it."""

    expr: Expr
    maximum: int = LARGEST_INDEX


@dataclass(frozen=True)
class Parameters:
    """All parameters of a kernel, in an order in which each reads only earlier ones."""

    items: tuple[Parameter, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    tables: tuple[Table, ...] = ()

    def __iter__(self) -> Iterable[Parameter]:  # type: ignore[override]
        return iter(self.items)

    def __contains__(self, name: object) -> bool:
        return any(p.name == name for p in self.items)

    def __getitem__(self, name: str) -> Parameter:
        for parameter in self.items:
            if parameter.name == name:
                return parameter
        names = ", ".join(p.name for p in self.items)
        raise VerifyError(f"there is no parameter '{name}'; there are {names or 'none'}")

    @property
    def given(self) -> tuple[Parameter, ...]:
        """The parameters that a caller gives."""
        return tuple(p for p in self.items if p.value is None)

    @cached_property
    def deferred(self) -> frozenset[str]:
        """The names of the parameters that the kernel itself works out from tables."""
        found: set[str] = set()
        for p in self.items:
            if p.value is not None and (
                tables_in(p.value) or any(s.name in found for s in symbols_of(p.value))
            ):
                found.add(p.name)
        return frozenset(found)

    def known_to_host(self, expr: Expr) -> bool:
        """Whether the host can evaluate an expression in parameters at launch."""
        return not tables_in(expr) and not any(s.name in self.deferred for s in symbols_of(expr))

    def define(self, name: str, value: Expr, minimum: int, note: str) -> tuple[Parameters, Expr]:
        """Add a derived parameter; a value that is a number is returned as it is."""
        value = simplify(sympify(value), self.ranges())
        if isinstance(value, Integer | Symbol):
            return self, value
        if name in self:
            if self[name].value == value:
                return self, self[name].symbol
            raise VerifyError(f"there is a parameter '{name}' already, with another value")
        _, high = self.ranges().interval(value)
        maximum = LARGEST_INDEX if high is None else min(high, LARGEST_INDEX)
        parameter = Parameter(name, minimum, maximum, value, note)
        return replace(self, items=(*self.items, parameter)), parameter.symbol

    def give(self, parameter: Parameter) -> Parameters:
        """Add a parameter that the caller gives."""
        return replace(self, items=(*self.items, parameter))

    def tabled(self, table: Table) -> Parameters:
        """Add a table."""
        return replace(self, tables=(*self.tables, table))

    def assume(self, expr: Expr, maximum: int) -> Parameters:
        """Add an assumption, unless it is there already or plainly true."""
        assumption = Assumption(sympify(expr).expand(), maximum)
        if assumption.expr.is_Integer and int(assumption.expr) > maximum:
            raise VerifyError(
                f"the sizes make an index of up to {assumption.expr}, over {maximum}; make the "
                "problem or the grid smaller"
            )
        if assumption.expr.is_Integer or assumption in self.assumptions:
            return self
        return replace(self, assumptions=(*self.assumptions, assumption))

    def ranges(self, *, definitions: bool = False) -> Ranges:
        """What is known of the parameters' symbols; with their definitions for proofs of sizes.

        The same object each time: it remembers what was proved.
        """
        return self._defined_ranges if definitions else self._plain_ranges

    @cached_property
    def _plain_ranges(self) -> Ranges:
        return self._ranges(definitions=False)

    @cached_property
    def _defined_ranges(self) -> Ranges:
        return self._ranges(definitions=True)

    @cached_property
    def examples(self) -> tuple[Mapping[str, int], ...]:
        """All parameters' values in a few launches that are allowed, as far as some are found.

        One is as small as can be, one larger; where there are tables, checks take longer and one
        has to do.
        """
        found: list[Mapping[str, int]] = []
        for size in (1,) if self.tables else (1, 1000):
            given = {p.name: min(max(size, p.minimum), p.maximum) for p in self.given}
            with suppress(CoordGraphError, ArithmeticError, LookupError):
                found.append(self.evaluate(given))
        return tuple(found)

    def _ranges(self, *, definitions: bool) -> Ranges:
        ranges = Ranges()
        for p in self.items:
            ranges = ranges.with_bounds(p.symbol, Integer(p.minimum), (Integer(p.maximum),))
            if definitions and p.value is not None:
                ranges = ranges.with_definition(p.symbol, p.value)
        for table in self.tables:
            ranges = table.known_in(ranges)
        for assumption in self.assumptions:
            ranges = ranges.with_fact(assumption.expr, assumption.maximum)
        return ranges

    def evaluate(
        self, given: Mapping[str, int], tables: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, int]:
        """Every parameter's value, checked against its bounds and the assumptions.

        Without the entries of tables, deferred parameters are left out, and assumptions are
        checked for every value that they may have.

        Args:
            given: values of the parameters that the caller gives.
            tables: entries of the given tables.

        Raises:
            LaunchError: a given parameter is missing, unknown or out of bounds, or a table is not
                as declared.
        """
        values = self._of_host(given)
        most = self._maximum(dict(values))
        if self.tables and tables is not None:
            entries = tabulate(self.tables, tables, values)
            for p in self.items:
                if p.name in self.deferred and p.value is not None:
                    values[p.name] = _from_tables(p.name, p.value, {**values, **entries})
        for a in self.assumptions:
            exact = all(s.name in values for s in symbols_of(a.expr))
            value = int(evaluate(a.expr, values)) if exact else most(a.expr)
            if value is None or value > a.maximum:
                found = f"= {value} is" if exact else f"may be {value or 'too large'},"
                raise LaunchError(
                    f"{to_text(a.expr)} {found} over {a.maximum}, which the kernel's index "
                    "arithmetic relies on; use a larger tile or part the problem"
                )
        for p in self.items:
            if p.name in values:
                _check_bounds(p, values[p.name])
        return values

    def launch(
        self, given: Mapping[str, int], tables: Mapping[str, Sequence[int]]
    ) -> dict[str, Any]:
        """The values of every parameter and entries of every table by name, given and derived."""
        values = self.evaluate(given, tables)
        return {**values, **tabulate(self.tables, tables, values)}

    def _of_host(self, given: Mapping[str, int]) -> dict[str, int]:
        """The values of all parameters that are not deferred."""
        unknown = sorted(set(given) - {p.name for p in self.given})
        if unknown:
            raise LaunchError(f"not a parameter of this kernel: {', '.join(unknown)}")
        values: dict[str, int] = {}
        for p in self.items:
            if p.name in self.deferred:
                continue
            if p.value is not None:
                values[p.name] = _evaluated(p.name, p.value, values)
            elif p.name in given:
                values[p.name] = whole(given[p.name], p.name, LaunchError)
                _check_bounds(p, values[p.name])
            else:
                raise LaunchError(f"the parameter '{p.name}' needs a value ({p.note})")
        return values

    def _maximum(self, values: Mapping[str, int]) -> Callable[[Expr], int | None]:
        """What expressions are at most, whatever tables hold; None where that is not known.

        Ranges are made at the first call: their proofs take longer than the rest of a launch, and a
        launch that has the entries of all tables needs none.
        """

        @cache
        def ranges() -> Ranges:
            known = Ranges()
            for p in self.items:
                low, high = Integer(p.minimum), Integer(p.maximum)
                if p.name in values:
                    low = high = Integer(values[p.name])
                known = known.with_bounds(p.symbol, low, (high,))
                if p.name not in values and p.value is not None:
                    known = known.with_definition(p.symbol, p.value)
            for table in self.tables:
                known = table.known_in(known)
            return known

        return lambda expr: ranges().interval(expr)[1]


def _evaluated(name: str, value: Expr, values: Mapping[str, int]) -> int:
    """The value of a parameter; LaunchError where it divides by 0."""
    try:
        return int(evaluate(value, values))
    except ZeroDivisionError as error:
        raise LaunchError(f"{name} = {to_text(value)} divides by 0 in this launch") from error


def _from_tables(name: str, value: Expr, values: Mapping[str, Any]) -> int:
    """The value of a deferred parameter; LaunchError where it reads what a table has not."""
    try:
        return int(evaluate(value, values))
    except NoEntry as error:
        raise LaunchError(
            f"{name} = {to_text(value)} reads {error}; the table is too short for it"
        ) from error


def _check_bounds(parameter: Parameter, value: int) -> None:
    if not parameter.minimum <= value <= parameter.maximum:
        note = f" ({parameter.note})" if parameter.note else ""
        raise LaunchError(
            f"{parameter.name} = {value} is outside {parameter.minimum}..{parameter.maximum}{note}"
        )
