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
from codegen.checks import TensorView, numpy_view, product_sizes, shape_text
from codegen.preparing import Prepared, refuse
from coordgraph import CodegenError, LaunchError
from coordgraph.parameters import LARGEST_SIZE

__all__ = ["Arranged", "Batch", "Flat", "is_batch", "within"]

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
        shape: of D: products, rows and columns.
        spread: whether A and B are single matrices where the kernel takes one for each.
    """

    shape: tuple[int, int, int]
    spread: tuple[bool, bool]

    @classmethod
    def of(cls, a: Any, b: Any, *, transpose_a: bool, transpose_b: bool) -> Batch:
        """Of two arrays, one of which has three axes.

        Raises:
            LaunchError: they do not fit each other. Later on they are expanded or joined, and
                messages would be of shapes that the caller did not pass.
        """
        shapes = _shape(a, "a"), _shape(b, "b")
        sizes = product_sizes(*shapes, transpose_a, transpose_b)
        counts = [shape[0] if len(shape) == MATRICES else 1 for shape in shapes]
        count = counts[1] if counts[0] == 1 else counts[0]
        if counts[1] not in (1, count):
            needed = (count, *shapes[1][1:])
            raise LaunchError(f"b is {shape_text(shapes[1])}, {shape_text(needed)} is needed")
        spread = tuple(
            len(shape) == MATRIX or (own == 1 and count != 1)
            for shape, own in zip(shapes, counts, strict=True)
        )
        return cls((count, sizes["m"], sizes["n"]), (spread[0], spread[1]))

    @property
    def count(self) -> int:
        """Products."""
        return self.shape[0]

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
        expanded = b.shape[0] == self.count > 0 and not b.strides[0]
        alone = len(b.shape) == MATRIX or b.shape[0] == 1 or expanded
        rows = len(a.shape) == MATRICES and a.contiguous and a.shape[0] == self.count
        return alone and rows and a.shape[0] * a.shape[1] <= LARGEST_SIZE

    def joined(self, a: Any, b: Any, c: Any, out: Any) -> tuple[Any, Any, Any, Any] | None:
        """A, B, C and D of the one product; None where `c` or `out` has gaps, or does not fit."""
        for array, what in ((c, "c"), (out, "out")):
            if array is None:
                continue
            view = _view(array, what)
            if view.shape != self.shape or not view.contiguous:
                return None
        matrix = library(b).first(b) if len(b.shape) == MATRICES else b
        of_c, of_d = (None if x is None else library(x).joined(x) for x in (c, out))
        return library(a).joined(a), matrix, of_c, of_d

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
        batch: which arrays are one product.
        multiply: `matmul` with the options of the call.
        apart: prepares the batch as such, for a `c` or an `out` with gaps between matrices.
        tune: with the first call.
        told: the plan is the caller's.
    """

    batch: Batch
    multiply: Callable[..., Any]
    apart: Callable[..., Prepared]
    tune: bool = False
    told: bool = False
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
        tune, self.tune = self.tune, False
        operands = self.batch.joined(a, b, c, out)
        if operands is None:
            return self._with_gaps(a, b, c, out, alpha, beta, stream, tune)
        found = self.multiply(*operands, alpha, beta, stream=stream, tune=tune)
        return found.reshape(self.batch.shape) if out is None else out

    def _with_gaps(
        self, a: Any, b: Any, c: Any, out: Any, alpha: float, beta: float, stream: Any, tune: bool
    ) -> Any:
        while True:
            if self._apart is None:
                self._apart = self.apart(a, b, c, out, stream, tune)
            kernel, grid, *_ = self._apart
            try:
                return kernel(a, b, c, out, alpha, beta, stream, workgroups=grid)
            except CodegenError as error:  # the device does not take the code
                if self.told:
                    raise
                refuse(within(kernel), error)
                self._apart, tune = None, False


def within(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel itself, of one that expands operands."""
    return kernel.kernel if isinstance(kernel, Arranged) else kernel
