"""Epilogues with outputs besides D for tests of every target, and what they compute in f64."""

from __future__ import annotations

from typing import Any

import numpy as np

from coordgraph import epilogue as ep
from coordgraph.interpreter.arguments import Array

__all__ = ["FUNCTIONS", "expected", "plain_and_relu", "relu_residual"]


@ep.epilogue(
    bias=ep.operand("n", "f32"),
    residual=ep.operand("mn", "f32", optional=True),
    pre=ep.output("mn", "f32"),
    half=ep.output(dtype="bf16"),
)
def relu_residual(acc: Any, bias: Any, residual: Any) -> Any:
    x = acc + bias
    y = ep.relu(x)
    return y + residual, x, y * 0.5


@ep.epilogue(plain=ep.output())
def plain_and_relu(acc: Any) -> Any:
    return ep.relu(acc), acc


FUNCTIONS = (relu_residual, plain_and_relu)


def expected(
    function: ep.EpilogueFunction, sums: Array, operands: dict[str, Any]
) -> tuple[Array, ...]:
    """D and all other outputs of the epilogue `function`, computed in f64 from sums of products."""
    sums = sums.astype(np.float64)
    if function is plain_and_relu:
        return np.maximum(sums, 0), sums
    x = sums + operands["bias"].astype(np.float64)
    y = np.maximum(x, 0)
    return y + operands.get("residual", 0), x, y / 2
