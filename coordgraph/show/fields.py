"""The fields of edges and operations, as diagrams and pseudo-code print them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from sympy.core.basic import Basic

from coordgraph.control.operations import Operation
from coordgraph.coordinates.edges import Edge

__all__ = ["shown", "written"]


def shown(record: Edge | Operation) -> dict[str, Any]:
    """The fields of an edge or operation that differ from their defaults, by name.

    The operands of an edge and the bodies of an operation are left out.
    """
    defaults = {f.name: f.default for f in fields(record)}
    return {name: v for name, v in record.details.items() if v != defaults[name]}


def written(value: Any, expression: Callable[[Basic], str]) -> str:
    """The value of a field of an edge or operation as text; `expression` prints expressions."""
    if isinstance(value, tuple):
        return ", ".join(written(part, expression) for part in value)
    if isinstance(value, bool):
        return str(value).lower()
    return expression(value) if isinstance(value, Basic) else str(value)
