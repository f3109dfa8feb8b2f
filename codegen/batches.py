"""Batches of `matmul`: how arrays of two or three axes become what kernels of a batch take.

A kernel takes l x m x k times l x k x n, each matrix row-major. A single matrix that serves all is
one that is 0 elements further each time; transposes of matrices are turned. Where B is a single
matrix and A without gaps, there is no batch: the rows of A are those of one product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from codegen.arrays import library
from codegen.checks import TensorView, numpy_view
from codegen.preparing import Prepared
from coordgraph import LaunchError
from coordgraph.parameters import LARGEST_SIZE

__all__ = ["Arranged", "Batch", "Flat", "is_batch"]

MATRIX, MATRICES = 2, 3
"""Axes."""


def is_batch(a: Any, b: Any) -> bool:
    """Whether A or B is as many matrices as products.

    Raises:
        LaunchError: there are more axes, or it is no array.
    """
    axes = {name: len(_shape(array, name)) for name, array in (("a", a), ("b", b))}
    for name, count in axes.items():
        if count > MATRICES:
            raise LaunchError(
                f"{name} has {count} axes; a matrix, or a batch of three axes is needed: flatten "
                "those before the last two into one"
            )
    return MATRICES in axes.values() and min(axes.values()) >= MATRIX


def _shape(array: Any, what: str) -> tuple[int, ...]:
    shape = getattr(array, "shape", None)
    return _view(array, what).shape if shape is None else tuple(shape)


def _view(array: Any, what: str) -> TensorView:
    home = library(array)
    return numpy_view(array, what) if home.on_host else home.view(array, what)


@dataclass(frozen=True)
class Batch:
    """How the operands of a batch are given.

    Args:
        count: products.
        spread: whether A and B are single matrices where the kernel takes one for each.
    """

    count: int
    spread: tuple[bool, bool]

    @classmethod
    def of(cls, a: Any, b: Any) -> Batch:
        """Of two arrays, one of which has three axes."""
        counts = [s[0] if len(s) == MATRICES else 1 for s in (_shape(a, "a"), _shape(b, "b"))]
        count = counts[1] if counts[0] == 1 else counts[0]
        spread = tuple(
            len(_shape(array, "")) == MATRIX or (own == 1 and count != 1)
            for array, own in zip((a, b), counts, strict=True)
        )
        return cls(count, (spread[0], spread[1]))

    def operands(self, one: Any, other: Any) -> tuple[Any, Any]:
        """A and B with a matrix for every product."""
        a, b = (
            library(array).spread(array, self.count) if alone else array
            for array, alone in zip((one, other), self.spread, strict=True)
        )
        return a, b

    def is_one_product(self, one: Any, other: Any, transpose_a: bool) -> bool:
        """Whether B serves all, and the rows of all matrices of A lie one after another."""
        if transpose_a or not all(library(array).shares for array in (one, other)):
            return False
        a, b = _view(one, "a"), _view(other, "b")
        # Of no matrices there is no first one.
        alone = len(b.shape) == MATRIX or b.shape[0] == 1 or (b.shape[0] > 1 and not b.strides[0])
        rows = len(a.shape) == MATRICES and a.contiguous and a.shape[0] == self.count
        return alone and rows and a.shape[0] * a.shape[1] <= LARGEST_SIZE

    def arranged(self, prepared: Prepared) -> Prepared:
        """What calls like this one need, given what the kernel needs."""
        turned = prepared.turn_a, prepared.turn_b
        if not any((*self.spread, *turned)):
            return prepared
        kernel = Arranged(prepared.kernel, self, turned)
        return Prepared(kernel, prepared.workgroups, False, False)


@dataclass(frozen=True)
class Arranged:
    """A kernel of a batch, called with arrays that it has to be passed otherwise."""

    kernel: Callable[..., Any]
    batch: Batch
    turned: tuple[bool, bool]

    def __call__(self, a: Any, b: Any, *rest: Any, workgroups: int | None = None) -> Any:
        """As `Kernel`."""
        one, other = (
            library(array).turned(array) if turned else array
            for array, turned in zip(self.batch.operands(a, b), self.turned, strict=True)
        )
        return self.kernel(one, other, *rest, workgroups=workgroups)


@dataclass
class Flat:
    """A batch whose B is a single matrix, as one product: A's rows are those of all matrices.

    Args:
        multiply: `matmul` with the options of the call.
        apart: prepares the batch as such, for a `c` or an `out` with gaps between matrices.
        tune: with the first call.
    """

    multiply: Callable[..., Any]
    apart: Callable[..., Prepared]
    tune: bool = False
    _apart: Prepared | None = None

    def __call__(
        self,
        a: Any,
        b: Any,
        c: Any,
        out: Any,
        alpha: float,
        beta: float,
        stream: Any,
        *,
        workgroups: int | None = None,
    ) -> Any:
        """As `Kernel`; the grid is that of the product's own plan."""
        del workgroups
        home, other = library(a), library(b)
        count, rows, _ = a.shape
        for array, what in ((c, "c"), (out, "out")):
            if array is not None and not _is_flat(_view(array, what), count, rows):
                if self._apart is None:
                    self._apart = self.apart(a, b, c, out)
                kernel, grid, *_ = self._apart
                return kernel(a, b, c, out, alpha, beta, stream, workgroups=grid)
        matrix = other.first(b) if len(b.shape) == MATRICES else b
        joined = (None if x is None else library(x).joined(x) for x in (c, out))
        tune, self.tune = self.tune, False
        found = self.multiply(
            home.joined(a), matrix, *joined, alpha, beta, stream=stream, tune=tune
        )
        return found.reshape(count, rows, found.shape[-1]) if out is None else out


def _is_flat(view: TensorView, count: int, rows: int) -> bool:
    return view.contiguous and len(view.shape) == MATRICES and view.shape[:2] == (count, rows)
