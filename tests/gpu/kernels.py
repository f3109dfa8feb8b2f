"""Kernels under test, each compiled once a session, and results held to double precision."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import exp, log
from typing import Any

import codegen
from codegen.nvptx import CudaKernel
from coordgraph import Gemm
from passes import DataParallel, Pass, Pipeline, StreamK, TwoTileStreamK

__all__ = [
    "CORNERS",
    "DATA_PARALLEL",
    "STREAM_K",
    "STREAM_K_LAST",
    "TWO_TILE",
    "WARPGROUPS",
    "Problem",
    "Spec",
    "check",
    "kernel",
    "poisoned",
    "shapes",
]


@dataclass(frozen=True)
class Spec:
    """How a kernel is made."""

    schedule: tuple[Pass, ...] = (DataParallel(),)
    tile: tuple[int, int, int] = (64, 64, 32)
    layout: str = "nn"
    dtype: str = "bf16"
    out_dtype: str = ""
    target: str = "native"

    @property
    def gemm(self) -> Gemm:
        a, b = (side == "t" for side in self.layout)
        return Gemm(self.dtype, self.out_dtype or None, transpose_a=a, transpose_b=b)

    def __str__(self) -> str:
        schedule, tile = ",".join(map(str, self.schedule)), "x".join(map(str, self.tile))
        types = f"{self.dtype}-{self.out_dtype or self.dtype}"
        return f"{schedule} {tile} {self.layout} {types} {self.target}"


DATA_PARALLEL = Spec()
STREAM_K = Spec((StreamK(),))
STREAM_K_LAST = Spec((StreamK(owner="last"),))
TWO_TILE = Spec((TwoTileStreamK(),))
WARPGROUPS = Spec((StreamK(),), (128, 128, 64))
"""A tile that Hopper's copy engine and warpgroups take, where there are any."""


@cache
def kernel(spec: Spec) -> CudaKernel:
    """The kernel, with the watchdog on: what waits for ever traps."""
    graph = Pipeline(spec.schedule)(spec.gemm.graph(spec.tile))
    made = codegen.compile(graph, spec.target, debug=True)
    assert isinstance(made, CudaKernel)
    return made


def _torch() -> Any:
    import torch

    return torch


def torch_type(name: str) -> Any:
    torch = _torch()
    return {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[name]


def poisoned(shape: tuple[int, int], dtype: str) -> Any:
    """An output in which every element that is not written shows."""
    torch = _torch()
    return torch.full(shape, float("nan"), dtype=torch_type(dtype), device="cuda")


@dataclass(frozen=True)
class Problem:
    """One multiplication: operands as a kernel of `spec` wants them, and as they are meant."""

    spec: Spec
    shape: tuple[int, int, int]
    a: Any
    b: Any
    c: Any

    @classmethod
    def make(cls, spec: Spec, shape: tuple[int, int, int], seed: int = 0) -> Problem:
        """Normal numbers on the GPU."""
        torch, (m, n, k) = _torch(), shape
        generator = torch.Generator("cuda").manual_seed(seed + hash(shape) % 100000)

        def normal(rows: int, columns: int, dtype: str) -> Any:
            made = torch.randn(
                rows, columns, generator=generator, device="cuda", dtype=torch.float32
            )
            return made.to(torch_type(dtype))

        out = spec.out_dtype or spec.dtype
        a = normal(k, m, spec.dtype) if spec.layout[0] == "t" else normal(m, k, spec.dtype)
        b = normal(n, k, spec.dtype) if spec.layout[1] == "t" else normal(k, n, spec.dtype)
        return cls(spec, shape, a, b, normal(m, n, out))

    @property
    def out_dtype(self) -> str:
        return self.spec.out_dtype or self.spec.dtype

    def out(self) -> Any:
        return poisoned((self.shape[0], self.shape[1]), self.out_dtype)

    def run(self, **options: Any) -> Any:
        """Launch into a poisoned output."""
        out = self.out()
        kernel(self.spec)(self.a, self.b, out=out, **options)
        return out

    def check(self, found: Any, *, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Every element is as near as rounding allows."""
        a = self.a.T if self.spec.layout[0] == "t" else self.a
        b = self.b.T if self.spec.layout[1] == "t" else self.b
        check(found, a, b, self.c, alpha, beta)


def check(found: Any, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
    """Compare with double precision, element by element.

    Sums of k products in single precision (tensor cores cut off instead of rounding) may be wrong
    by k·2^-22 of the sum of the absolute products; rounding the result adds half a unit.
    """
    torch = _torch()
    exact = alpha * (a.double() @ b.double())
    size = abs(alpha) * (a.abs().double() @ b.abs().double())
    if beta:
        exact += beta * c.double()
        size += abs(beta) * c.abs().double()
    half_unit = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
    allowed = half_unit[found.dtype] * exact.abs() + (a.shape[1] + 4) * 2.0**-22 * size
    if found.dtype == torch.float16:
        allowed += 2.0**-25  # subnormal results
    wrong = ~((found.double() - exact).abs() <= allowed)  # NaN is wrong too
    if wrong.any():
        row, column = (int(x) for x in wrong.nonzero()[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} elements are wrong; the first at "
            f"({row}, {column}): {float(found[row, column])}, not {float(exact[row, column])} "
            f"± {float(allowed[row, column])}"
        )


CORNERS = (
    (1, 1, 1),
    (1, 3000, 7),
    (3000, 1, 33),
    (1, 1, 30000),
    (5, 9, 20000),
    (64, 64, 32),
    (65, 63, 33),
    (129, 257, 1),
)


def shapes(seed: int, count: int, *, aligned: bool) -> Iterator[tuple[int, int, int]]:
    """Extents from 1 to 3000, log-uniform; multiples of 8, or all odd.

    Operands of aligned problems are copied by 16 bytes, those of odd ones element by element.
    """
    chance = random.Random(seed)

    def extent() -> int:
        found = round(exp(chance.uniform(0, log(3000))))
        return -(-found // 8) * 8 if aligned else found | 1

    for corner in CORNERS[seed % 4 :: 4]:
        yield tuple(-(-x // 8) * 8 for x in corner) if aligned else tuple(x | 1 for x in corner)  # type: ignore[misc]
    for _ in range(count):
        yield extent(), extent(), extent()
