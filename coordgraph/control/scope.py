"""Scopes: what is bound, and what is known of it, at a place in the control graph.

The interpreter, code generation and passes all walk a control graph; each takes the same steps
here, so an index means the same everywhere and is simplified under the same ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from sympy import Expr, Ge, Gt, Integer, Le, Lt, Symbol, sympify
from sympy.core.basic import Basic
from sympy.logic.boolalg import And, Boolean

from coordgraph.control.asynchronous import Counter
from coordgraph.control.operations import Assign, For, If, Inside, Locate, SetCoordinate
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.coordinates.rules import simplify_condition
from coordgraph.coordinates.traverse import Direction, Solution, solve
from coordgraph.errors import VerifyError
from coordgraph.integers import Ranges, ceil_div, index_symbol, operands, simplify, symbols_of

__all__ = ["Loop", "Scoped"]

ExpressionT = TypeVar("ExpressionT", Expr, Boolean)
MOST_STEPS = 2**30
"""No workgroup takes so many steps in one launch."""


@dataclass(frozen=True)
class Loop:
    """A `For` as code generation runs it: `symbol` counts from `start` to `stop` by `step`."""

    symbol: Symbol
    start: Expr
    stop: Expr
    step: Expr


@dataclass(frozen=True)
class Scoped:
    """The coordinates bound around an operation, and the ranges of their symbols."""

    coordinates: CoordinateGraph
    ranges: Ranges
    known: Mapping[str, Expr] = field(default_factory=dict)
    definitions: Mapping[Symbol, Expr] = field(default_factory=dict)
    fixed: frozenset[Symbol] = frozenset()
    """What is known before anything runs and never changes: parameters, the machine's indices."""

    def binding(self, dim: str, value: Expr) -> Scoped:
        """Inside, the index along `dim` is `value`."""
        return replace(self, known={**self.known, dim: value})

    def hardware(self, dims: Iterable[str]) -> Scoped:
        """The machine gives these; their symbols stand for themselves."""
        scope = self
        for dim in dims:
            symbol, size = self.coordinates.symbol(dim), self.coordinates.size(dim)
            ranges = scope.ranges if size is None else scope.ranges.with_index(symbol, size)
            scope = replace(scope, ranges=ranges).binding(dim, symbol)
        return replace(scope, fixed=frozenset(scope.ranges.bounds))

    def resolve(self, expr: Expr) -> Expr:
        """An operation's expression with the bound dimensions put in, simplified."""
        return simplify(self._put_in(sympify(expr)), self.ranges)

    def resolve_condition(self, condition: Boolean) -> Boolean:
        """The same for a condition; `true` or `false` where it is decided."""
        return simplify_condition(self._put_in(condition), self.ranges)

    def condition(self, op: If | Inside) -> Boolean:
        """When the first body of a branch is taken; `true` or `false` where it is decided."""
        if isinstance(op, Inside):
            return self.reverse(*op.dims).guard
        return self.resolve_condition(op.condition)

    def enter_for(self, op: For) -> tuple[Loop, Scoped]:
        """The loop to run and the scope of its body.

        A step that is known before anything runs makes the index `start + step·ordinal`, so that
        what is a multiple of the step is seen to be one.
        """
        start, stop, step = self.resolve(op.start), self.resolve(op.stop), self._put_in(op.step)
        if step == 1 or not step.free_symbols <= self.fixed:
            last = self.expand(stop) - 1
            ranges = self.ranges.with_bounds(op.symbol, self.expand(start), (last,))
            scope = replace(self, ranges=ranges).binding(op.dim, op.symbol)
            return Loop(op.symbol, start, stop, scope.resolve(op.step)), scope
        ordinal = index_symbol(f"{op.dim}.ordinal")
        count = simplify(ceil_div((stop - start).expand(), step), self.ranges)
        ranges = self.ranges.with_bounds(ordinal, Integer(0), (self.expand(count) - 1,))
        scope = replace(self, ranges=ranges).binding(op.dim, start + step * ordinal)
        return Loop(ordinal, Integer(0), count, Integer(1)), scope

    def enter_counter(self, op: Counter) -> Scoped:
        """The scope of a `Counter`'s body: a number that the machine keeps."""
        symbol = self.coordinates.symbol(op.dim)
        ranges = self.ranges.with_bounds(symbol, Integer(0), (Integer(MOST_STEPS),))
        return replace(self, ranges=ranges).binding(op.dim, symbol)

    def enter_if(self, condition: Boolean) -> Scoped:
        """The scope of a body whose (resolved) condition holds."""
        ranges = self.ranges
        for part in operands(condition) if isinstance(condition, And) else (condition,):
            match part:
                case Lt():
                    small, large, gap = part.lhs, part.rhs, 1
                case Le():
                    small, large, gap = part.lhs, part.rhs, 0
                case Gt():
                    small, large, gap = part.rhs, part.lhs, 1
                case Ge():
                    small, large, gap = part.rhs, part.lhs, 0
                case _:
                    continue
            # Sizes bound indices: to bound one by them would send proofs round in circles.
            if isinstance(small, Symbol) and not small.is_positive:
                ranges = ranges.with_upper(small, self.expand(large) - gap)
        return replace(self, ranges=ranges)

    def enter_set(self, op: SetCoordinate) -> tuple[Expr | None, Scoped]:
        """The value that the dimension's symbol takes, and the scope of the body.

        A number or a name stands for the index itself (no value to compute, None); anything else
        is computed once and keeps the dimension's symbol, so that expressions stay short. What
        is computed of things that never change does not change in the body either.

        Raises:
            VerifyError: the dimension never changes where it stands, and would here.
        """
        value, symbol = self.resolve(op.value), self.coordinates.symbol(op.dim)
        if value.is_Integer or value.is_Symbol or symbol in value.free_symbols:
            return None, self.binding(op.dim, value)
        if symbol in self.fixed:
            raise VerifyError(f"'{op.dim}' is set already, to what must not change inside")
        expanded = self.expand(value)
        ranges = self.ranges.with_value(symbol, expanded, self.fixed)
        fixed = self.fixed | {symbol} if symbols_of(expanded) <= self.fixed else self.fixed
        return value, replace(self, ranges=ranges, fixed=fixed).binding(op.dim, symbol)

    def enter_locate(self, op: Locate) -> tuple[tuple[Expr, ...], Scoped]:
        """The values that the dimensions' symbols take, one after another, and the body's scope."""
        values: list[Expr] = []
        named: dict[Expr, Expr] = {}
        scope = self
        for dim in op.dims:
            value, symbol = self.reverse(dim).values[0], self.coordinates.symbol(dim)
            # What is known of the value is known of the whole expression, before names stand in it.
            expanded = self.expand(value)
            ranges = scope.ranges.with_value(symbol, expanded, self.fixed)
            ranges = ranges.with_found(symbol, expanded)
            scope = replace(scope, ranges=ranges).binding(dim, symbol)
            values.append(cast(Expr, value.xreplace(named)))
            named[value] = symbol
        return tuple(values), scope

    def assign(self, op: Assign) -> tuple[Expr, Scoped]:
        """The value of an `Assign` and the scope of what follows it."""
        value = self.resolve(op.value)
        definitions = {**self.definitions, op.symbol: self.expand(value)}
        ranges = self.ranges.with_value(op.symbol, self.expand(value), self.fixed)
        return value, replace(self, ranges=ranges, definitions=definitions)

    def reverse(self, *wanted: str) -> Solution:
        """Upstream coordinates here, and the condition that they are not padding."""
        return solve(self.coordinates, Direction.REVERSE, self.known, wanted, self.ranges)

    def _put_in(self, expr: ExpressionT) -> ExpressionT:
        values = {index_symbol(dim): value for dim, value in self.known.items()}
        return cast(ExpressionT, expr.xreplace({s: v for s, v in values.items() if s != v}))

    def expand(self, expr: Basic) -> Expr:
        """The names of `Assign` replaced by what they stand for (proofs look through them)."""
        return cast(Expr, expr.xreplace(dict(self.definitions)))
