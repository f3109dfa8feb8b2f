"""Launch-time parameters: integers that index expressions of a kernel read.

The caller of a kernel gives some parameters, such as the problem's extents. Other parameters, such
as tile counts, are expressions in earlier parameters, which the host evaluates once per launch.
Bounds of parameters decide how many bits index arithmetic needs, so every launch checks them.

A parameter whose value depends on a table in device memory is *deferred*: the kernel computes it
when it starts, and the host knows only its bounds.
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
"""The largest value of a signed 32-bit index."""
LARGEST_SIZE = 2**31 - 4096
"""The largest m, n or k, in elements: the extent rounded up to whole tiles still fits in 32
bits."""


@dataclass(frozen=True)
class Parameter:
    """A launch-time integer, which the caller gives or which follows from earlier parameters.

    Args:
        name: the name of the parameter and of its symbol in expressions.
        minimum, maximum: the smallest and the largest allowed value; every launch checks both.
        value: the value as an expression in earlier parameters; None if the caller gives it.
        note: what the parameter means, for diagrams and error messages.

    Raises:
        VerifyError: `minimum` is larger than `maximum`.
    """

    name: str
    minimum: int = 1
    maximum: int = LARGEST_SIZE
    value: Expr | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.minimum > self.maximum:
            raise VerifyError(
                f"the parameter '{self.name}' has the empty range {self.minimum}..{self.maximum}; "
                "write the smallest allowed value first"
            )

    @property
    def symbol(self) -> Symbol:
        """The SymPy symbol of the parameter; positive if the minimum is at least 1, else >= 0."""
        return size_symbol(self.name) if self.minimum >= 1 else index_symbol(self.name)


@dataclass(frozen=True)
class Assumption:
    """The condition `expr <= maximum` on launch parameters, which every launch checks.

    Code generation relies on assumptions to choose the bit width of index arithmetic.
    """

    expr: Expr
    maximum: int = LARGEST_INDEX


@dataclass(frozen=True)
class Parameters:
    """The launch-time parameters of a kernel, assumptions about parameters, and tables of integers.

    Args:
        items: the parameters; each depends only on parameters before it.
        assumptions: upper bounds of expressions in the parameters.
        tables: the tables of integers that index expressions read, in an order in which each table
            reads only earlier tables.
    """

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
        raise VerifyError(f"there is no parameter '{name}'; the kernel has {names or 'none'}")

    @property
    def given(self) -> tuple[Parameter, ...]:
        """The parameters whose values the caller of the kernel gives."""
        return tuple(p for p in self.items if p.value is None)

    @cached_property
    def deferred(self) -> frozenset[str]:
        """The names of the parameters that the kernel computes from tables when it starts."""
        found: set[str] = set()
        for p in self.items:
            if p.value is not None and (
                tables_in(p.value) or any(s.name in found for s in symbols_of(p.value))
            ):
                found.add(p.name)
        return frozenset(found)

    def known_to_host(self, expr: Expr) -> bool:
        """Whether the host can evaluate `expr` at launch: it depends on no table's entries."""
        return not tables_in(expr) and not any(s.name in self.deferred for s in symbols_of(expr))

    def define(self, name: str, value: Expr, minimum: int, note: str) -> tuple[Parameters, Expr]:
        """Add a parameter with the value `value`; returns the new record and the new symbol.

        A value that simplifies to a number or to one symbol adds no parameter; this number or
        symbol is returned in place of the new symbol.

        Raises:
            VerifyError: another parameter has this name, with another value.
        """
        value = simplify(sympify(value), self.ranges())
        if isinstance(value, Integer | Symbol):
            return self, value
        if name in self:
            if self[name].value == value:
                return self, self[name].symbol
            raise VerifyError(
                f"a parameter '{name}' with another value exists already; choose another name for "
                "the new parameter"
            )
        _, high = self.ranges().interval(value)
        maximum = LARGEST_INDEX if high is None else min(high, LARGEST_INDEX)
        parameter = Parameter(name, minimum, maximum, value, note)
        return replace(self, items=(*self.items, parameter)), parameter.symbol

    def give(self, parameter: Parameter) -> Parameters:
        """Add a parameter whose value the caller of the kernel gives."""
        return replace(self, items=(*self.items, parameter))

    def tabled(self, table: Table) -> Parameters:
        """Add a table of integers that index expressions may read."""
        return replace(self, tables=(*self.tables, table))

    def assume(self, expr: Expr, maximum: int) -> Parameters:
        """Add the assumption `expr <= maximum`, unless it is present or `expr` is a number.

        Raises:
            VerifyError: `expr` is a number larger than `maximum`.
        """
        assumption = Assumption(sympify(expr).expand(), maximum)
        if assumption.expr.is_Integer and int(assumption.expr) > maximum:
            raise VerifyError(
                f"an index of this kernel reaches {assumption.expr}, more than the allowed "
                f"{maximum}; make the problem or the grid smaller"
            )
        if assumption.expr.is_Integer or assumption in self.assumptions:
            return self
        return replace(self, assumptions=(*self.assumptions, assumption))

    def ranges(self, *, definitions: bool = False) -> Ranges:
        """The known bounds of the parameters, of assumed expressions, and of the tables' entries.

        Calls with the same argument return the same object, because a `Ranges` caches its proofs.

        Args:
            definitions: whether proofs may also use the expressions that define parameters, as
                proofs about sizes need.
        """
        return self._defined_ranges if definitions else self._plain_ranges

    def forget_proofs(self) -> None:
        """Free the memory of all proofs by `ranges`; later calls of `ranges` begin without them."""
        for name in ("_plain_ranges", "_defined_ranges"):
            vars(self).pop(name, None)

    @cached_property
    def _plain_ranges(self) -> Ranges:
        ranges = Ranges()
        for p in self.items:
            ranges = ranges.with_bounds(p.symbol, Integer(p.minimum), (Integer(p.maximum),))
        for table in self.tables:
            ranges = table.known_in(ranges)
        for assumption in self.assumptions:
            ranges = ranges.with_fact(assumption.expr, assumption.maximum)
        return ranges

    @cached_property
    def _defined_ranges(self) -> Ranges:
        values = {p.symbol: p.value for p in self.items if p.value is not None}
        return self._plain_ranges.with_definitions(values)

    @cached_property
    def examples(self) -> tuple[Mapping[str, int], ...]:
        """Values of all parameters, by name, in one or two example launches.

        In the first example, every parameter that the caller gives is 1, in the second it is 1000;
        a parameter whose bounds exclude this number has the nearest allowed value. A kernel with
        tables has only the first example, because checks with tables take longer. Examples that
        violate an assumption are left out, so the result may be empty.
        """
        found: list[Mapping[str, int]] = []
        for size in (1,) if self.tables else (1, 1000):
            given = {p.name: min(max(size, p.minimum), p.maximum) for p in self.given}
            with suppress(CoordGraphError, ArithmeticError, LookupError):
                found.append(self.evaluate(given))
        return tuple(found)

    def evaluate(
        self, given: Mapping[str, int], tables: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, int]:
        """Compute the value of every parameter, and check bounds and assumptions.

        If `tables` is None, the result lacks the deferred parameters, and an assumption about
        deferred parameters is checked for the largest value that their bounds allow.

        Args:
            given: the value of each parameter that the caller gives, by name.
            tables: the entries of each table that the caller gives, by name.

        Raises:
            LaunchError: a parameter is missing, unknown or out of bounds, an assumption does not
                hold, or a table contradicts its declaration.
        """
        values = self._host_values(given)
        upper_bound = self._upper_bound(dict(values))
        if self.tables and tables is not None:
            entries = tabulate(self.tables, tables, values)
            for p in self.items:
                if p.name in self.deferred and p.value is not None:
                    values[p.name] = _from_tables(p.name, p.value, {**values, **entries})
        for a in self.assumptions:
            exact = all(s.name in values for s in symbols_of(a.expr))
            value = int(evaluate(a.expr, values)) if exact else upper_bound(a.expr)
            if value is None or value > a.maximum:
                found = f"= {value}" if exact else f"can be {value or 'arbitrarily large'}"
                raise LaunchError(
                    f"{to_text(a.expr)} {found}, but the kernel's index arithmetic allows at most "
                    f"{a.maximum}; use a larger tile or split the problem"
                )
        for p in self.items:
            if p.name in values:
                _check_bounds(p, values[p.name])
        return values

    def launch(
        self, given: Mapping[str, int], tables: Mapping[str, Sequence[int]]
    ) -> dict[str, Any]:
        """The value of every parameter and the entries of every table in one launch, by name.

        Args:
            given: the value of each parameter that the caller gives, by name.
            tables: the entries of each table that the caller gives, by name.

        Raises:
            LaunchError: a parameter or a table is missing, unknown or out of bounds, or an
                assumption does not hold.
        """
        values = self.evaluate(given, tables)
        return {**values, **tabulate(self.tables, tables, values)}

    def _host_values(self, given: Mapping[str, int]) -> dict[str, int]:
        """Values of the parameters that do not depend on tables, which are in device memory."""
        unknown = sorted(set(given) - {p.name for p in self.given})
        if unknown:
            known = ", ".join(p.name for p in self.given)
            raise LaunchError(
                f"not a parameter of this kernel: {', '.join(unknown)}; leave it out, or give one "
                f"of: {known or 'none'}"
            )
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
                raise LaunchError(
                    f"the parameter '{p.name}' needs a value ({p.note}); pass it at the launch"
                )
        return values

    def _upper_bound(self, values: Mapping[str, int]) -> Callable[[Expr], int | None]:
        """A function that bounds an expression from above for any entries of the tables.

        The function returns None if no bound is known. The ranges of symbols are built in its first
        call, because this takes longer than the rest of a launch, and no bound is needed if the
        entries of all tables are given.

        Args:
            values: the values of the parameters that the host knows.
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
    """Evaluate the expression `value` of the parameter `name`.

    Raises:
        LaunchError: the expression divides by 0.
    """
    try:
        return int(evaluate(value, values))
    except ZeroDivisionError as error:
        raise LaunchError(
            f"{name} = {to_text(value)} divides by 0 in this launch; change the launch arguments, "
            "or in the graph make the divisor at least 1"
        ) from error


def _from_tables(name: str, value: Expr, values: Mapping[str, Any]) -> int:
    """Evaluate the expression `value` of the parameter `name`, which reads tables.

    Raises:
        LaunchError: the expression reads outside a table.
    """
    try:
        return int(evaluate(value, values))
    except NoEntry as error:
        raise LaunchError(
            f"the parameter {name} = {to_text(value)} reads outside a table in this launch: {error}"
        ) from error


def _check_bounds(parameter: Parameter, value: int) -> None:
    if not parameter.minimum <= value <= parameter.maximum:
        note = f" ({parameter.note})" if parameter.note else ""
        raise LaunchError(
            f"{parameter.name} = {value} is outside "
            f"{parameter.minimum}..{parameter.maximum}{note}; give a value in this range"
        )
