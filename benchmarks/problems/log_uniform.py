"""Random GEMM sizes: extents log-uniform in a range, the same on every machine for a seed."""

from __future__ import annotations

import random
from math import exp, log

from benchmarks.problems.shapes import Shape

__all__ = ["HIGH", "LOW", "STEP", "log_uniform_shapes"]

LOW, HIGH = 128, 8192
"""The smallest and largest extent of the problems in the Stream-K paper (arXiv:2301.03598)."""
STEP = 8
"""Default number of elements of which extents are multiples: rows of 16-bit elements are then
multiples of 16 bytes, as TMA needs."""
Range = tuple[int, int]


def log_uniform_shapes(
    count: int,
    seed: int = 0,
    step: int = STEP,
    *,
    m: Range = (LOW, HIGH),
    n: Range = (LOW, HIGH),
    k: Range = (LOW, HIGH),
) -> list[Shape]:
    """Draw random shapes whose extents are exp(uniform(log low, log high)), rounded to `step`.

    m, n and k of each shape are drawn in turn from Python's Mersenne Twister, so a longer list
    begins with the shapes of a shorter one.

    Args:
        count: how many shapes to draw.
        seed: the seed of the random generator.
        step: every extent is a multiple of it, and at least as large.
        m, n, k: the smallest and the largest value of each extent.

    >>> [found.name for found in log_uniform_shapes(2)]
    ['4288x2992x736', '376x1072x688']
    """
    generator = random.Random(seed)

    def extent(low: int, high: int) -> int:
        value = exp(generator.uniform(log(low), log(high)))
        return max(step, round(value / step) * step)

    sizes = [(extent(*m), extent(*n), extent(*k)) for _ in range(count)]
    return [Shape("x".join(map(str, size)), *size) for size in sizes]
