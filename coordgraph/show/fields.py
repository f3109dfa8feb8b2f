"""The fields of records, as pictures and pseudo-code show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sympy.core.basic import Basic

__all__ = ["shown", "written"]


def shown(details: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say something: a switch that is off or an empty list does not, a 0 does."""
    return {
        name: value
        for name, value in details.items()
        if value is not None and value is not False and value not in ("", ())
    }


def written(value: Any, expression: Callable[[Basic], str]) -> str:
    """A value, with `expression` for index expressions and conditions."""
    if isinstance(value, tuple):
        return ", ".join(written(part, expression) for part in value)
    if isinstance(value, bool):
        return str(value).lower()
    return expression(value) if isinstance(value, Basic) else str(value)
