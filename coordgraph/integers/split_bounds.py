"""`alternatives`: splits a bound that contains minima or maxima into several simple bounds."""

from typing import cast

from sympy import Expr
from sympy.core.add import Add
from sympy.core.basic import Basic

MAX_ALTERNATIVES = 16
"""The largest number of bounds into which one bound that contains minima or maxima is split; minima
and maxima that remain then are not split."""


def alternatives(expr: Expr, rising: type[Basic], falling: type[Basic]) -> list[Expr]:
    """Split a bound with minima into several: ``min(a, b) + c`` into ``a + c`` and ``b + c``.

    Args:
        expr: the lower or upper bound.
        rising: the function that is split if its coefficient is positive: `Minimum` for upper
            bounds.
        falling: the function that is split if its coefficient is negative: `Maximum` for upper
            bounds.
    """
    pending, done = [expr], cast(list[Expr], [])
    while pending:
        current = pending.pop(0)
        parts = _split(current, rising, falling)
        if parts is None or len(pending) + len(done) >= MAX_ALTERNATIVES:
            done.append(current)
        else:
            pending.extend(parts)
    return done


def _split(expr: Expr, rising: type[Basic], falling: type[Basic]) -> tuple[Expr, ...] | None:
    for term in Add.make_args(expr):
        scale, node = term.as_coeff_Mul()
        if isinstance(node, rising if scale > 0 else falling):
            rest = expr - term
            return tuple(scale * cast(Expr, arg) + rest for arg in node.args)
    return None
