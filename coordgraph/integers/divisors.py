"""Divisors of integer expressions, given expressions that are known to be multiples of a number."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import reduce
from math import gcd, lcm
from typing import cast

from sympy import Add, Expr, Integer, Mul

from coordgraph.integers.factors import quotient_of
from coordgraph.integers.functions import (
    BitXor,
    FloorDiv,
    FloorMod,
    Maximum,
    Minimum,
    Select,
)

__all__ = ["divisor_of"]


def divisor_of(expr: Expr, width: int, multiples: Collection[Expr] = ()) -> int:
    """A number that divides `expr` for all values of its symbols; 0 if `expr` is always 0.

    The result need not be the largest such number.

    Args:
        expr: an integer expression.
        width: a positive number.
        multiples: expressions whose values are multiples of `width`.
    """

    def of(part: Expr) -> int:
        return divisor_of(part, width, multiples)

    found = 1
    for known in multiples:
        if (rest := quotient_of(expr, known)) is not None:
            found = lcm(found, width * of(rest))
        elif isinstance(whole := quotient_of(known, expr), Integer):
            # if 2*n is a multiple of 8, n is a multiple of 4
            found = lcm(found, width // gcd(width, int(whole)))
    return lcm(found, _by_arguments(expr, of))


def _by_arguments(expr: Expr, of: Callable[[Expr], int]) -> int:
    """A divisor of `expr`, from divisors of its arguments: `of(arg)` is a divisor of `arg`."""
    args = cast(tuple[Expr, ...], expr.args)
    match expr:
        case Integer():
            return abs(int(expr))
        case Add() | Minimum() | Maximum():
            return gcd(*map(of, args))
        case Mul():
            return reduce(lambda x, y: x * y, map(of, args))
        case FloorMod():
            return gcd(of(args[0]), of(args[1]))
        case FloorDiv():
            whole, by = of(args[0]), args[1]
            # (12*x) // 4 is 3*x; (12*x) // 8 may be 1
            return whole // int(by) if isinstance(by, Integer) and by and whole % by == 0 else 1
        case BitXor():
            # the lowest bits that are 0 in both operands are 0 in the result
            return gcd(*(_power_of_two(of(arg)) for arg in args))
        case Select():
            return gcd(*map(of, args[1:]))
        case _:
            return 1


def _power_of_two(number: int) -> int:
    """The largest power of two that divides `number`; 0 for 0."""
    return number & -number
