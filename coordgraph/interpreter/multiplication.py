"""`matrix_product`: products of small matrices, without starting the threads of a BLAS library."""

from __future__ import annotations

import numpy as np

from coordgraph.interpreter.arguments import Array

__all__ = ["matrix_product"]

MOST_WORK = 1 << 18
"""The largest number of multiplications of one BLAS call: OpenBLAS computes these in one thread."""
FEWEST_ROWS = 8
"""Smallest number of rows of the left factor in one BLAS call, if a product takes several calls.
If whole rows of the product allow only fewer, the right factor is divided into bands of columns."""
FEWEST_COLUMNS = 8
"""Smallest number of columns of the right factor in one BLAS call. A product that would need fewer
is computed by one call, which may use threads."""
MOST_SPLIT = 1 << 28
"""The largest number of multiplications of a product that is divided. Threads compute a larger one
faster."""


def matrix_product(a: Array, b: Array) -> Array:
    """The product `a @ b` of two matrices, computed by one BLAS call for each part of the product.

    A part is a band of rows, or a band of rows and columns. A tile is so small that OpenBLAS spends
    more time waking and joining its threads than multiplying: on a machine with other load,
    milliseconds instead of microseconds. After a call each thread also waits for the next one in a
    busy loop: a product of half a millisecond costs a tenth of a second of each other core.

    Args:
        a: the left factor, of the shape (m, k).
        b: the right factor, of the shape (k, n).

    Returns:
        An array of the shape (m, n), in the element type of `a @ b`.

    Raises:
        ValueError: the shapes do not fit together.
    """
    rows = MOST_WORK // max(b.size, 1)
    if a.ndim != 2 or b.ndim != 2 or len(a) <= rows or len(a) * b.size > MOST_SPLIT:
        return a @ b
    if rows >= FEWEST_ROWS:
        return _by_rows(a, b, rows)
    columns = MOST_WORK // (FEWEST_ROWS * len(b))
    if columns < FEWEST_COLUMNS:
        return a @ b
    starts = range(0, b.shape[1], columns)
    return np.hstack([_by_rows(a, b[:, x : x + columns], FEWEST_ROWS) for x in starts])


def _by_rows(a: Array, b: Array, rows: int) -> Array:
    """The product `a @ b`, computed by one BLAS call for each `rows` rows of a."""
    return np.concatenate([a[first : first + rows] @ b for first in range(0, len(a), rows)])
