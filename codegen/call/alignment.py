"""The alignment of an array's address and strides, which decides whether TMA can copy it."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from codegen.call.views import TensorView
from coordgraph.gemm import GemmProblem
from coordgraph.tensors import dtype
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["alignment_of", "alignment_of_factors", "part_bytes"]

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

    Two more things count:

    - If the rows of A are gathered, threads copy them in chunks of 16 bytes, and a chunk that is
      not whole would bring elements of the gap behind a row. The result is 1 if rows have such a
      chunk.
    - If a row of B has adjacent columns of one part after those of another, a TMA box begins where
      a part begins. TMA only loads boxes whose first element is at a multiple of 16 bytes in its
      row; for others the GPU reports an illegal instruction.

    Args:
        gemm: the problem, which says whether the rows of A are gathered, and where the parts of B
            are.
        views: the arrays of a call, by the name of the tensor.
    """
    found = min(alignment_of(views[name]) for name in "AB")
    a, b = views["A"], views["B"]
    if gemm.gathered_rows and a.shape[-1] % dtype(a.dtype).chunk:
        return 1
    part = part_bytes(gemm, b.shape[-1])
    return gcd(found, part) if part else found


def part_bytes(gemm: GemmProblem, columns: int) -> int:
    """The distance in bytes at which parts of B begin in a row; 0 if no TMA box begins there.

    The result is 0 if B has one part, is given as its transpose, alternates single columns of its
    parts, or has a matrix for each part.

    Args:
        gemm: the problem, which says where the parts of B are.
        columns: number of columns in a row of B.
    """
    if not gemm.parts_in_rows or gemm.parts_apart:
        return 0
    return (gemm.part_width or columns // gemm.sums) * dtype(gemm.dtype).bytes
