"""Lists of products that share no extent: vectors of matrices, and what must come out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coordgraph.gemm import ROW_STEP

__all__ = ["Sizes", "drawn", "ends_of", "pitch", "views"]

Sizes = tuple[int, int, int]
"""m, n and k of one product."""


def ends_of(sizes: Sequence[Sizes]) -> np.ndarray:
    """Where groups begin along m, n and k, and where the last one ends: what calls take."""
    ends = np.zeros((3, len(sizes) + 1), np.int32)
    for axis in range(3):
        ends[axis, 1:] = np.cumsum([size[axis] for size in sizes])
    return ends


def views(
    shapes: Sequence[tuple[int, int]], dtype: np.dtype | type = np.float32, fill: float = np.nan
) -> tuple[np.ndarray, list[np.ndarray]]:
    """A vector with room for matrices, and each of them; `fill` is in everything.

    It has an element at least: sizes of tensors are never 0.
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
    """Elements from one row to the next."""
    return -(-columns // ROW_STEP) * ROW_STEP


def drawn(random: np.random.Generator, groups: int, most: int) -> list[Sizes]:
    """Sizes of as many products, below `most`."""
    m, n, k = (map(int, random.integers(0, most, groups)) for _ in range(3))
    return list(zip(m, n, k, strict=True))
