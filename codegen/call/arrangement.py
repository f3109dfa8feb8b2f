"""`Arrangement` converts the arrays of a call to the arrays that its kernel takes.

Kernels take row-major matrices, A (m x k) and B (k x n) or their transposes, or batches of l such
matrices. A call may give views of transposes, and single matrices that serve a whole batch. If D is
column-major, the kernel computes its transpose, `Bᵀ·Aᵀ`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from codegen.call.arrays import library
from codegen.call.checks import product_sizes
from codegen.call.views import TensorView, shape_text
from coordgraph import LaunchError
from coordgraph.elements import dtype
from coordgraph.parameters import LARGEST_SIZE

__all__ = ["NO_OPERANDS", "Arrangement", "Launch", "Prepared", "Repeat"]

MATRIX, MATRICES = 2, 3
"""MATRIX: number of axes of a matrix. MATRICES: number of axes of a batch of matrices."""
NEITHER = (False, False)
"""Flags of A and of B, such as whether each is given as its transpose: both False."""
NO_OPERANDS: Mapping[str, Any] = {}
"""The further operands of a call that has none; a shared default saves host time."""

Launch = Callable[..., Any]
"""A function that launches a kernel; it returns D, or a tuple of D and the other outputs.

The function's arguments are a, b, c, out, alpha, beta and stream, and further operands by name.
"""
Repeat = Callable[..., Any]
"""A function that launches a kernel again on arrays of the same layouts; see `Kernel.repeated`."""


@dataclass(slots=True, eq=False)
class Prepared:
    """How to launch calls with one cache key.

    `matmul` transposes A and B itself, which saves host time in each call.

    Args:
        launch: the function that launches the kernel.
        swap_a, swap_b: whether to transpose A, and whether to transpose B, before the launch.
        repeated: `Kernel.repeated` of the kernel, without the argument `workgroups`, and by
            `Arrangement.repeated` if arrays are changed in other ways before a launch; None if
            another kernel will serve later calls, or once `matmul` has set `repeat`.
        repeat: for calls with the default epilogue, a function of `repeated`, or None.
    """

    launch: Launch
    swap_a: bool = False
    swap_b: bool = False
    repeated: Callable[..., Repeat | None] | None = None
    repeat: Repeat | None = None


@dataclass(frozen=True)
class Arrangement:
    """How the arrays of a call become the arrays that its kernel takes.

    Args:
        transpose: for A and B, whether the kernel gets the transpose of the array, because that
            transpose is row-major.
        batch: for a batch, the shape of D: number of products, rows and columns; else None.
        expand: for A and B of a batch, whether the operand is a single matrix, which is expanded
            with a stride of 0 to one matrix for each product.
        as_one_product: whether a batch is computed as one product of more rows. B must be a single
            matrix, and in A, C and D the matrices must lie one after another.
        turned: whether the kernel computes Dᵀ = Bᵀ·Aᵀ, because D is column-major: A and B are then
            exchanged, and C and D are passed as their transposes.
        operands_turned: names of the other arguments that are passed as their transposes: operands
            and outputs of the epilogue.
        outputs: names of the epilogue's outputs besides D.
    """

    transpose: tuple[bool, bool] = NEITHER
    batch: tuple[int, int, int] | None = None
    expand: tuple[bool, bool] = NEITHER
    as_one_product: bool = False
    turned: bool = False
    operands_turned: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        views: Mapping[str, TensorView],
        *,
        transpose_a: bool,
        transpose_b: bool,
        batched: bool = True,
        may_join: bool = True,
        may_turn: bool = True,
        sums: int = 1,
        width: int = 0,
        apart: bool = False,
    ) -> Arrangement:
        """Decide which arrays of a call must be transposed, expanded, or joined to one matrix.

        Args:
            views: the arrays as the caller gave them, by the names of tensors.
            transpose_a, transpose_b: whether A, and whether B, is given as its transpose.
            batched: whether an array of three axes is a batch; False only for grouped products.
            may_join: whether a batch may be computed as one product with more rows. Pass False if
                an array library would copy A or B to reshape it.
            may_turn: whether the kernel may compute the transpose of a column-major D. False if a
                table gathers or scatters rows, which would be columns of the transpose.
            sums: the number of sums of products from which the epilogue computes an element of D.
            width: the number of columns of a block of B, if blocks of columns for different sums
                alternate; else 0 or 1.
            apart: whether B has a separate matrix for each sum, along the axis before the last two.

        Raises:
            LaunchError: A and B do not fit each other, or have too many axes; or D is column-major
                and has several sums.
        """
        a, b = shapes = views["A"].shape, views["B"].shape
        for name, shape in zip("ab", shapes, strict=True):
            if batched and not apart and len(shape) > MATRICES:
                raise LaunchError(
                    f"{name} has {len(shape)} axes, but a matrix, or a batch of three axes is "
                    "needed; flatten all axes before the last two into one"
                )
        if min(len(a), len(b)) < MATRIX:
            return cls()  # fewer than two axes: `describe` raises the error
        # Check the shapes before A and B are exchanged, so that an error names them as given.
        of_one = 1 if apart else sums
        sizes = product_sizes(a, b, transpose_a, transpose_b, of_one, width)
        one_row = sums > 1 and sizes["m"] == 1  # elements of such a row may be apart
        if batched and "D" in views and _is_column_major(views, sizes) and not one_row:
            if sums > 1:
                raise LaunchError(
                    f"out is column-major, and kernels whose epilogue has {sums} sums write only "
                    "row-major arrays; pass a row-major out"
                )
            if may_turn:
                turned = {"A": views["B"], "B": views["A"]}
                turned |= {name: views[name].transposed for name in "CD" if name in views}
                flags: Any = {"transpose_a": not transpose_b, "transpose_b": not transpose_a}
                return replace(cls.of(turned, **flags, may_join=may_join), turned=True)
        transpose = _turned(views["A"], transpose_a), _turned(views["B"], not transpose_b)
        if not batched or apart or len(a) == len(b) == MATRIX:
            return cls(transpose)
        of_a, of_b = (shape[0] if len(shape) == MATRICES else 1 for shape in shapes)
        count = of_b if of_a == 1 else of_a
        if of_b not in (1, count):
            needed = (count, *b[1:])
            raise LaunchError(
                f"b is {shape_text(b)}, but {shape_text(needed)} is needed; pass one matrix for "
                "each matrix of a"
            )
        batch = (count, sizes["m"], sizes["n"])
        if may_join and not transpose_a and _is_one_product(views, count):
            return cls((False, transpose[1]), batch, as_one_product=True)
        expand_a = len(a) == MATRIX or of_a != count
        expand_b = len(b) == MATRIX or of_b != count
        return cls(transpose, batch, (expand_a, expand_b))

    @property
    def rearranges(self) -> bool:
        """Whether arrays must be changed in another way than by transposing A or B.

        True if A and B are exchanged, operands of the epilogue are transposed, a matrix is expanded
        to a batch, or a batch is joined to one matrix.
        """
        return self.as_one_product or self.turned or bool(self.operands_turned) or any(self.expand)

    @property
    def changes(self) -> bool:
        """Whether the kernel takes any array in another form than the caller gives it."""
        return self.rearranges or any(self.transpose)

    def operands(self, a: Any, b: Any, c: Any, out: Any) -> tuple[Any, Any, Any, Any]:
        """Convert the caller's A, B, C and D to the arrays that the kernel takes.

        Raises:
            LaunchError: C or D does not have the shape of the batch, or arrays of A's or B's
                library cannot be expanded.
        """
        if self.turned:
            a, b = b, a
            c, out = (x if x is None else library(x).transposed(x) for x in (c, out))
        if self.as_one_product:
            for name, array in (("c", c), ("out", out)):
                if array is not None and tuple(array.shape) != self.batch:
                    given, needed = (shape_text(tuple(s)) for s in (array.shape, self.batch or ()))
                    raise LaunchError(
                        f"{name} is {given}, but {needed} is needed; pass an array of this shape"
                    )
            b = library(b).first_matrix(b) if len(b.shape) == MATRICES else b
            a, c, out = (x if x is None else library(x).as_one_matrix(x) for x in (a, c, out))
        count = self.batch[0] if self.batch is not None else 1
        if self.expand[0]:
            a = library(a).broadcast(a, (count, *a.shape[-2:]))
        if self.expand[1]:
            b = library(b).broadcast(b, (count, *b.shape[-2:]))
        if self.transpose[0]:
            a = library(a).transposed(a)
        if self.transpose[1]:
            b = library(b).transposed(b)
        return a, b, c, out

    def launch(
        self, start: Launch, a: Any, b: Any, c: Any, out: Any, *scalars: Any, **operands: Any
    ) -> Any:
        """Launch a kernel with rearranged arrays; returns the caller's D, and all other outputs.

        Args:
            start: the function that launches the kernel; called with the rearranged arrays, and the
                other arguments unchanged.
            a, b, c, out: the caller's arrays.
            scalars: alpha, beta and the stream.
            operands: further operands, and arrays for outputs besides D, by name.
        """
        a, b, c, d = self.operands(a, b, c, out)
        given = dict(operands)
        for name in self.operands_turned:
            if name == "c":
                c = c if c is None else library(c).transposed(c)
            else:
                operands[name] = library(operands[name]).transposed(operands[name])
        return self._returned(start(a, b, c, d, *scalars, **operands), out, given)

    def repeated(
        self,
        again: Callable[..., Repeat | None],
        a: Any,
        b: Any,
        c: Any,
        out: Any,
        *scalars: Any,
        **options: Any,
    ) -> Repeat | None:
        """`again`, which is `Kernel.repeated`, with rearranged arrays; None if D is column-major.

        If D is column-major, A and B are exchanged. The function of `again` does not compare the
        type of the kernel's A, and the call's key does not have the type of the caller's B.

        Args:
            again: `Kernel.repeated` without the argument `workgroups`.
            a, b, c, out: the arrays of the earlier call.
            scalars: alpha and beta.
            options: the arguments `operands` and `offsets` of `again`.
        """
        if self.turned or self.operands_turned:
            return None
        repeat = again(*self.operands(a, b, c, out), *scalars, **options)
        return None if repeat is None else partial(self._repeat, repeat)

    def _repeat(
        self,
        repeat: Repeat,
        a: Any,
        b: Any,
        c: Any,
        out: Any,
        alpha: float,
        beta: float,
        stream: Any,
        operands: Mapping[str, Any] = NO_OPERANDS,
        offsets: Any = None,
    ) -> Any:
        """Repeat an earlier launch with the caller's arrays, arranged as the kernel needs them.

        The result is None if `repeat` returns None because the arrays differ from the earlier ones.
        """
        arrays = self.operands(a, b, c, out)
        found = repeat(*arrays, alpha, beta, stream, operands, offsets)
        return None if found is None else self._returned(found, out, operands)

    def _returned(self, found: Any, out: Any, given: Mapping[str, Any]) -> Any:
        """What a call returns: the caller's D, and all other outputs.

        Args:
            found: what the kernel returned.
            out: the caller's array for D, or None.
            given: the caller's arrays for other outputs, by name.
        """
        if not self.outputs:
            return self._as_given(found, out)
        names = ("", *self.outputs)
        return tuple(
            self._as_given(array, given.get(name) if name else out)
            for name, array in zip(names, found, strict=True)
        )

    def _as_given(self, found: Any, given: Any) -> Any:
        """An output as the call returns it: the caller's array, or the kernel's new array.

        None, the result for a D that is not stored, is returned unchanged.
        """
        if given is not None or found is None:
            return given
        if self.turned:
            return library(found).transposed(found)
        if not self.as_one_product or self.batch is None:
            return found
        return found.reshape((*self.batch[:2], found.shape[-1]))


def _is_column_major(views: Mapping[str, TensorView], sizes: Mapping[str, int]) -> bool:
    """Whether D is column-major; False if D or C has a wrong shape."""
    shape = (sizes["m"], sizes["n"])
    fits = all(views[name].shape[-MATRIX:] == shape for name in "CD" if name in views)
    return fits and views["D"].is_transposed


def _is_one_product(views: Mapping[str, TensorView], count: int) -> bool:
    """Whether a batch can be computed as one product with more rows.

    That is so if B is one matrix, and in each of A, C and D all consecutive rows are the same
    distance apart in memory, also from the last row of a matrix to the first row of the next.
    """
    a, b = views["A"], views["B"]
    # With a stride of 0 between matrices, all matrices of B are the same memory. `count > 0`,
    # because the kernel gets the first matrix of B, which an empty batch does not have.
    expanded = len(b.shape) == MATRICES and b.shape[0] == count > 0 and not b.strides[0]
    if not (len(b.shape) == MATRIX or b.shape[0] == 1 or expanded):
        return False
    rows = len(a.shape) == MATRICES and a.shape[0] == count
    if not rows or a.shape[0] * a.shape[1] > LARGEST_SIZE:
        return False
    return all(views[name].rows_follow for name in "ACD" if name in views)


def _turned(view: TensorView, needed: bool) -> bool:
    """Whether a kernel takes the transpose of an array A or B instead of the array.

    Args:
        view: the array as the caller gave it.
        needed: whether matrix instructions that multiply only along contiguous k need the
            transpose. It decides where the type has such instructions, and the array has a single
            row or column, which kernels can read in both ways.
    """
    fixed = any(not each.across_k for each in dtype(view.dtype).instructions)
    return needed if fixed and view.is_either_way else view.is_transposed
