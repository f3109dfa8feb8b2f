"""Makes lists of products for tests: packs matrices of different sizes in vectors, with offsets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coordgraph.gemm import ROW_STEP

__all__ = ["Sizes", "drawn", "ends_of", "pitch", "views"]

Sizes = tuple[int, int, int]
"""Type of the sizes of one product: m, n and k."""


def ends_of(sizes: Sequence[Sizes]) -> np.ndarray:
    """The offset tables of a call: one row each for m, n and k.

    A row has the first index of every group along that axis, and then the end of the last group.
    """
    ends = np.zeros((3, len(sizes) + 1), np.int32)
    for axis in range(3):
        ends[axis, 1:] = np.cumsum([size[axis] for size in sizes])
    return ends


def views(
    shapes: Sequence[tuple[int, int]], dtype: np.dtype | type = np.float32, fill: float = np.nan
) -> tuple[np.ndarray, list[np.ndarray]]:
    """(a vector filled with `fill` that holds a matrix of each shape, views of the matrices).

    The vector has at least one element, because a tensor of size 0 is not allowed.
    """
    steps = [rows * pitch(columns) for rows, columns in shapes]
    pool = np.full(max(sum(steps), 1), fill, dtype)
    at, found = 0, []
    for (rows, columns), step in zip(shapes, steps, strict=True):
        block = pool[at : at + step].reshape(rows, pitch(columns))
        found.append(block[:, :columns])
        at += step
    return pool, found


def pitch(columns: int) -> int:
    """Elements from one row to the next: `columns` rounded up to a multiple of ROW_STEP."""
    return -(-columns // ROW_STEP) * ROW_STEP


def drawn(random: np.random.Generator, groups: int, most: int) -> list[Sizes]:
    """Random m, n and k, all less than `most`, for each of `groups` products."""
    m, n, k = (map(int, random.integers(0, most, groups)) for _ in range(3))
    return list(zip(m, n, k, strict=True))
