"""Where Hopper's units find and leave things, written out from the PTX ISA, for NumPy arrays.

Nothing here comes from the lowering. Places in shared memory are in bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "accumulator", "operand", "stmatrix", "swizzled"]

Array = npt.NDArray[np.int64]


def swizzled(byte: Array, span: int) -> Array:
    """Where a byte lies in rows of `span` bytes, under the swizzle of 128, 64 or 32 if it is one.

    "Swizzling modes": the number of a 16-byte chunk in its span is exchanged with the number of
    the 128-byte line, over lines 0 to span/16 - 1 and again.
    """
    chunks = span // 16
    if span not in (128, 64, 32):
        return byte
    return byte ^ (byte // 128 % chunks * 16)


def accumulator(thread: Array, register: Array) -> tuple[Array, Array]:
    """Row and column of d_register of a warpgroup's thread in an m64nN result.

    "Register Fragments and Shared Memory Matrix Layouts", matrix D of m64nNk16.
    """
    warp, lane = thread // 32, thread % 32
    row = 16 * warp + lane // 4 + 8 * (register // 2 % 2)
    return row, 8 * (register // 4) + 2 * (lane % 4) + register % 2


def operand(
    outer: Array, k: Array, strides: tuple[int, int], span: int, *, transposed: bool, size: int = 2
) -> Array:
    """Byte offset, before the swizzle, of an element of so many bytes from a descriptor's address.

    "Strides": K-major rows of `span` bytes, eight of them a group, groups `stride` apart;
    transposed (MN-major), `span` bytes of outer elements are a row, the next are `leading`
    further, and `stride` leads from eight rows of k to the next.
    """
    leading, stride = strides
    wide = span // size
    if transposed:
        return outer // wide * leading + outer % wide * size + k // 8 * stride + k % 8 * span
    return outer // 8 * stride + outer % 8 * span + size * k


def stmatrix(lane: Array, half: Array, *, trans: bool) -> tuple[Array, Array]:
    """Row of an 8x8 matrix and element in it where a lane's low (0) or high (1) half goes."""
    row, element = lane // 4, 2 * (lane % 4) + half
    return (element, row) if trans else (row, element)
