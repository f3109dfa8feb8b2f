"""Split sums into a multiple of a divisor and a rest, if possible without expanding products."""

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from math import gcd

from sympy import Expr, Integer
from sympy.core.add import Add
from sympy.core.mul import Mul

from coordgraph.integers.polynomials import divide, to_expression, to_polynomial


def terms_of(expr: Expr) -> tuple[Expr, ...]:
    """The terms of a sum; the expression itself if it is not a sum."""
    return Add.make_args(expr)


@lru_cache(maxsize=1 << 13)
def factors_of(expr: Expr) -> tuple[int, Counter[Expr]]:
    """Split a product into its integer coefficient and its other factors, with their exponents.

    Results are cached, so a caller must not change the returned `Counter`.
    """
    coefficient, rest = expr.as_coeff_Mul()
    factors: Counter[Expr] = Counter()
    if rest != 1:
        for factor in Mul.make_args(rest):
            base, exponent = factor.as_base_exp()
            if isinstance(exponent, Integer) and int(exponent) > 0:
                factors[base] += int(exponent)
            else:
                factors[factor] += 1
    return int(coefficient), factors


def product(coefficient: int, factors: Counter[Expr]) -> Expr:
    """The product of an integer coefficient and factors: the inverse of :func:`factors_of`."""
    return Mul(Integer(coefficient), *factors.elements())


@lru_cache(maxsize=1 << 13)
def quotient_of(expr: Expr, divisor: Expr) -> Expr | None:
    """The quotient ``expr / divisor`` if all factors of the divisor are factors of ``expr``.

    None otherwise. Sums are not expanded.
    """
    c, factors = factors_of(expr)
    dc, wanted = factors_of(divisor)
    if dc == 0 or c % dc or wanted - factors:
        return None
    return product(c // dc, factors - wanted)


@lru_cache(maxsize=1 << 13)
def common_factor(a: Expr, b: Expr) -> Expr:
    """The product of the factors that ``a`` and ``b`` have in common; sums are not factored."""
    c, factors = factors_of(a)
    dc, others = factors_of(b)
    return product(gcd(c, dc), factors & others)


def peel(x: Expr, d: Expr, natural: Callable[[Expr], bool]) -> tuple[Expr, Expr] | None:
    """Split ``x = a*d + r`` with ``a != 0``; returns ``(a, r)``, or None if it finds no split.

    Each term of x is divided by d separately, with a remainder of the term's sign. If x may be
    negative, a negative constant is split with a positive remainder instead: for d = 8, ``x - 1``
    is ``-1*8 + (x + 7)``.

    Args:
        x: the dividend.
        d: the divisor.
        natural: a function that returns whether an expression is known to be at least 0.
    """
    dc, wanted = factors_of(d)
    quotients: list[Expr] = []
    rests: list[Expr] = []
    for term in terms_of(x):
        c, factors = factors_of(term)
        ratio = 0
        if not wanted - factors:
            ratio = abs(c) // abs(dc) * (1 if (c > 0) == (dc > 0) else -1)
            if c < 0 < dc and not factors and not wanted and c % dc and not natural(x):
                ratio = c // dc
        if ratio:
            quotients.append(product(ratio, factors - wanted))
            rests.append(product(c - ratio * dc, factors))
        else:
            rests.append(term)
    if quotients:
        return Add(*quotients), Add(*rests)
    return _peel_expanded(x, d)


def _peel_expanded(x: Expr, d: Expr) -> tuple[Expr, Expr] | None:
    # Expand the dividend x only if its products of sums may contain a multiple of the divisor d.
    nested = any(f.is_Add for term in terms_of(x) for f in factors_of(term)[1])
    if not nested and not d.is_Add:
        return None
    quotient, rest = divide(to_polynomial(x), to_polynomial(d))
    if not quotient:
        return None
    return to_expression(quotient), to_expression(rest)
