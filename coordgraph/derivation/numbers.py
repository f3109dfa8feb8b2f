"""Formulas with numbers in place of names: `128*A.tile.0 + A.index.0` becomes `128*3 + 7`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sympy.core.basic import Basic

from coordgraph.integers import to_text
from coordgraph.integers.text import NAME, RESERVED

__all__ = ["with_numbers"]

WORD = re.compile(rf"(?<![\w.]){NAME.pattern}")
"""A word in the text of an expression: the name of a symbol or of a function."""


def with_numbers(expr: Basic, values: Mapping[str, Any]) -> str:
    """The text of an expression in which known values replace the names of symbols.

    The terms have the same order as in the text with names. The name of a table stays, because a
    table has many values.

    Args:
        expr: the expression or condition.
        values: numbers by name.
    """

    def number(found: re.Match[str]) -> str:
        value = values.get(found[0])
        if found[0] in RESERVED or not isinstance(value, int):
            return found[0]
        return f"({value})" if value < 0 else str(value)

    return WORD.sub(number, to_text(expr))
