"""Kernels, operands and checks that tests of batches and groups on the GPU share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import codegen
from coordgraph import Gemm
from passes import Pipeline
from tests.gpu.kernels import check, torch_type
from tests.support.lists import Sizes, ends_of, pitch

__all__ = ["Products", "kernel", "normal", "on_device", "poisoned"]


@cache
def kernel(schedule: str, tile: tuple[int, int, int], target: str, **gemm: Any) -> Any:
    """A compiled kernel for a schedule, tile and target; compiled once per test session."""
    return codegen.compile(Pipeline.parse(schedule)(Gemm(**gemm).graph(tile)), target)


def normal(*extents: int, dtype: str = "bf16") -> Any:
    """A tensor on the GPU with normally distributed numbers."""
    import torch

    return torch.randn(*extents, device="cuda", dtype=torch.float32).to(torch_type(dtype))


def poisoned(*extents: int, dtype: str = "bf16") -> Any:
    """A tensor on the GPU filled with NaN, so that elements that are not written are found."""
    import torch

    return torch.full(extents, float("nan"), device="cuda", dtype=torch_type(dtype))


def on_device(offsets: list[int]) -> Any:
    """The offsets of groups on the GPU: the first index of each group, and the end of the last."""
    import torch

    return torch.tensor(offsets, device="cuda", dtype=torch.int32)


class Products:
    """A list of products, each with its own m, n and k; A, B, C and D are vectors of matrices.

    Args:
        sizes: m, n and k of each product.
        layout: layouts of A and B, as in `nt`: `n` is row-major, `t` is stored as the transpose.
        fill: value of the padding of rows, which kernels may not read.
        dtype: type of A and B.
        out_dtype: type of C and D; None is `dtype`.
        device: PyTorch's name of the device that holds the tensors.
    """

    def __init__(
        self,
        sizes: Sequence[Sizes],
        layout: str = "nn",
        *,
        fill: float = float("nan"),
        dtype: str = "bf16",
        out_dtype: str | None = None,
        device: str = "cuda",
    ) -> None:
        import torch

        self.sizes, self.layout, self.fill, self.device = sizes, layout, fill, device
        self.types = torch_type(dtype), torch_type(out_dtype or dtype)
        self.offsets = torch.tensor(ends_of(sizes), device=device)
        stored_a = [(k, m) if layout[0] == "t" else (m, k) for m, _, k in sizes]
        stored_b = [(n, k) if layout[1] == "t" else (k, n) for _, n, k in sizes]
        self.a, self.each_a = self._filled(stored_a)
        self.b, self.each_b = self._filled(stored_b)
        self.c, self.each_c = self._vector(out := [(m, n) for m, n, _ in sizes], self.types[1])
        self.d, self.each_d = self._vector(out, self.types[1])
        for matrix in self.each_c:
            matrix.copy_(torch.randn(matrix.shape, device=device))

    def _vector(self, shapes: Sequence[tuple[int, int]], kind: Any) -> tuple[Any, list[Any]]:
        """(a vector filled with `fill` that holds a matrix of each shape, views of the matrices).

        The length of every row is rounded up to a multiple of 8 elements.
        """
        import torch

        steps = [rows * pitch(columns) for rows, columns in shapes]
        vector = torch.full((max(8, sum(steps)),), self.fill, device=self.device, dtype=kind)
        at, each = 0, []
        for (rows, columns), step in zip(shapes, steps, strict=True):
            each.append(vector[at : at + step].view(rows, pitch(columns))[:, :columns])
            at += step
        return vector, each

    def _filled(self, shapes: Sequence[tuple[int, int]]) -> tuple[Any, list[Any]]:
        import torch

        vector, each = self._vector(shapes, self.types[0])
        for matrix in each:
            matrix.copy_(torch.randn(matrix.shape, device=self.device))
        return vector, each

    def run(self, made: Any, **options: Any) -> Any:
        """Fill D with NaN, launch the kernel and return D."""
        c = self.c if options.get("beta") else None
        self.d.fill_(float("nan"))
        made(self.a, self.b, c, out=self.d, offsets=self.offsets, **options)
        return self.d

    def check(self, **scalars: float) -> None:
        """Compare every product's D with float64; D of a product with k = 0 is zeros, or beta·C."""
        everything = zip(self.each_d, self.each_a, self.each_b, self.each_c, strict=True)
        for d, a, b, c in everything:
            if d.numel():
                left = a.T if self.layout[0] == "t" else a
                right = b.T if self.layout[1] == "t" else b
                check(d, left, right, c, **scalars)

    def packed(self) -> Any:
        """The elements of D's matrices without the padding of rows, which may have any value."""
        import torch

        return torch.cat([d.reshape(-1) for d in self.each_d])
