"""Checks of arguments that users pass; the error messages read `NAME = VALUE is not …`."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from sympy import Expr, Integer

from coordgraph.errors import CoordGraphError, VerifyError

__all__ = ["a_type", "flag", "integer", "integers", "text", "whole"]


def whole(
    value: Any,
    what: str,
    error: type[CoordGraphError] = VerifyError,
    *,
    least: int | None = None,
) -> int:
    """Check that `value` is an integer, and return it as an int.

    Python's int and NumPy integers are accepted; bool, float (even 2.0) and text are refused.

    Args:
        value: the value that the user passed.
        what: how the error message names the value.
        error: the class of the error that is raised.
        least: the smallest allowed integer; None for no limit.

    Raises:
        CoordGraphError: of the class `error`, if the value is not an integer, or is less than
            `least`.
    """
    try:
        found = index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool):
        raise error(f"{what} = {value!r} is not a whole number; give an int")
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
    """Check that `value` is an integer or a SymPy integer expression, and return an expression.

    `least` limits numbers only: an expression with symbols is accepted even if its value is smaller
    for some values of the symbols.

    Args:
        value: the value that the user passed.
        what: how the error message names the value.
        error: the class of the error that is raised.
        least: the smallest allowed number; None for no limit.

    Raises:
        CoordGraphError: of the class `error`, if the value is neither an integer nor an integer
            expression, or is less than `least`.
    """
    if not isinstance(value, Expr):
        try:
            value = Integer(whole(value, what, error))
        except error:
            raise error(
                f"{what} = {value!r} is not a whole number; give an int or a SymPy integer "
                "expression"
            ) from None
    elif not isinstance(value, Integer) and (value.is_Number or value.is_integer is False):
        raise error(
            f"{what} = {value} is neither a whole number nor an integer expression; give an int or "
            "a SymPy integer expression"
        )
    if least is not None and isinstance(value, Integer) and int(value) < least:
        raise error(f"{what} = {value} must be at least {least}")
    return value


def integers(
    values: Any, what: str, error: type[CoordGraphError] = VerifyError
) -> tuple[Expr, ...]:
    """Check a sequence of integers and SymPy integer expressions; return a tuple of expressions.

    Args:
        values: the sequence that the user passed.
        what: how the error message names the sequence.
        error: the class of the error that is raised.

    Raises:
        CoordGraphError: of the class `error`, if `values` is not a sequence of integers and integer
            expressions.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise error(
            f"{what} = {values!r} is not a sequence of integers or integer expressions; give a "
            "tuple"
        )
    return tuple(integer(value, f"{what}[{place}]", error) for place, value in enumerate(values))


def flag(value: Any, what: str, error: type[CoordGraphError] = VerifyError) -> bool:
    """Check that `value` is True, False, 1 or 0, of Python or of NumPy, and return a bool.

    Args:
        value: the value that the user passed.
        what: how the error message names the value.
        error: the class of the error that is raised.

    Raises:
        CoordGraphError: of the class `error`, if the value is anything else.
    """
    try:
        if index(value) in (0, 1):
            return bool(value)
    except TypeError:
        # NumPy booleans are accepted by name, because operator.index refuses them.
        if type(value).__name__ in ("bool", "bool_"):
            return bool(value)
    raise error(f"{what} = {value!r} is neither True nor False; give one of them")


def text(value: Any, what: str, error: type[CoordGraphError] = VerifyError) -> str:
    """Check that `value` is a string, and return the string.

    Args:
        value: the value that the user passed.
        what: how the error message names the value.
        error: the class of the error that is raised.
    """
    if isinstance(value, str):
        return value
    raise error(f"{what} = {value!r} is not text; give a str")


def a_type(value: object) -> str:
    """The type of a wrong value with its article, for error messages: `an int`, `a Gemm`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
