"""Epilogues for tests whose values are the indices of each element of D."""

from __future__ import annotations

from typing import Any

import numpy as np

from coordgraph import epilogue as ep
from coordgraph.interpreter.arguments import Array

__all__ = ["causal", "divided", "dividends", "gated", "positions", "positions_of", "unstored"]

INDICES = {"product": ep.index("l"), "row": ep.index("m"), "column": ep.index("n")}
PRODUCT, ROW = 1 << 18, 1 << 9
"""Factors of the number of the product and of the row in a value of `positions`: the values are
exact in f32 if rows and columns are below 512, and products below 64."""


def _position(acc: Any, product: Any, row: Any, column: Any) -> Any:
    """The position as one number; 0 if `acc` is NaN, so that kernels must compute the sums."""
    position = ep.cast(product * PRODUCT + row * ROW + column, to="f32")
    return ep.where(ep.compare(acc, acc, relation="=="), position, 0.0)


@ep.epilogue(**INDICES)
def positions(acc: Any, product: Any, row: Any, column: Any) -> Any:
    """The number of the product, the row and the column of each element, as one number."""
    return _position(acc, product, row, column)


@ep.epilogue(**INDICES)
def gated(gate: Any, up: Any, product: Any, row: Any, column: Any) -> Any:
    """`positions` of a product with two sums for each element."""
    return _position(gate + up, product, row, column)


@ep.epilogue(
    row=ep.index("m"), column=ep.index("n"), first=ep.output("m", reduce="max"), copy=ep.output()
)
def unstored(acc: Any, row: Any, column: Any) -> Any:
    """The least column of each row, negated, and each position; D is not stored."""
    return None, -ep.cast(column, to="f32"), _position(acc, 0, row, column)


@ep.epilogue(row=ep.index("m"), column=ep.index("n"))
def causal(acc: Any, row: Any, column: Any) -> Any:
    """The sums up to the diagonal; -inf to the right of it."""
    return ep.where(ep.compare(column, row, relation="<="), acc, float("-inf"))


def divided(divisor: int) -> ep.EpilogueFunction:
    """An epilogue that gives `acc` if the operand `quotient` is that of `dividend` by `divisor`.

    Else it gives 0. The epilogue divides as the error about the operator // advises.
    """

    @ep.epilogue(dividend=ep.operand("n", "i32"), quotient=ep.operand("n", "i32"))
    def function(acc: Any, dividend: Any, quotient: Any) -> Any:
        q = ep.cast(ep.cast(dividend, to="f32") / divisor, to="i32")
        r = dividend - q * divisor
        q = ep.where(r < 0, q - 1, ep.where(r < divisor, q, q + 1))
        return ep.where(ep.compare(q, quotient, relation="=="), acc, 0.0)

    return function


def dividends(divisor: int) -> Array:
    """The 1000 smallest and largest multiples of `divisor` up to 2^23, and their neighbours."""
    most = (1 << 23) // divisor
    factors = np.concatenate([np.arange(1000), most - np.arange(1000)])
    near = (factors[:, None] * divisor + np.array([-1, 0, 1])).ravel()
    return np.unique(np.clip(near, 0, 1 << 23)).astype(np.int32)


def positions_of(rows: int, columns: int, product: int = 0) -> Array:
    """The values of `positions` for one product with `rows` rows and `columns` columns."""
    row, column = np.indices((rows, columns))
    return (product * PRODUCT + row * ROW + column).astype(np.float32)
