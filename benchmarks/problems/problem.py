"""One GEMM problem on the GPU: its operands in rotating buffers, and its result in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from benchmarks.problems.shapes import Shape

__all__ = [
    "DTYPES",
    "LAYOUTS",
    "Problem",
    "Run",
    "as_multiplied",
    "buffer_sets",
    "operands",
    "torch_dtype",
    "transposed",
]

DTYPES = {"bf16": ("bfloat16", 2.0**-8), "f16": ("float16", 2.0**-11)}
"""For each element type: PyTorch's name for it, and a bound on the relative rounding error."""
LAYOUTS = ("nn", "nt", "tn", "tt")
"""Layouts of the operands: the first letter is for A, the second for B. n: stored row-major;
t: stored column-major."""
MIN_SAMPLED_ROWS, ROWS_PER_SAMPLE = 256, 64
MAX_SETS, MAX_BYTES = 512, 16 << 30


class Run(Protocol):
    """Protocol: a function that enqueues D = A · B on PyTorch's current stream.

    A and B are passed as they are stored, possibly transposed; D is written to `out`.
    """

    def __call__(self, a: Any, b: Any, out: Any) -> Any: ...


def buffer_sets(bytes_of_set: int, cache: int) -> int:
    """How many sets of operands to use in turn, so that none is still in the L2 cache when reused.

    Args:
        bytes_of_set: total size of A, B and D in bytes.
        cache: size of the L2 cache in bytes.

    >>> buffer_sets(100 << 20, 60 << 20), buffer_sets(12 << 20, 60 << 20)
    (2, 16)
    """
    enough = 3 * cache // bytes_of_set + 1
    return max(2, min(enough, MAX_SETS, MAX_BYTES // bytes_of_set))


def torch_dtype(dtype: str) -> Any:
    """PyTorch's element type for `bf16` or `f16`."""
    import torch

    return getattr(torch, DTYPES[dtype][0])


def transposed(layout: str) -> tuple[bool, bool]:
    """(A, B): True for each that a layout such as "nt" stores as its transpose.

    >>> transposed("nt")
    (False, True)
    """
    a, b = layout
    return a == "t", b == "t"


def operands(shape: Shape, layout: str, dtype: str) -> tuple[Any, Any, Any]:
    """Allocate A, B and D on the GPU, in a layout; A and B hold normal random numbers."""
    import torch

    transpose_a, transpose_b = transposed(layout)
    m, n, k, kind = shape.m, shape.n, shape.k, torch_dtype(dtype)

    def normal(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, device="cuda", dtype=kind)

    return (
        normal(k, m) if transpose_a else normal(m, k),
        normal(n, k) if transpose_b else normal(k, n),
        torch.empty(m, n, device="cuda", dtype=kind),
    )


def as_multiplied(a: Any, b: Any, layout: str) -> tuple[Any, Any]:
    """A (m x k) and B (k x n) as views of the stored operands of a layout."""
    transpose_a, transpose_b = transposed(layout)
    return (a.T if transpose_a else a), (b.T if transpose_b else b)


class Problem:
    """One GEMM problem: several sets of operands on the GPU, and a reference result.

    Args:
        shape: the extents m, n and k.
        layout: how A and B are stored, one of `LAYOUTS`.
        dtype: the element type of A, B and D, one of `DTYPES`.
    """

    def __init__(self, shape: Shape, layout: str, dtype: str) -> None:
        import torch

        self.rounding = DTYPES[dtype][1]
        self.torch, self.shape, self.layout, self.dtype = torch, shape, layout, dtype
        self.transpose_a, self.transpose_b = transposed(layout)
        m, n, k = shape.m, shape.n, shape.k
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        torch.manual_seed(0)
        count = buffer_sets(2 * (m * k + k * n + m * n), cache)
        self.sets = [operands(shape, layout, dtype) for _ in range(count)]
        # Sample one random row from each of `count` equal ranges of rows, so that every tile is
        # sampled.
        count = min(m, max(MIN_SAMPLED_ROWS, -(-m // ROWS_PER_SAMPLE)))
        positions = torch.arange(count, device="cuda") + torch.rand(count, device="cuda")
        self.rows = (positions.double() * m / count).long().clamp_(max=m - 1)
        a, b = self.as_multiplied(*self.sets[0][:2])
        a, b = a[self.rows].double(), b.double()
        self.exact = a @ b
        # The standard deviation of each element of D: variances of independent products add up.
        self.magnitude = (a.square() @ b.square_()).sqrt_()

    def as_multiplied(self, a: Any, b: Any) -> tuple[Any, Any]:
        """A (m x k) and B (k x n) as views of `a` and `b`, which may be stored transposed."""
        return as_multiplied(a, b, self.layout)

    def launch(self, run: Any, number: int) -> None:
        """Call `run`, a function that enqueues a contender's kernels, on operand set `number`."""
        a, b, out = self.sets[number]
        run(a, b, out)

    def sum_error(self, *, rounded_partials: bool) -> Any:
        """A bound on the error of each sampled sum of products, before it is rounded to D's type.

        Args:
            rounded_partials: True if k may be split and partial sums be rounded to D's type.
        """
        # Assumed: tensor cores truncate the running sum to 24 bits after every 8 products, and its
        # absolute value never exceeds 4 standard deviations of the result (`magnitude`).
        steps = (self.shape.k / 8 + 16) * 2.0**-23 * 4
        parts = 8 * self.rounding if rounded_partials else 0.0
        return (steps + parts) * self.magnitude + 2.0**-24

    def fault(self, compute: Callable[[], Any], *, rounded_partials: bool = False) -> str | None:
        """Check the product that `compute` writes; returns what is wrong, or None if it is right.

        Args:
            compute: a function that writes D of the first set of operands.
            rounded_partials: True if k may be split and partial sums be rounded to D's type.
        """
        error = self.sum_error(rounded_partials=rounded_partials)
        return self.differs(compute, self.exact, self.rounding * self.exact.abs() + error)

    def differs(self, compute: Callable[[], Any], exact: Any, tolerance: Any) -> str | None:
        """Run `compute` and compare sampled rows of the D that it writes with exact values.

        D is filled with NaN first, so that elements that are not written are found.

        Args:
            compute: a function that writes D of the first set of operands.
            exact: the exact values of the sampled rows in float64.
            tolerance: the largest error allowed for each element of these rows.

        Returns:
            What is wrong, or None if D is right.
        """
        out = self.sets[0][2]
        out.fill_(math.nan)
        # `compute` may use another stream than the kernel that fills D with NaN
        self.torch.cuda.synchronize()
        compute()
        self.torch.cuda.synchronize()
        if missing := int(out.isnan().sum()):
            return f"WRONG: {missing} of {math.prod(out.shape)} elements not written, or NaN"
        error = (out[self.rows].double() - exact).abs()
        if wrong := int((error > tolerance).sum()):
            return f"WRONG: {wrong} of {error.numel()} sampled elements, by up to {error.max():.3g}"
        return None
