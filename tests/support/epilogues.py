"""Epilogues for tests of every target, each with a NumPy function that computes it in f64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coordgraph import epilogue as ep
from coordgraph.interpreter.arguments import Array

__all__ = ["EPILOGUES", "Case", "operands"]


@dataclass(frozen=True)
class Case:
    """An epilogue, a NumPy function that computes it in f64, and the scalar arguments of a call.

    The NumPy function is `meaning`; its arguments are arrays that broadcast to D.
    """

    function: ep.EpilogueFunction
    meaning: Callable[[Mapping[str, Array]], Array]
    scalars: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return self.function.name


@ep.epilogue(bias="n", residual="mn")
def bias_gelu_residual(acc: Any, bias: Any, residual: Any) -> Any:
    return ep.gelu(acc + bias, approximate="tanh") + residual


@ep.epilogue(row=ep.operand("m", "f32"), scale="", factor=ep.operand(dtype="f32", in_memory=True))
def scaled_rows(acc: Any, row: Any, scale: Any, factor: Any) -> Any:
    return ep.relu(acc * row * scale - factor)


@ep.epilogue(bias="ln", gate=ep.operand("lmn", optional=True), weight=ep.operand("l", "f32"))
def gated_per_product(acc: Any, bias: Any, gate: Any, weight: Any) -> Any:
    return ep.sigmoid(acc + bias) * weight + gate


@ep.epilogue()
def squared(acc: Any) -> Any:
    return acc * acc


def _gelu(x: Array) -> Array:
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


EPILOGUES = (
    Case(bias_gelu_residual, lambda v: _gelu(v["acc"] + v["bias"]) + v["residual"]),
    Case(
        scaled_rows,
        lambda v: np.maximum(v["acc"] * v["row"] * v["scale"] - v["factor"], 0),
        (("scale", 0.75),),
    ),
    Case(
        gated_per_product,
        lambda v: v["weight"] / (1 + np.exp(-(v["acc"] + v["bias"]))) + v["gate"],
    ),
    Case(squared, lambda v: v["acc"] ** 2),
)


def operands(
    case: Case, sizes: Mapping[str, int], kind: Any, *, apart: bool, seed: int = 3
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(random epilogue operands of a call; the same values in f64, shaped for D as (l, m, n)).

    Args:
        case: the epilogue.
        sizes: extents of the axes `l` (products), `m` and `n`; l is 1 for a single product.
        kind: NumPy's type of D.
        apart: whether every product has its own matrix D (a batch, or groups along k).
        seed: the seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    given: dict[str, Any] = dict(case.scalars)
    wide: dict[str, Any] = dict(case.scalars)
    for operand in case.function.tensors:
        axes = operand.axes if apart else operand.axes.replace("l", "")
        shape = tuple(sizes[axis] for axis in axes) or (1,)
        values = rng.normal(size=shape).astype(np.float32 if operand.dtype else kind)
        given[operand.name] = values
        full = tuple(sizes[axis] if axis in axes else 1 for axis in "lmn")
        wide[operand.name] = values.astype(np.float64).reshape(full)
    return given, wide
