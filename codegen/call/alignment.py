"""The alignment of an array's address and strides, which decides whether TMA can copy it."""

from __future__ import annotations

from collections.abc import Mapping

from codegen.call.views import TensorView
from coordgraph.gemm import GemmProblem
from coordgraph.tensors import dtype
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["alignment_of", "alignment_of_factors"]

LARGEST_STEP = 1 << 40
"""The number of bytes that strides of a TMA descriptor must be less than."""


def alignment_of(view: TensorView) -> int:
    """The largest power of two, up to 16, that divides an array's address and strides in bytes.

    The result is 1 in three cases that TMA cannot copy (CUDA driver API, cuTensorMapEncodeTiled): a
    stride is not positive, such as the stride of 0 of an expanded matrix, or has 2^40 bytes or
    more; or rows overlap because the leading dimension is less than the length of a row.
    """
    size = dtype(view.dtype).bytes
    steps = [view.leading_dimension, *view.outer_strides]
    if min(steps) <= 0 or max(steps) * size >= LARGEST_STEP or steps[0] < view.shape[-1]:
        return 1
    found = ALIGNED_BYTES
    while any(number % found for number in (view.pointer, *(size * step for step in steps))):
        found //= 2
    return found


def alignment_of_factors(gemm: GemmProblem, views: Mapping[str, TensorView]) -> int:
    """The largest power of two, up to 16, to which A and B are aligned; see `alignment_of`.

    If the rows of A are gathered, threads copy them in chunks of 16 bytes, and a chunk that is not
    whole would bring elements of the gap behind a row. The result is 1 if rows have such a chunk.

    Args:
        gemm: the problem, which says whether the rows of A are gathered.
        views: the arrays of a call, by the name of the tensor.
    """
    found = min(alignment_of(views[name]) for name in "AB")
    a = views["A"]
    whole = not gemm.gathered_rows or a.shape[-1] % dtype(a.dtype).chunk == 0
    return found if whole else 1
