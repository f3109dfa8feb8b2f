"""Arithmetic on numeric bounds: the bounds of a function's value from those of its operands."""

from collections.abc import Callable
from typing import TypeAlias

Bound: TypeAlias = int | None
"""A numeric bound; None if there is no bound or none is known."""
Interval: TypeAlias = tuple[Bound, Bound]
"""A lower and an upper bound of the same value."""


def largest(a: Bound, b: Bound) -> Bound:
    """The larger of two bounds; if only one of them is known, the known bound."""
    if a is None or b is None:
        return b if a is None else a
    return a if a > b else b


def smallest(a: Bound, b: Bound) -> Bound:
    """The smaller of two bounds; if only one of them is known, the known bound."""
    if a is None or b is None:
        return b if a is None else a
    return a if a < b else b


def both(pick: Callable[[int, int], int], a: Bound, b: Bound) -> Bound:
    """Apply ``pick`` (``min``, ``max``, …) to two bounds; None if one of the bounds is unknown."""
    return None if a is None or b is None else pick(a, b)


def divided(x: Interval, d: Interval) -> Interval:
    """Bounds (lower, upper) of the quotient ``x // d``, from (lower, upper) of x and of d."""
    (xl, xh), (dl, dh) = x, d
    if dl is None or dl < 1:
        return None, None
    low: Bound = None
    if xl is not None:
        low = xl // dl if xl < 0 else (0 if dh is None else xl // max(dh, dl))
    high: Bound = None
    if xh is not None:
        high = xh // dl if xh >= 0 else (-1 if dh is None else xh // max(dh, dl))
    return low, high


def reduced(x: Interval, d: Interval) -> Interval:
    """Bounds (lower, upper) of the remainder ``x % d``, from (lower, upper) of x and of d."""
    (xl, xh), (dl, dh) = x, d
    if dl is None or dl < 1:
        return None, None
    high = None if dh is None else max(dh, dl) - 1
    if xl is None or xl < 0:
        return 0, high
    if xh is not None and xh < dl:
        return xl, max(xl, xh)
    return 0, smallest(high, xh)


def xored(al: Bound, ah: Bound, bl: Bound, bh: Bound) -> Interval:
    """Bounds of ``a ^ b``: at least 0, and less than the next power of two above both.

    Args:
        al, ah: the lower and the upper bound of a.
        bl, bh: the lower and the upper bound of b.
    """
    if al is None or bl is None or al < 0 or bl < 0:
        return None, None
    if ah is None or bh is None:
        return 0, None
    return 0, (1 << max(ah, bh, 0).bit_length()) - 1


def quotient_with_remainder(a: int, c: int, xh: Bound, d: Interval) -> Bound:
    """An upper bound of ``a*(x//e) + c*(z % d)`` for positive a and c and any divisor ``e >= d``.

    If x is at most h >= 0, the sum is at most ``a*h/d + c*(d - 1)``. This is a convex function of
    d, so between the smallest and the largest d it never exceeds the larger of its values at these
    two. Separate bounds of both terms are worse: h//d is large only if d is small, and z % d only
    if d is large.

    Args:
        a, c: the positive coefficients of the quotient and of the remainder.
        xh: the upper bound of x.
        d: the lower and the upper bound of d.
    """
    dl, dh = d
    if xh is None or dl is None or dh is None or dl < 1:
        return None
    ends = dl, max(dl, dh)
    return max([a * max(xh, 0) // end + c * (end - 1) for end in ends])
