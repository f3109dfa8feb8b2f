"""Convert conditions on integers into polynomials that are at least 0 where the conditions hold."""

from typing import TypeAlias, cast

from sympy import Eq, Expr, Ge, Gt, Le, Lt
from sympy.core.basic import Basic
from sympy.logic.boolalg import And, Not

from coordgraph.integers.functions import Minimum, Select
from coordgraph.integers.polynomials import Polynomial, add, constant, negate, to_polynomial

Guards: TypeAlias = tuple[Polynomial, ...]
"""Polynomials that are known to be at least 0."""


def guard_polynomials(condition: Basic) -> Guards:
    """Polynomials that are ≥ 0 wherever the condition holds: ``b - a - 1`` for ``a < b``.

    The result is empty for a condition other than a comparison or a conjunction of comparisons.
    """
    if isinstance(condition, And):
        return tuple(p for part in condition.args for p in guard_polynomials(part))
    if not isinstance(condition, (Lt, Le, Gt, Ge, Eq)):
        return ()
    left, right = cast(tuple[Expr, Expr], condition.args)
    if isinstance(condition, (Gt, Ge)):
        left, right = right, left
    gap = add(to_polynomial(right), to_polynomial(left), -1)
    if isinstance(condition, (Lt, Gt)):
        return (add(gap, constant(1), -1),)
    return (gap, add({}, gap, -1)) if isinstance(condition, Eq) else (gap,)


def alternatives(expr: Expr) -> tuple[tuple[Polynomial, Guards], tuple[Polynomial, Guards]]:
    """The two operands that a `Minimum`, `Maximum` or `Select` chooses from, each with guards.

    The guards of an operand are at least 0 wherever that operand is chosen.
    """
    first, second = (to_polynomial(cast(Expr, arg)) for arg in expr.args[-2:])
    if isinstance(expr, Select):
        condition = expr.args[0]
        where, elsewhere = guard_polynomials(condition), guard_polynomials(Not(condition))
        return (first, where), (second, elsewhere)
    # `order` is at least 0 exactly if the first operand is at most the second.
    order = add(second, first, -1)
    where, elsewhere = (order,), (negate(order),)
    known = (where, elsewhere) if isinstance(expr, Minimum) else (elsewhere, where)
    return (first, known[0]), (second, known[1])
