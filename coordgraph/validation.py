"""Checks of values that users give: each error says `NAME = VALUE is not …`."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from sympy import Expr, Integer

from coordgraph.errors import CoordGraphError, VerifyError

__all__ = ["flag", "integer", "integers", "text", "whole"]


def whole(
    value: Any,
    what: str,
    error: type[CoordGraphError] = VerifyError,
    *,
    least: int | None = None,
) -> int:
    """A whole number from `least` on: an int, or one of numpy's. Not text, 2.0 or True."""
    try:
        found = index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool):
        raise error(f"{what} = {value!r} is not a whole number")
    if least is not None and found < least:
        raise error(f"{what} = {found} must be at least {least}")
    return found


def integer(
    value: Any,
    what: str,
    error: type[CoordGraphError] = VerifyError,
    *,
    least: int | None = None,
) -> Expr:
    """A whole number from `least` on, or an integer expression, as an expression.

    An expression that is no number may be less than `least` for some values of its symbols.
    """
    if not isinstance(value, Expr):
        try:
            value = Integer(whole(value, what, error))
        except error as refusal:
            raise error(f"{refusal}, and no expression of one") from None
    elif not isinstance(value, Integer) and (value.is_Number or value.is_integer is False):
        raise error(f"{what} = {value} is neither a whole number nor an integer expression")
    if least is not None and isinstance(value, Integer) and int(value) < least:
        raise error(f"{what} = {value} must be at least {least}")
    return value


def integers(
    values: Any, what: str, error: type[CoordGraphError] = VerifyError
) -> tuple[Expr, ...]:
    """Several of them, in a tuple."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise error(f"{what} = {values!r} is not a sequence of whole numbers or expressions")
    return tuple(integer(value, f"{what}[{place}]", error) for place, value in enumerate(values))


def flag(value: Any, what: str, error: type[CoordGraphError] = VerifyError) -> bool:
    """True or False, or what equals one of them; text is neither."""
    try:
        if index(value) in (0, 1):
            return bool(value)
    except TypeError:
        # numpy's booleans are no indices.
        if type(value).__name__ in ("bool", "bool_"):
            return bool(value)
    raise error(f"{what} = {value!r} is neither True nor False")


def text(value: Any, what: str, error: type[CoordGraphError] = VerifyError) -> str:
    """A string."""
    if isinstance(value, str):
        return value
    raise error(f"{what} = {value!r} is not text")
