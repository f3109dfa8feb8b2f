"""Convert conditions on integers into polynomials that are at least 0 where the conditions hold."""

from typing import cast

from sympy import Eq, Expr, Ge, Gt, Le, Lt
from sympy.core.basic import Basic
from sympy.logic.boolalg import And

from coordgraph.integers.polynomials import Polynomial, add, constant, to_polynomial


def guard_polynomials(condition: Basic) -> tuple[Polynomial, ...]:
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
