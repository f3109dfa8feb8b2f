"""Layouts of Hopper's matrix fragments and shared memory, written from the PTX ISA's text for
NumPy.

The layouts are independent of the lowering under test. Addresses in shared memory are in bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "accumulator", "operand", "stmatrix", "swizzled"]

Array = npt.NDArray[np.int64]


def swizzled(byte: Array, span: int) -> Array:
    """The byte address under a TMA swizzle of 128, 64 or 32 bytes; unchanged for other spans.

    PTX ISA, "Swizzling modes": the number of the 16-byte chunk in a span is combined by exclusive
    or with the number of the 128-byte line, modulo span/16.
    """
    chunks = span // 16
    if span not in (128, 64, 32):
        return byte
    return byte ^ (byte // 128 % chunks * 16)


def accumulator(thread: Array, register: Array) -> tuple[Array, Array]:
    """(row, column) in D that a thread's accumulator register number `register` holds after wgmma.

    PTX ISA, "Register Fragments and Shared Memory Matrix Layouts", matrix D of m64nNk16.
    """
    warp, lane = thread // 32, thread % 32
    row = 16 * warp + lane // 4 + 8 * (register // 2 % 2)
    return row, 8 * (register // 4) + 2 * (lane % 4) + register % 2


def operand(
    outer: Array, k: Array, strides: tuple[int, int], span: int, *, transposed: bool, size: int = 2
) -> Array:
    """Byte offset of an operand's element from the descriptor's address, before the swizzle.

    `strides` are the descriptor's (leading, stride) in bytes, `size` is the bytes of an element.
    PTX ISA, "Strides": K-major operands have rows of `span` bytes in groups of eight rows, and the
    groups are `stride` bytes apart. MN-major operands (`transposed`) have rows of `span` bytes
    along the outer axis; adjacent rows there are `leading` bytes apart, and each group of eight k
    is `stride` bytes after the one before.
    """
    leading, stride = strides
    wide = span // size
    if transposed:
        return outer // wide * leading + outer % wide * size + k // 8 * stride + k % 8 * span
    return outer // 8 * stride + outer % 8 * span + size * k


def stmatrix(lane: Array, half: Array, *, trans: bool) -> tuple[Array, Array]:
    """The row of an 8x8 matrix, and the element in it, that `stmatrix` stores from a half of a
    register.

    The halves of a lane's register are low (0) and high (1).
    """
    row, element = lane // 4, 2 * (lane % 4) + half
    return (element, row) if trans else (row, element)
