"""Scopes: the known indices, and the known ranges of symbols, at an operation of a control graph.

The interpreter, the code generators and passes all walk control graphs through these scopes, so
that they compute the same indices and simplify indices under the same ranges.
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
from coordgraph.control.tickets import DynamicFor
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.coordinates.rules import simplify_condition
from coordgraph.coordinates.traverse import Direction, Solution, solve
from coordgraph.errors import VerifyError
from coordgraph.integers import Ranges, ceil_div, index_symbol, operands, simplify, symbols_of

__all__ = ["Loop", "Scoped"]

ExpressionT = TypeVar("ExpressionT", Expr, Boolean)
MOST_STEPS = 2**30
"""Largest value of a `Counter` in one launch that proofs about index ranges assume; kernels do not
check it."""


@dataclass(frozen=True)
class Loop:
    """The loop that executes a `For`: `for (symbol = start; symbol < stop; symbol += step)`."""

    symbol: Symbol
    start: Expr
    stop: Expr
    step: Expr


@dataclass(frozen=True)
class Scoped:
    """The scope of an operation: the known indices, and the known ranges of symbols.

    Args:
        coordinates: the coordinate graph.
        ranges: the known ranges of symbols.
        known: the known index along each bound dimension, by dimension id.
        definitions: the value of each symbol that an `Assign` names.
    """

    coordinates: CoordinateGraph
    ranges: Ranges
    known: Mapping[str, Expr] = field(default_factory=dict)
    definitions: Mapping[Symbol, Expr] = field(default_factory=dict)
    fixed: frozenset[Symbol] = frozenset()
    """Symbols whose values never change while the kernel runs: parameters and hardware indices."""

    def binding(self, dim: str, value: Expr) -> Scoped:
        """A copy of the scope in which the index along `dim` is `value`."""
        return replace(self, known={**self.known, dim: value})

    def hardware(self, dims: Iterable[str]) -> Scoped:
        """A copy of the scope in which the hardware provides the indices along `dims`."""
        scope = self
        for dim in dims:
            symbol, size = self.coordinates.symbol(dim), self.coordinates.size(dim)
            ranges = scope.ranges if size is None else scope.ranges.with_index(symbol, size)
            scope = replace(scope, ranges=ranges).binding(dim, symbol)
        return replace(scope, fixed=frozenset(scope.ranges.bounds))

    def resolve(self, expr: Expr) -> Expr:
        """Put the known indices into an operation's expression, and simplify the expression."""
        return simplify(self._put_in(sympify(expr)), self.ranges)

    def resolve_condition(self, condition: Boolean) -> Boolean:
        """Put the known indices into a condition; `true` or `false` if the ranges decide it."""
        return simplify_condition(self._put_in(condition), self.ranges)

    def condition(self, op: If | Inside) -> Boolean:
        """The condition under which a branch executes its first body, simplified.

        The result is `true` or `false` if the ranges decide the condition.
        """
        if isinstance(op, Inside):
            return self.reverse(*op.dims).guard
        return self.resolve_condition(op.condition)

    def enter_for(self, op: For) -> tuple[Loop, Scoped]:
        """The loop that executes a `For`, and the scope of the loop's body.

        If the step is not 1 and never changes while the kernel runs, the executed loop counts
        iterations: the index is `start + step·ordinal`. The simplifier then recognises multiples of
        the step.
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

    def enter_dynamic(self, op: DynamicFor) -> tuple[Loop, Scoped]:
        """The bounds of a dynamic loop, and the scope of its body; the step of `Loop` is unused.

        Workgroups take the indices of a dynamic loop from a counter that starts at 0. So in the
        body, the index is at least 0, and below `stop`.
        """
        start, stop = self.resolve(op.start), self.resolve(op.stop)
        ranges = self.ranges.with_bounds(op.symbol, Integer(0), (self.expand(stop) - 1,))
        scope = replace(self, ranges=ranges).binding(op.dim, op.symbol)
        return Loop(op.symbol, start, stop, Integer(1)), scope

    def enter_counter(self, op: Counter) -> Scoped:
        """The scope of a `Counter`'s body, in which the counter is a symbol of value 0 or more."""
        symbol = self.coordinates.symbol(op.dim)
        ranges = self.ranges.with_bounds(symbol, Integer(0), (Integer(MOST_STEPS),))
        return replace(self, ranges=ranges).binding(op.dim, symbol)

    def enter_if(self, condition: Boolean) -> Scoped:
        """The scope of a body that runs only if `condition`, from `resolve_condition`, holds."""
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
            # Add the new bound to the symbol of an index, but not to the symbol of a size: sizes
            # bound indices already, and proofs would be circular if indices bounded sizes, too.
            if isinstance(small, Symbol) and not small.is_positive:
                ranges = ranges.with_upper(small, self.expand(large) - gap)
        return replace(self, ranges=ranges)

    def enter_set(self, op: SetCoordinate) -> tuple[Expr | None, Scoped]:
        """The value to compute for a `SetCoordinate`, and the scope of its body.

        If the value is a number or a symbol, the value replaces the dimension's index in
        expressions, and None is returned, because nothing must be computed. Any other value is
        computed once, and the dimension's symbol stands for the value, so that expressions stay
        short.

        Raises:
            VerifyError: an enclosing operation already gives the dimension a value, which must
                stay the same in its body.
        """
        value, symbol = self.resolve(op.value), self.coordinates.symbol(op.dim)
        if value.is_Integer or value.is_Symbol or symbol in value.free_symbols:
            return None, self.binding(op.dim, value)
        if symbol in self.fixed:
            raise VerifyError(
                f"SetCoordinate gives '{op.dim}' a value, but an enclosing operation already gives "
                "it one that must not change; let the inner operation set another dimension"
            )
        expanded = self.expand(value)
        ranges = self.ranges.with_value(symbol, expanded, self.fixed)
        fixed = self.fixed | {symbol} if symbols_of(expanded) <= self.fixed else self.fixed
        return value, replace(self, ranges=ranges, fixed=fixed).binding(op.dim, symbol)

    def enter_locate(self, op: Locate) -> tuple[tuple[Expr, ...], Scoped]:
        """The indices that a `Locate` computes, in order, and the scope of its body."""
        values: list[Expr] = []
        named: dict[Expr, Expr] = {}
        scope = self
        for dim in op.dims:
            value, symbol = self.reverse(dim).values[0], self.coordinates.symbol(dim)
            # Derive the range of an index from its full expression, in which no symbol stands for a
            # part of the expression.
            expanded = self.expand(value)
            ranges = scope.ranges.with_value(symbol, expanded, self.fixed)
            ranges = ranges.with_found(symbol, expanded)
            scope = replace(scope, ranges=ranges).binding(dim, symbol)
            values.append(cast(Expr, value.xreplace(named)))
            named[value] = symbol
        return tuple(values), scope

    def assign(self, op: Assign) -> tuple[Expr, Scoped]:
        """The value of an `Assign`, and the scope of the operations that follow it."""
        value = self.resolve(op.value)
        definitions = {**self.definitions, op.symbol: self.expand(value)}
        ranges = self.ranges.with_value(op.symbol, self.expand(value), self.fixed)
        return value, replace(self, ranges=ranges, definitions=definitions)

    def reverse(self, *wanted: str) -> Solution:
        """Compute the indices along upstream dimensions, and the condition that none is padding.

        Raises the errors of `CoordinateGraph.reverse`.
        """
        return solve(self.coordinates, Direction.REVERSE, self.known, wanted, self.ranges)

    def _put_in(self, expr: ExpressionT) -> ExpressionT:
        values = {index_symbol(dim): value for dim, value in self.known.items()}
        return cast(ExpressionT, expr.xreplace({s: v for s, v in values.items() if s != v}))

    def expand(self, expr: Basic) -> Expr:
        """Replace each symbol that an `Assign` defines by the symbol's value, for proofs."""
        return cast(Expr, expr.xreplace(dict(self.definitions)))
