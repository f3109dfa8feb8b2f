"""A problem on the GPU: its operands in buffers that take turns, and its reference in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from benchmarks.shapes import Shape

__all__ = ["DTYPES", "Problem", "Run", "as_multiplied", "buffer_sets", "operands"]

DTYPES = {"bf16": ("bfloat16", 2.0**-8), "f16": ("float16", 2.0**-11)}
"""PyTorch's names, and the largest relative error of a rounding with some room."""
SAMPLED_ROWS, EVERY_ROWS = 256, 64
MOST_SETS, MOST_BYTES = 512, 16 << 30
POISON = float("nan")


class Run(Protocol):
    """Enqueues D = A · B on PyTorch's current stream; operands lie as they are stored."""

    def __call__(self, a: Any, b: Any, out: Any) -> Any: ...


def buffer_sets(bytes_of_set: int, cache: int) -> int:
    """How many sets of buffers leave nothing in the cache from one turn to the next.

    >>> buffer_sets(100 << 20, 60 << 20), buffer_sets(12 << 20, 60 << 20)
    (2, 16)
    """
    enough = 3 * cache // bytes_of_set + 1
    return max(2, min(enough, MOST_SETS, MOST_BYTES // bytes_of_set))


def operands(shape: Shape, layout: str, dtype: str) -> tuple[Any, Any, Any]:
    """A and B as they are stored, of normal numbers, and D, on the GPU."""
    import torch

    a_turned, b_turned = (side == "t" for side in layout)
    m, n, k, kind = shape.m, shape.n, shape.k, getattr(torch, DTYPES[dtype][0])

    def normal(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, device="cuda", dtype=kind)

    return (
        normal(k, m) if a_turned else normal(m, k),
        normal(n, k) if b_turned else normal(k, n),
        torch.empty(m, n, device="cuda", dtype=kind),
    )


def as_multiplied(a: Any, b: Any, layout: str) -> tuple[Any, Any]:
    """A (m x k) and B (k x n) as views of what is stored in a layout."""
    a_turned, b_turned = (side == "t" for side in layout)
    return (a.T if a_turned else a), (b.T if b_turned else b)


class Problem:
    """One shape in one layout.

    Args:
        layout: for A and B, whether it lies as it is (n) or as its transpose (t).
        dtype: `bf16` or `f16`, of A, B and D.
    """

    def __init__(self, shape: Shape, layout: str, dtype: str) -> None:
        import torch

        self.half = DTYPES[dtype][1]
        self.torch, self.shape, self.layout, self.dtype = torch, shape, layout, dtype
        self.a_turned, self.b_turned = (side == "t" for side in layout)
        m, n, k = shape.m, shape.n, shape.k
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        torch.manual_seed(0)
        count = buffer_sets(2 * (m * k + k * n + m * n), cache)
        self.sets = [operands(shape, layout, dtype) for _ in range(count)]
        # One row out of every few, so that no tile goes unseen.
        count = min(m, max(SAMPLED_ROWS, -(-m // EVERY_ROWS)))
        places = torch.arange(count, device="cuda") + torch.rand(count, device="cuda")
        self.rows = (places.double() * m / count).long().clamp_(max=m - 1)
        a, b = self.as_multiplied(*self.sets[0][:2])
        a, b = a[self.rows].double(), b.double()
        self.exact = a @ b
        # What partial sums are like: the products are independent, so their squares add up.
        self.size = (a.square() @ b.square_()).sqrt_()

    def as_multiplied(self, a: Any, b: Any) -> tuple[Any, Any]:
        """A (m x k) and B (k x n) as views of what is stored."""
        return as_multiplied(a, b, self.layout)

    def launch(self, run: Run, number: int) -> None:
        """Multiply the operands of a buffer set."""
        a, b, out = self.sets[number]
        run(a, b, out)

    def _allowed(self, *, rounded_partials: bool) -> Any:
        # The result is rounded once. Tensor cores truncate a sum of 4 standard deviations every
        # 8 products. Libraries that split k may round the parts' sums to the operands' type.
        steps = (self.shape.k / 8 + 16) * 2.0**-23 * 4
        parts = 8 * self.half if rounded_partials else 0.0
        return self.half * self.exact.abs() + (steps + parts) * self.size + 2.0**-24

    def fault(self, compute: Callable[[], Any], *, rounded_partials: bool = False) -> str | None:
        """What is wrong with what `compute` puts into the first output, or None.

        The output is full of NaN before; sampled rows are compared with float64.
        """
        out = self.sets[0][2]
        out.fill_(POISON)
        self.torch.cuda.synchronize()  # streams may differ
        compute()
        self.torch.cuda.synchronize()
        if missing := int(out.isnan().sum()):
            return f"WRONG: {missing} of {math.prod(out.shape)} elements not written, or NaN"
        error = (out[self.rows].double() - self.exact).abs()
        if wrong := int((error > self._allowed(rounded_partials=rounded_partials)).sum()):
            return f"WRONG: {wrong} of {error.numel()} sampled elements, by up to {error.max():.3g}"
        return None
