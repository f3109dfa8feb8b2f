"""`matrix_product`: products of small matrices, without starting the threads of a BLAS library."""

from __future__ import annotations

import numpy as np

from coordgraph.interpreter.arguments import Array

__all__ = ["matrix_product"]

MOST_WORK = 1 << 18
"""The largest number of multiplications of one BLAS call: OpenBLAS computes these in one thread."""
FEWEST_ROWS = 8
"""Smallest number of rows of the left factor in one BLAS call, if a product takes several calls.
Products that would need fewer rows per call are so large that BLAS may use threads for them."""


def matrix_product(a: Array, b: Array) -> Array:
    """The product `a @ b` of two matrices, computed by one BLAS call for each band of rows of a.

    A tile is so small that OpenBLAS spends more time waking and joining its threads than
    multiplying: on a machine with other load, milliseconds instead of microseconds.

    Args:
        a: the left factor, of the shape (m, k).
        b: the right factor, of the shape (k, n).

    Returns:
        An array of the shape (m, n), in the element type of `a @ b`.

    Raises:
        ValueError: the shapes do not fit together.
    """
    rows = MOST_WORK // max(b.size, 1)
    if a.ndim != 2 or b.ndim != 2 or rows < FEWEST_ROWS or len(a) <= rows:
        return a @ b
    return np.concatenate([a[first : first + rows] @ b for first in range(0, len(a), rows)])
