"""Rotary embedding as an epilogue of two sums of products, for tests, and its result in f64."""

from __future__ import annotations

from typing import Any

import numpy as np

from coordgraph import epilogue as ep
from coordgraph.interpreter.arguments import Array
from tests.support.gated import parts_of

__all__ = ["LAYOUT", "angles", "halves", "rotary", "rotary_of"]

LAYOUT: dict[str, Any] = {"leading_dimensions": ("D", "right")}
"""Fields of a `Gemm` whose D and output `right` may be halves of the rows of one array."""


@ep.epilogue(cos=ep.operand("mn", "f32"), sin=ep.operand("mn", "f32"), right=ep.output("mn"))
def rotary(x: Any, y: Any, cos: Any, sin: Any) -> Any:
    return x * cos - y * sin, y * cos + x * sin


def angles(m: int, pairs: int) -> tuple[Array, Array]:
    """The cosines and sines (m x pairs, f32) by which rows 0 to m - 1 are rotated."""
    turns = np.outer(np.arange(m), 100.0 ** (-np.arange(pairs) / max(pairs, 1)))
    return np.cos(turns).astype("f4"), np.sin(turns).astype("f4")


def halves(d: Any) -> dict[str, Any]:
    """Arguments of a call that stores rotated pairs (x, y): x in the left half of d, y right."""
    pairs = d.shape[-1] // 2
    return {"out": d[..., :pairs], "right": d[..., pairs:]}


def rotary_of(product: Array, parts: str, cos: Array, sin: Array) -> Array:
    """Pairs (x, y) of a product's columns, rotated, in f64: all x of a row, then all y.

    `product` has a column for each column of B; `parts` says which two columns form a pair.
    """
    x, y = parts_of(product.astype("f8"), parts)
    return np.concatenate([x * cos - y * sin, y * cos + x * sin], -1)
