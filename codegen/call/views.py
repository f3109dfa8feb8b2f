"""Arrays as a kernel sees them: address, shape, strides, type and device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from coordgraph import LaunchError, VerifyError
from coordgraph.gemm import ARRAYS, OFFSETS, OFFSETS_OF, ROWS, TARGETS
from coordgraph.interpreter.arguments import host_array
from coordgraph.tensors import DTYPES, dtype

__all__ = ["LABELS", "TensorView", "label", "numpy_view", "shape_text", "single", "type_name"]

LABELS = {**ARRAYS, **dict.fromkeys((OFFSETS, *OFFSETS_OF.values()), "offsets")}


def label(tensor: str) -> str:
    """The name of the argument that passes a tensor to a call: `a` for A, `bias` for bias."""
    return LABELS.get(tensor, tensor)


@dataclass(frozen=True, slots=True)
class TensorView:
    """Address, shape, strides (in elements), type and device of an array.

    The device is None for an array in host memory.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: Any = None

    @property
    def bytes(self) -> int:
        """Number of bytes from the start of the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        last = sum(
            (extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True)
        )
        return dtype(self.dtype).bytes * (last + 1)

    @property
    def span(self) -> tuple[int, int]:
        """The lowest offset of an element from `pointer` and one past the highest, in elements."""
        if 0 in self.shape:
            return 0, 0
        ends = [
            (extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True)
        ]
        return sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends) + 1

    @property
    def leading_dimension(self) -> int:
        """Distance in elements from one row of a matrix to the next.

        The result for a vector or a matrix of one row is the number of elements of the row.
        """
        one_row = len(self.shape) == 1 or self.shape[-2] < 2
        return self.shape[-1] if one_row or not self.shape[-1] else self.strides[-2]

    @property
    def element_stride(self) -> int:
        """Distance in elements from one element of a row, or of a vector, to the next."""
        return self.strides[-1] if self.shape and self.shape[-1] > 1 else 1

    @property
    def rows_follow(self) -> bool:
        """Whether this is a batch that can be read as one matrix with more rows.

        That is so if all consecutive rows are the same distance apart, also from the last row of a
        matrix to the first row of the next matrix.
        """
        if len(self.shape) < len("lmn"):
            return False
        if 0 in self.shape or self.contiguous:
            return True
        (count, rows, columns), (step, pitch, element) = self.shape, self.strides
        apart = 1 in (count, rows) or step == rows * pitch
        return apart and min(step, pitch) >= 0 and (columns == 1 or element == 1)

    @property
    def matrix_stride(self) -> int:
        """Distance in elements from the start of one matrix of a batch to the start of the next.

        The result for a batch of one matrix is the number of rows times the leading dimension.
        """
        return self.strides[0] if self.shape[0] != 1 else self.shape[-2] * self.leading_dimension

    @property
    def outer_strides(self) -> tuple[int, ...]:
        """For each batch axis (all but the last two): elements from one matrix to the next one.

        The stride of an axis of extent 1 is never used. The result for such an axis is the distance
        to a second matrix that would follow the first one without a gap.
        """
        found = list[int]()
        after = self.shape[-2] * self.leading_dimension if len(self.shape) > 1 else 0
        for extent, stride in zip(self.shape[-3::-1], self.strides[-3::-1], strict=True):
            found.append(stride if extent != 1 else after)
            after = max(extent * found[-1], after)
        return tuple(reversed(found))

    @property
    def first(self) -> TensorView:
        """The first matrix of a batch."""
        return replace(self, shape=self.shape[1:], strides=self.strides[1:])

    @property
    def transposed(self) -> TensorView:
        """The transpose of a matrix, or of each matrix of a batch, in the same memory."""
        (*more, rows, columns), (*steps, step, least) = self.shape, self.strides
        return replace(self, shape=(*more, columns, rows), strides=(*steps, least, step))

    @property
    def without_gaps(self) -> bool:
        """Whether a matrix, or each matrix of a batch, is row-major without gaps."""
        matrix = replace(self, shape=self.shape[-2:], strides=self.strides[-2:])
        return matrix.contiguous

    @property
    def overlaps_itself(self) -> bool:
        """Whether two elements of the array may have the same address."""
        reach = 0
        steps = zip(self.strides, self.shape, strict=True)
        for stride, extent in sorted(step for step in steps if step[1] > 1):
            if stride <= reach:
                return True
            reach += (extent - 1) * stride
        return False

    @property
    def contiguous(self) -> bool:
        """Whether an array is row-major without gaps; strides of axes of extent 1 are ignored."""
        if 0 in self.shape:
            return True
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True

    @property
    def is_transposed(self) -> bool:
        """Whether a matrix, or each matrix of a batch, is not row-major while its transpose is.

        There may be gaps between the rows of the transpose.
        """
        row_major, column_major = self._majors
        return column_major and not row_major and 0 not in self.shape[-2:]

    @property
    def is_either_way(self) -> bool:
        """Whether a matrix, or each matrix of a batch, and its transpose are both row-major.

        This is so for a single row or a single column whose elements are adjacent.
        """
        return all(self._majors)

    @property
    def _majors(self) -> tuple[bool, bool]:
        """Whether each matrix is row-major, and whether it is column-major; gaps are allowed."""
        (rows, columns), (row_step, column_step) = self.shape[-2:], self.strides[-2:]
        # The stride of an axis of extent 1 is arbitrary, so it is ignored.
        return columns == 1 or column_step == 1, rows == 1 or row_step == 1


def type_name(name: str, what: str) -> str:
    """The name that coordgraph gives an element type, such as `bf16`.

    Args:
        name: the name that the array's library gives the type, such as `bfloat16`.
        what: the name of the argument, for the error.

    Raises:
        LaunchError: kernels do not support the type.
    """
    try:
        return dtype(name).name
    except VerifyError as error:
        if what in (label(OFFSETS), ROWS, TARGETS):
            raise LaunchError(
                f"{what} holds {name}, but must hold i32; convert it by {what}.to(torch.int32), "
                f"or by {what}.astype('int32') for numpy, CuPy and JAX"
            ) from error
        raise LaunchError(f"{what}: {error}; {_advice(name, what)}") from error


def _advice(name: str, what: str) -> str:
    """The end of an error message: how to multiply an array of an unsupported element type.

    `name` is the name that the array's library gives the type.
    """
    if name.startswith("complex"):
        return "multiply the real and the imaginary parts separately"
    operands = [d for d in DTYPES.values() if d.operand]
    if name.startswith(("int", "uint")):
        signed = name.startswith("int")
        fits = next(d for d in operands if not d.is_float and (d.least < 0) == signed).name
        wide = (d for d in operands if d.is_float and not d.is_small_float)
        exact = ", ".join(f"{d.name} up to 2^{d.digits}" for d in wide)
        return f"convert it to a type that holds its integers: {fits} if they fit, {exact}"
    floats = ", ".join(d.library for d in operands if d.is_float)
    if name == "bool":
        whole = " or ".join(d.library for d in operands if not d.is_float)
        return f"convert it to {whole}, in which True is 1, or to {floats}"
    return f"convert it to {floats}"


def numpy_view(array: Any, what: str) -> TensorView:
    """Address, shape, strides and type of a numpy array.

    Raises:
        LaunchError: the argument is not a numpy array, or a masked one; or kernels do not support
            its element type or layout.
    """
    array = host_array(array, what)
    kind = type_name(array.dtype.name, what)
    if not array.dtype.isnative:
        raise LaunchError(
            f"{what} has its bytes swapped; convert it, as by x.astype(x.dtype.newbyteorder('='))"
        )
    if any(stride % array.itemsize for stride in array.strides):
        raise LaunchError(
            f"{what} is not contiguous and row-major: its strides {array.strides}, in bytes, are "
            "not multiples of the element's size; copy it, as by numpy.ascontiguousarray"
        )
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return TensorView(array.ctypes.data, array.shape, strides, kind)


def single(tensor: str, view: TensorView) -> TensorView:
    """The view of an array; an epilogue's operand without axes becomes a vector of one element."""
    return view if view.shape or tensor in LABELS else replace(view, shape=(1,), strides=(1,))


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as text for messages: `3x4`, or `a scalar`."""
    return "x".join(map(str, shape)) or "a scalar"
