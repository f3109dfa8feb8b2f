"""Random inputs, the reference in 64-bit arithmetic, and the comparison of a result with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from codegen.cli.options import Problem
from codegen.cli.products import Matrices, Products
from coordgraph.elements import dtype
from coordgraph.interpreter.arguments import numpy_dtype

__all__ = ["Check", "Inputs", "make_inputs", "poisoned", "poisoned_output"]

Array = npt.NDArray[Any]

SLACK = 16
"""The tolerance as a multiple of the error expected from rounding. The factor allows for schedules,
which split and reorder sums."""


@dataclass(frozen=True)
class Inputs:
    """The operands of a call; A and B are stored transposed if the problem's options say so."""

    a: Array
    b: Array
    c: Array | None
    alpha: float
    beta: float
    offsets: Array | None = None
    """The index at which each group starts along the axis that groups divide, and the end of the
    last group; None for problems without groups.
    """


def make_inputs(
    problem: Problem, alpha: float, beta: float, seed: int, products: Products | None = None
) -> Inputs:
    """Random matrices for a problem: floats from N(0, 1), integers uniform over their type's range.

    Args:
        problem: the problem with its sizes.
        alpha, beta: scalars of the epilogue; C is made if beta is not 0.
        seed: the same seed gives the same matrices.
        products: the sizes of all products; by default the one product of the problem.
    """
    products = products or Products.of(problem, None, None)
    random = np.random.default_rng(seed)

    def normal(shape: tuple[int, ...], kind: str) -> Array:
        found = dtype(kind)
        if not found.is_float:
            whole = random.integers(found.least, found.largest, shape, endpoint=True)
            return whole.astype(numpy_dtype(kind))
        exact = np.float64 if found.bits == 64 else np.float32
        return random.standard_normal(shape, exact).astype(numpy_dtype(kind), copy=False)

    def array(tensor: str, kind: str) -> Array:
        return products.joined([normal(shape, kind) for shape in products.shapes_of(tensor)])

    a, b = array("A", problem.dtype), array("B", problem.dtype)
    c = array("C", problem.out_dtype or dtype(problem.dtype).result) if beta else None
    return Inputs(a, b, c, alpha, beta, products.offsets)


def poisoned_output(products: Products, kind: str) -> Array:
    """An array for D of all products, filled with bits that no result has; see `poisoned`."""
    shapes = products.shapes_of("D")
    return _poisoned(
        products.joined([np.empty(shape, numpy_dtype(kind)) for shape in shapes]), kind
    )


def poisoned(rows: int, columns: int, kind: str) -> Array:
    """A matrix with bits that no result has, by which elements that were not written are found."""
    return _poisoned(np.empty((rows, columns), numpy_dtype(kind)), kind)


def _poisoned(made: Array, kind: str) -> Array:
    _bits(made).fill(_poison(kind))
    return made


def _bits(array: Array) -> Array:
    return array.view(f"u{array.itemsize}")


def _poison(kind: str) -> int:
    """The bits of a poisoned element: for floats a NaN that arithmetic does not produce.

    In floats all bits but the last are set, which is a NaN in every float type. For integers the
    bits are the least value, which sums of products reach only if they overflow.
    """
    bits = dtype(kind).bits
    return (1 << bits) - 2 if dtype(kind).is_float else 1 << (bits - 1)


def _stored(exact: Array, kind: np.dtype[Any]) -> Array:
    """Wrap exact integer sums to 32 bits, as i32 accumulators do; convert them to the type of D."""
    with np.errstate(over="ignore"):  # the largest f16 is 65504; larger sums become infinite
        return exact.astype(np.int64).astype(np.int32).astype(kind).astype(np.float64)


@dataclass(frozen=True)
class Check:
    """The comparison of D with `alpha·A@B + beta·C` in 64-bit arithmetic.

    Args:
        error: ‖D - reference‖ / ‖reference‖.
        tolerance: the largest `error` that passes.
        wrong: number of elements of D that differ from the reference by more than rounding
            explains.
        unwritten: number of elements of D that still have the bits that `poisoned` gave them.
    """

    error: float
    tolerance: float
    wrong: int
    unwritten: int

    @property
    def passed(self) -> bool:
        """Whether `error` is within `tolerance`, and every element is written and correct."""
        # `not error > tolerance` would accept NaN.
        return self.error <= self.tolerance and not self.wrong and not self.unwritten

    @classmethod
    def of(
        cls,
        d: Array,
        inputs: Inputs,
        problem: Problem,
        products: Products | None = None,
        progress: Callable[[float], None] = lambda done: None,
    ) -> Check:
        """Compare D with the reference, a block of rows at a time to bound the memory.

        Args:
            d: the output of the kernel.
            inputs: the operands of the call.
            problem: the types, and the sizes if `products` is None.
            products: the sizes of all products.
            progress: called after each block with the compared fraction of all rows, 0 to 1.
        """
        products = products or Products.of(problem, None, None)
        kind = problem.out_dtype or dtype(problem.dtype).result
        out, accumulator = dtype(kind).roundoff, dtype(problem.dtype).sum_roundoff
        found, rows = _Difference(problem.dtype, kind), sum(shape.m for shape in products.shapes)
        done = 0
        for matrices in products.matrices(inputs.a, inputs.b, inputs.c, d):
            for block in found.add(matrices, inputs.alpha, inputs.beta):
                done += block
                progress(done / rows)
        squares, total = found.squares, found.total
        error = (squares / total) ** 0.5 if total else squares**0.5
        tolerance = out + SLACK * accumulator * products.depth**0.5
        return cls(error, tolerance, found.wrong, found.unwritten)


@dataclass
class _Difference:
    """Sums over all products: squares of D - reference and of the reference, faulty elements.

    Faulty elements are counted in `wrong`, and in `unwritten` those that the kernel did not write.
    """

    dtype: str
    out_dtype: str
    squares: float = 0.0
    total: float = 0.0
    wrong: int = 0
    unwritten: int = 0

    def add(self, matrices: Matrices, alpha: float, beta: float) -> Iterator[int]:
        """Compare D of one product with the reference; yield the number of rows of each block."""
        a, b, c, d = matrices
        # Products of 8-bit integers are exact in 64-bit floats, as are sums of up to 2^37 of them.
        k, b64 = b.shape[0], b.astype(np.float64)
        out = dtype(self.out_dtype).roundoff
        accumulator = dtype(self.dtype).sum_roundoff
        # A sum of k products of N(0, 1) values is about √k, so each of its k additions is off by
        # about √k · roundoff. Errors of random sign add up to √k of that: k · roundoff.
        floor = SLACK * accumulator * k * (abs(alpha) + abs(beta))
        rows = max(1, (1 << 24) // max(d.shape[1], k, 1))
        for first in range(0, d.shape[0], rows):
            part = slice(first, first + rows)
            reference = alpha * (a[part].astype(np.float64) @ b64)
            if c is not None:
                reference += beta * c[part].astype(np.float64)
            self.unwritten += int((_bits(d[part]) == _poison(self.out_dtype)).sum())
            if not dtype(self.dtype).is_float:
                reference = _stored(reference, d.dtype)
            found = d[part].astype(np.float64)
            with np.errstate(invalid="ignore"):  # equal infinities count as equal
                difference = np.where(found == reference, 0, np.abs(found - reference))
            self.wrong += int((~(difference <= 2 * out * np.abs(reference) + floor)).sum())
            self.squares += float(np.square(difference).sum())
            self.total += float(np.square(reference).sum())
            yield d[part].shape[0]
