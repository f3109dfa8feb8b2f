"""What users give, looked at in one way: `NAME = VALUE is not …`, as an error of the project."""

from __future__ import annotations

from operator import index
from typing import Any

from coordgraph.errors import CoordGraphError, VerifyError

__all__ = ["flag", "whole"]


def whole(value: Any, what: str, error: type[CoordGraphError] = VerifyError) -> int:
    """A whole number: an int, or one of numpy's. Neither text nor 2.0 is one."""
    try:
        return index(value)
    except TypeError:
        raise error(f"{what} = {value!r} is not a whole number") from None


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
