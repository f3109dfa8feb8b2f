"""Reductions over a row of a macro tile, by which an output of an epilogue may be computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordgraph.epilogue.operation import Algebra, Array

__all__ = ["IDENTITIES", "REDUCTIONS", "combined", "reduced"]

Combine = Callable[[Algebra, Any, Any], Any]


def _logaddexp(on: Algebra, a: Any, b: Any) -> Any:
    """`log(exp(a) + exp(b))`, computed without overflow; -inf if a and b are both -inf."""
    high, low = on("maximum", a, b), on("minimum", a, b)
    # If both are the same infinity, `low - high` would be NaN: use 0 for equal values instead.
    equal = on("compare", high, low, relation="==")
    apart = on("where", equal, 0.0, on("sub", low, high))
    return on("add", high, on("log", on("add", on("exp", apart), 1.0)))


REDUCTIONS: dict[str, Combine] = {
    "sum": lambda on, a, b: on("add", a, b),
    "max": lambda on, a, b: on("maximum", a, b),
    "logsumexp": _logaddexp,
}
"""For each reduction, by name: a function that combines the result so far with an element."""
IDENTITIES = {"sum": 0.0, "max": float("-inf"), "logsumexp": float("-inf")}
"""For each reduction, its result for an empty set of elements."""


def combined(name: str, on: Algebra, before: Any, value: Any) -> Any:
    """Reduce one more element: combine it with the result of the elements before it.

    Args:
        name: the name of the reduction.
        on: applies operations to values.
        before: the result so far; before the first element, the reduction's entry of `IDENTITIES`.
        value: the element.
    """
    return REDUCTIONS[name](on, before, value)


def reduced(name: str, values: Array, mask: Array) -> Array:
    """The reduction of each row of a matrix over those columns where `mask` is true, with NumPy.

    Columns are added one after another, in ascending order.

    Args:
        name: the name of the reduction.
        values: a matrix.
        mask: which elements count, of the shape of `values`.

    Returns:
        A matrix with one column.
    """
    import numpy as np

    on = Algebra(next(k for k, t in _KINDS.items() if values.dtype == t))
    total = np.full((len(values), 1), IDENTITIES[name], values.dtype)
    for column in range(values.shape[1]):
        here = slice(column, column + 1)
        total = np.where(mask[:, here], combined(name, on, total, values[:, here]), total)
    return total


_KINDS = {"f32": "float32", "f64": "float64"}
