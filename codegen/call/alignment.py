"""The alignment of an array's address and strides, which decides whether TMA can copy it."""

from __future__ import annotations

from codegen.call.views import TensorView
from coordgraph.tensors import dtype
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["alignment_of"]


def alignment_of(view: TensorView) -> int:
    """The largest power of two, up to 16, that divides an array's address and strides in bytes.

    The result is 1 in two cases that TMA cannot copy (CUDA driver API, cuTensorMapEncodeTiled): a
    stride is not positive, such as the stride of 0 of an expanded matrix, or rows overlap because
    the leading dimension is less than the length of a row.
    """
    size = dtype(view.dtype).bytes
    steps = [view.leading_dimension]
    if len(view.shape) == 3:
        steps.append(view.matrix_stride)
    if min(steps) <= 0 or steps[0] < view.shape[-1]:
        return 1
    found = ALIGNED_BYTES
    while any(number % found for number in (view.pointer, *(size * step for step in steps))):
        found //= 2
    return found
