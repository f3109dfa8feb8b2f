"""Parameters: the integers of a kernel that are known at launch.

Problem sizes are launch arguments; tile counts, shares and the like are expressions in them that
the host evaluates once a launch. Bounds on them decide how wide index arithmetic must be, so they
are checked at every launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sympy import Expr, Integer, Symbol, sympify

from coordgraph.errors import LaunchError, VerifyError
from coordgraph.integers import Ranges, evaluate, index_symbol, simplify, size_symbol, to_text

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
        return Parameters((*self.items, parameter), self.assumptions), parameter.symbol

    def assume(self, expr: Expr, maximum: int) -> Parameters:
        """Add an assumption, unless it is there already or plainly true."""
        assumption = Assumption(sympify(expr).expand(), maximum)
        if assumption.expr.is_Integer and int(assumption.expr) > maximum:
            raise VerifyError(f"{to_text(expr)} = {assumption.expr} is over {maximum}")
        if assumption.expr.is_Integer or assumption in self.assumptions:
            return self
        return Parameters(self.items, (*self.assumptions, assumption))

    def ranges(self, *, definitions: bool = False) -> Ranges:
        """What is known of the parameters' symbols; with their definitions for proofs of sizes."""
        ranges = Ranges()
        for p in self.items:
            ranges = ranges.with_bounds(p.symbol, Integer(p.minimum), (Integer(p.maximum),))
            if definitions and p.value is not None:
                ranges = ranges.with_definition(p.symbol, p.value)
        for assumption in self.assumptions:
            ranges = ranges.with_fact(assumption.expr, assumption.maximum)
        return ranges

    def evaluate(self, given: Mapping[str, int]) -> dict[str, int]:
        """Every parameter's value, checked against its bounds and the assumptions.

        Raises:
            LaunchError: a given parameter is missing, unknown or out of bounds.
        """
        unknown = sorted(set(given) - {p.name for p in self.given})
        if unknown:
            raise LaunchError(f"not a parameter of this kernel: {', '.join(unknown)}")
        values: dict[str, int] = {}
        for p in self.items:
            if p.value is not None:
                values[p.name] = int(evaluate(p.value, values))
            elif p.name in given:
                values[p.name] = int(given[p.name])
            else:
                raise LaunchError(f"the parameter '{p.name}' needs a value ({p.note})")
            if p.value is None:
                _check_bounds(p, values[p.name])
        for a in self.assumptions:
            if (value := int(evaluate(a.expr, values))) > a.maximum:
                raise LaunchError(
                    f"{to_text(a.expr)} = {value} is over {a.maximum}, which the kernel's index "
                    "arithmetic relies on; use a larger tile or part the problem"
                )
        for p in self.items:
            _check_bounds(p, values[p.name])
        return values


def _check_bounds(parameter: Parameter, value: int) -> None:
    if not parameter.minimum <= value <= parameter.maximum:
        note = f" ({parameter.note})" if parameter.note else ""
        raise LaunchError(
            f"{parameter.name} = {value} is outside {parameter.minimum}..{parameter.maximum}{note}"
        )
