"""`Broadcast` multiplies vectors and arrays with several batch axes, as `numpy.matmul` does.

Kernels take matrices and batches with one batch axis. Arrays of other shapes are reshaped: a
vector becomes a matrix with one row (A) or one column (B), and several batch axes become one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from codegen.call.arrays import library
from codegen.call.batches import launches
from codegen.call.views import TensorView, shape_text
from coordgraph import LaunchError
from coordgraph.validation import a_type

__all__ = ["MATRICES", "MATRIX", "Broadcast"]

VECTOR, MATRIX, MATRICES = 1, 2, 3
"""Numbers of axes of a vector, a matrix, and a batch of matrices."""
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Broadcast:
    """How the arrays of a product are reshaped to arrays that kernels take.

    Args:
        a, b: the shapes of A and B; for a vector, the shape of the matrix that it becomes.
        batch: the extents of the result's batch axes.
        matrix: the extents m and n of a product.
        shape: the shape of the result.
    """

    a: Shape
    b: Shape
    batch: Shape
    matrix: tuple[int, int]
    shape: Shape

    @classmethod
    def of(
        cls, a: Shape, b: Shape, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> Broadcast:
        """Determine how to reshape arrays with these shapes for a kernel.

        Raises:
            LaunchError: a vector is to be transposed, or the batch axes of A and B do not fit each
                other.
        """
        for name, shape, turned in (("a", a, transpose_a), ("b", b, transpose_b)):
            if len(shape) == VECTOR and turned:
                raise LaunchError(
                    f"transpose_{name} = True, but {name} is a vector, which has no transpose; "
                    f"leave out transpose_{name}"
                )
        of_a = (1, *a) if len(a) == VECTOR else a
        of_b = (*b, 1) if len(b) == VECTOR else b
        batch = _broadcast(of_a[:-2], of_b[:-2], a, b)
        m = of_a[-1] if transpose_a else of_a[-2]
        n = of_b[-2] if transpose_b else of_b[-1]
        rows, columns = ((m,) if len(a) > VECTOR else ()), ((n,) if len(b) > VECTOR else ())
        return cls(of_a, of_b, batch, (m, n), (*batch, *rows, *columns))

    def launch(
        self,
        multiply: Callable[..., Any],
        a: Any,
        b: Any,
        c: Any,
        out: Any,
        *scalars: Any,
    ) -> Any:
        """Multiply A and B, reshaped for a kernel; return D, whose shape is `self.shape`.

        Args:
            multiply: a function of A, B, C, D and `scalars` that multiplies matrices, or batches
                with one batch axis.
            a, b: A and B as the caller gave them.
            c, out: C and D of the shape `self.shape`, or None.
            scalars: alpha and beta.

        Raises:
            LaunchError: C or D has another shape, or D cannot be reshaped without a copy, or A has
                no method `reshape`, and one of the arrays is no `TensorView` or is a vector.
        """
        for name, array in (("c", c), ("out", out)):
            if array is not None and tuple(array.shape) != self.shape:
                raise LaunchError(
                    f"{name} is {shape_text(tuple(array.shape))}, but "
                    f"{shape_text(self.shape)} is needed; pass an array of this shape"
                )
        if not hasattr(a, "reshape"):
            _by_views(multiply, a, b, c, out, scalars)
            return out
        left, right = self._operand(a, self.a), self._operand(b, self.b)
        stacked = max(len(left.shape), len(right.shape)) == MATRICES
        matrices = (prod(self.batch), *self.matrix) if stacked else self.matrix
        add = None if c is None else c.reshape(matrices)
        to = None if out is None else library(out).reshaped_view(out, matrices)
        d = multiply(left, right, add, to, *scalars)
        return out if out is not None else d.reshape(self.shape)

    def _operand(self, array: Any, shape: Shape) -> Any:
        """An operand as one matrix, if all products share it, or as a batch with one batch axis.

        An operand that is repeated along some batch axes, but not along all, is copied.
        """
        batch, matrix = shape[:-2], shape[-2:]
        if prod(batch) == 1 and prod(self.batch) != 0:
            return array.reshape(matrix)
        if prod(batch) != prod(self.batch):
            array = library(array).broadcast(array.reshape(shape), (*self.batch, *matrix))
        return array.reshape((prod(self.batch), *matrix))


def _by_views(
    multiply: Callable[..., Any], a: Any, b: Any, c: Any, out: Any, scalars: tuple[Any, ...]
) -> None:
    """Multiply arrays that cannot be reshaped, by launches on views of their memory.

    The arguments are those of `Broadcast.launch`.

    Raises:
        LaunchError: `out` is missing, or an array is no `TensorView`, or is a vector.
    """
    arrays = [a, b, out] if c is None else [a, b, c, out]
    if not all(isinstance(x, TensorView) and len(x.shape) >= MATRIX for x in arrays):
        raise LaunchError(
            f"{a_type(a)} has no method reshape, which vectors and products with several batch "
            "axes need; pass matrices, or batches with one batch axis, and an array out"
        )
    for left, right, *add, to in launches(*arrays):
        multiply(left, right, add[0] if add else None, to, *scalars)


def _broadcast(one: Shape, other: Shape, a: Shape, b: Shape) -> Shape:
    """The extents of a product's batch axes, by the rules of `numpy.broadcast_shapes`.

    Args:
        one, other: the extents of the batch axes of A and of B.
        a, b: the shapes of A and B, for the error.

    Raises:
        LaunchError: two extents differ, and neither is 1.
    """
    count = max(len(one), len(other))
    pairs = zip(*((1,) * (count - len(x)) + tuple(x) for x in (one, other)), strict=True)
    found: list[int] = []
    for x, y in pairs:
        if x != y and 1 not in (x, y):
            raise LaunchError(
                f"a is {shape_text(a)} and b is {shape_text(b)}: the batch extents {x} and {y} "
                "differ and neither is 1; pass arrays whose batch extents are equal or 1"
            )
        found.append(y if x == 1 else x)
    return tuple(found)
