"""Inputs, the reference, and what a result is measured by."""

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
"""How many times the error of √k random roundings is let through: sums are split and reordered."""


@dataclass(frozen=True)
class Inputs:
    """Arrays as a kernel takes them: A and B transposed where the problem says so."""

    a: Array
    b: Array
    c: Array | None
    alpha: float
    beta: float
    offsets: Array | None = None
    """Where groups begin; None where there are none."""


def make_inputs(
    problem: Problem, alpha: float, beta: float, seed: int, products: Products | None = None
) -> Inputs:
    """Matrices of N(0, 1), rounded to their types, or of all integers of a type alike.

    The same seed gives the same ones. `products` is by default the one product of the problem.
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
    """An array for D of all products, of the value of `poisoned`."""
    shapes = products.shapes_of("D")
    return _poisoned(
        products.joined([np.empty(shape, numpy_dtype(kind)) for shape in shapes]), kind
    )


def poisoned(rows: int, columns: int, kind: str) -> Array:
    """A matrix of a value that no arithmetic makes: what is not written keeps it."""
    return _poisoned(np.empty((rows, columns), numpy_dtype(kind)), kind)


def _poisoned(made: Array, kind: str) -> Array:
    _bits(made).fill(_poison(kind))
    return made


def _bits(array: Array) -> Array:
    return array.view(f"u{array.itemsize}")


def _poison(kind: str) -> int:
    """The bits of a NaN that is not the usual one, or of the least integer: a sum too large for it.

    All bits but the last make a NaN of every float.
    """
    bits = dtype(kind).bits
    return (1 << bits) - 2 if dtype(kind).is_float else 1 << (bits - 1)


def _stored(exact: Array, kind: np.dtype[Any]) -> Array:
    """Whole numbers modulo 2^32, as sums of 32 bits have them, rounded to the type of D."""
    with np.errstate(over="ignore"):  # f16 ends at 65504, and then is infinite
        return exact.astype(np.int64).astype(np.int32).astype(kind).astype(np.float64)


@dataclass(frozen=True)
class Check:
    """How far D is from `alpha·A@B + beta·C` in 64-bit arithmetic.

    `error` is ‖D - reference‖ / ‖reference‖ and must be at most `tolerance`; `wrong` counts single
    elements that are further off than rounding explains, `unwritten` those that kept the poison.
    """

    error: float
    tolerance: float
    wrong: int
    unwritten: int

    @property
    def passed(self) -> bool:
        """All of it."""
        # `not >` would let NaN through.
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
        """Compare all products, a block of rows at a time.

        Args:
            d: what the kernel wrote.
            inputs: what it was given.
            problem: the types, and the one product where `products` is None.
            products: all products.
            progress: called after each block with the part that is done, from 0 to 1.
        """
        products = products or Products.of(problem, None, None)
        kind = problem.out_dtype or dtype(problem.dtype).result
        out, accumulator = dtype(kind).roundoff, dtype(dtype(problem.dtype).accumulator).roundoff
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
    """Sums over all products of how far D is from the reference."""

    dtype: str
    out_dtype: str
    squares: float = 0.0
    total: float = 0.0
    wrong: int = 0
    unwritten: int = 0

    def add(self, matrices: Matrices, alpha: float, beta: float) -> Iterator[int]:
        """Add one product; yields the rows of each block."""
        a, b, c, d = matrices
        # Products of 8-bit integers are exact in 64-bit floats, and so are sums of up to 2^37.
        k, b64 = b.shape[0], b.astype(np.float64)
        out = dtype(self.out_dtype).roundoff
        accumulator = dtype(dtype(self.dtype).accumulator).roundoff
        # Sums of k products of N(0, 1) are about √k, and a rounding moves one by that much.
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
            with np.errstate(invalid="ignore"):  # infinities that agree do not differ
                difference = np.where(found == reference, 0, np.abs(found - reference))
            self.wrong += int((~(difference <= 2 * out * np.abs(reference) + floor)).sum())
            self.squares += float(np.square(difference).sum())
            self.total += float(np.square(reference).sum())
            yield d[part].shape[0]
