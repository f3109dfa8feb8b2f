"""Epilogues of two sums of products (gate, up) for tests, with NumPy functions for them in f64."""

from __future__ import annotations

from typing import Any

import numpy as np

from coordgraph import epilogue as ep
from coordgraph.interpreter.arguments import Array

__all__ = ["geglu", "geglu_of", "parts_of", "swiglu", "swiglu_of"]


@ep.epilogue()
def swiglu(gate: Any, up: Any) -> Any:
    return ep.silu(gate) * up


@ep.epilogue(bias="n", scale="", residual=ep.operand("mn", optional=True))
def geglu(gate: Any, up: Any, bias: Any, scale: Any, residual: Any) -> Any:
    return ep.gelu(gate, approximate="tanh") * (up + bias) * scale + residual


def parts_of(columns: Array, parts: str, sums: int = 2) -> list[Array]:
    """For each of an epilogue's `sums` sums of products: the columns of `columns` for this sum.

    With `parts="interleaved"` columns belong to the sums in turn, with `parts="interleaved:8"`
    blocks of 8 columns do; otherwise each sum has one block of adjacent columns.
    """
    kind, _, width = parts.partition(":")
    if kind == "interleaved":
        numbers = np.arange(columns.shape[-1]) // int(width or 1) % sums
        return [columns[..., numbers == part] for part in range(sums)]
    return np.split(columns, sums, axis=-1)


def swiglu_of(product: Array, parts: str) -> Array:
    """D of `swiglu` in f64, from A·B whose columns belong to gate and up as `parts_of` says."""
    gate, up = parts_of(product.astype("f8"), parts)
    return gate / (1 + np.exp(-gate)) * up


def geglu_of(product: Array, parts: str, bias: Array, scale: float, residual: Array) -> Array:
    """D of `geglu` in f64, from A·B whose columns belong to gate and up as `parts_of` says."""
    x, up = parts_of(product.astype("f8"), parts)
    gate = x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    return gate * (up + bias) * scale + residual
