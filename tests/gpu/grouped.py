"""What tests of batches and groups share: kernels, operands, and where groups begin."""

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
    """A kernel, compiled once a session."""
    return codegen.compile(Pipeline.parse(schedule)(Gemm(**gemm).graph(tile)), target)


def normal(*extents: int, dtype: str = "bf16") -> Any:
    """Normal numbers on the GPU."""
    import torch

    return torch.randn(*extents, device="cuda", dtype=torch.float32).to(torch_type(dtype))


def poisoned(*extents: int, dtype: str = "bf16") -> Any:
    """An output that nothing was written to."""
    import torch

    return torch.full(extents, float("nan"), device="cuda", dtype=torch_type(dtype))


def on_device(offsets: list[int]) -> Any:
    """Where groups begin, and the last one ends."""
    import torch

    return torch.tensor(offsets, device="cuda", dtype=torch.int32)


class Products:
    """A list of products that share no extent, in vectors of matrices.

    Args:
        sizes: m, n and k of each.
        layout: how A and B are stored.
        fill: what rows are filled up with; it is not read.
        dtype: of A and B.
        out_dtype: of C and D.
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
        """Matrices one after another, each row in so many elements as a multiple of 8 needs."""
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
        """D, in which every element that is not written shows."""
        c = self.c if options.get("beta") else None
        self.d.fill_(float("nan"))
        made(self.a, self.b, c, out=self.d, offsets=self.offsets, **options)
        return self.d

    def check(self, **scalars: float) -> None:
        """Every product in D is right; one without k is zeros, or C."""
        everything = zip(self.each_d, self.each_a, self.each_b, self.each_c, strict=True)
        for d, a, b, c in everything:
            if d.numel():
                left = a.T if self.layout[0] == "t" else a
                right = b.T if self.layout[1] == "t" else b
                check(d, left, right, c, **scalars)

    def packed(self) -> Any:
        """The elements of D's matrices alone: what fills rows up may be anything."""
        import torch

        return torch.cat([d.reshape(-1) for d in self.each_d])
