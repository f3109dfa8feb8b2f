"""Random inputs, the reference in 64-bit arithmetic, and the comparison of a result with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from codegen.cli.options import Problem
from coordgraph.elements import dtype
from coordgraph.interpreter.arguments import numpy_dtype

__all__ = ["Check", "Inputs", "make_inputs", "poisoned"]

Array = npt.NDArray[Any]

SLACK = 16
"""Tolerance as a multiple of the error of √k random roundings: schedules split and reorder sums."""


@dataclass(frozen=True)
class Inputs:
    """The operands of a call; A and B hold the transpose where the problem says so."""

    a: Array
    b: Array
    c: Array | None
    alpha: float
    beta: float


def make_inputs(problem: Problem, alpha: float, beta: float, seed: int) -> Inputs:
    """Random matrices for a problem: floats from N(0, 1), integers uniform over their type.

    Args:
        problem: the problem with its sizes.
        alpha, beta: scalars of the epilogue; C is made if beta is not 0.
        seed: the same seed gives the same matrices.
    """
    m, n, k = problem.m, problem.n, problem.k
    assert m is not None
    assert n is not None
    assert k is not None
    random = np.random.default_rng(seed)

    def normal(rows: int, columns: int, kind: str) -> Array:
        found = dtype(kind)
        if not found.is_float:
            whole = random.integers(found.least, found.largest, (rows, columns), endpoint=True)
            return whole.astype(numpy_dtype(kind))
        exact = np.float64 if found.bits == 64 else np.float32
        return random.standard_normal((rows, columns), exact).astype(numpy_dtype(kind), copy=False)

    a = normal(k, m, problem.dtype) if problem.transpose_a else normal(m, k, problem.dtype)
    b = normal(n, k, problem.dtype) if problem.transpose_b else normal(k, n, problem.dtype)
    c = normal(m, n, problem.out_dtype or dtype(problem.dtype).result) if beta else None
    return Inputs(a, b, c, alpha, beta)


def poisoned(rows: int, columns: int, kind: str) -> Array:
    """A matrix filled with bits that no result has, so that elements not written are found."""
    made = np.empty((rows, columns), numpy_dtype(kind))
    _bits(made).fill(_poison(kind))
    return made


def _bits(array: Array) -> Array:
    return array.view(f"u{array.itemsize}")


def _poison(kind: str) -> int:
    """The bits of a poisoned element: for floats a NaN that arithmetic does not produce.

    All bits but the last are set, which is a NaN in every float type. For integers it is the least
    value, which sums of products reach only if they overflow.
    """
    bits = dtype(kind).bits
    return (1 << bits) - 2 if dtype(kind).is_float else 1 << (bits - 1)


def _stored(exact: Array, kind: np.dtype[Any]) -> Array:
    """Exact sums wrapped to 32 bits, as i32 accumulators wrap, and rounded to the type of D."""
    with np.errstate(over="ignore"):  # the largest f16 is 65504; larger sums become infinite
        return exact.astype(np.int64).astype(np.int32).astype(kind).astype(np.float64)


@dataclass(frozen=True)
class Check:
    """The comparison of D with `alpha·A@B + beta·C` in 64-bit arithmetic.

    Args:
        error: ‖D - reference‖ / ‖reference‖.
        tolerance: the largest `error` that passes.
        wrong: elements that differ by more than rounding explains.
        unwritten: elements that still have the bits of `poisoned`.
    """

    error: float
    tolerance: float
    wrong: int
    unwritten: int

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance, and every element is written and right."""
        # `not error > tolerance` would accept NaN.
        return self.error <= self.tolerance and not self.wrong and not self.unwritten

    @classmethod
    def of(cls, d: Array, inputs: Inputs, problem: Problem) -> Check:
        """Compare D with the reference, a block of rows at a time to bound the memory."""
        a = inputs.a.T if problem.transpose_a else inputs.a
        b = inputs.b.T if problem.transpose_b else inputs.b
        # Products of 8-bit integers are exact in 64-bit floats, and so are sums of up to 2^37.
        k, b64 = b.shape[0], b.astype(np.float64)
        kind = problem.out_dtype or dtype(problem.dtype).result
        out, accumulator = dtype(kind).roundoff, dtype(dtype(problem.dtype).accumulator).roundoff
        # Sums of k products of N(0, 1) are about √k, so a rounding error is about √k · roundoff.
        floor = SLACK * accumulator * k * (abs(inputs.alpha) + abs(inputs.beta))
        squares, total, wrong, unwritten = 0.0, 0.0, 0, 0
        rows = max(1, (1 << 24) // max(d.shape[1], k))
        for first in range(0, d.shape[0], rows):
            part = slice(first, first + rows)
            reference = inputs.alpha * (a[part].astype(np.float64) @ b64)
            if inputs.c is not None:
                reference += inputs.beta * inputs.c[part].astype(np.float64)
            unwritten += int((_bits(d[part]) == _poison(kind)).sum())
            if not dtype(problem.dtype).is_float:
                reference = _stored(reference, d.dtype)
            found = d[part].astype(np.float64)
            with np.errstate(invalid="ignore"):  # equal infinities count as equal
                difference = np.where(found == reference, 0, np.abs(found - reference))
            wrong += int((~(difference <= 2 * out * np.abs(reference) + floor)).sum())
            squares += float(np.square(difference).sum())
            total += float(np.square(reference).sum())
        error = (squares / total) ** 0.5 if total else squares**0.5
        return cls(error, out + SLACK * accumulator * k**0.5, wrong, unwritten)
