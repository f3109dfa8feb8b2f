"""Kernels under test, each compiled once per session, and comparison with float64."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import exp, log
from typing import Any

import numpy as np

import codegen
from codegen.targets.nvptx import CudaKernel
from codegen.targets.nvptx.driver import cuda
from codegen.targets.nvptx.launch import capture_pool
from coordgraph import Gemm, KernelGraph
from passes import DataParallel, Pass, Pipeline, StreamK, TwoTileStreamK
from passes.lowering import LowerToHopper

__all__ = [
    "CORNERS",
    "DATA_PARALLEL",
    "STREAM_K",
    "STREAM_K_LAST",
    "TWO_TILE",
    "WARPGROUPS",
    "Problem",
    "Spec",
    "buffers",
    "check",
    "compare",
    "flags_are_down",
    "kernel",
    "poison_partials",
    "poisoned",
    "shapes",
]

NAN = 0x7FC00000


@dataclass(frozen=True)
class Spec:
    """The arguments that determine a kernel.

    Args:
        schedule: passes that are applied to the graph.
        tile: macro tile (m, n, k).
        layout: layouts of A and B, as in `nt`: `n` is row-major, `t` is stored as the transpose.
        dtype: type of A and B.
        out_dtype: type of C and D; empty if it is `dtype`.
        target: name of the target.
        cluster: workgroups of a cluster along m, n and k on sm_90a; None uses the target's default
            lowering.
        consumers: how warpgroups share tiles, if `cluster` is given: `cooperative` or `pingpong`.
        watchdog: whether a workgroup that waits for too long traps. The watchdog's counter needs
            registers, so the largest tiles spill.
    """

    schedule: tuple[Pass, ...] = (DataParallel(),)
    tile: tuple[int, int, int] = (64, 64, 32)
    layout: str = "nn"
    dtype: str = "bf16"
    out_dtype: str = ""
    target: str = "native"
    cluster: tuple[int, int, int] | None = None
    watchdog: bool = True
    consumers: str = "cooperative"

    @property
    def gemm(self) -> Gemm:
        a, b = (side == "t" for side in self.layout)
        return Gemm(self.dtype, self.out_dtype or None, transpose_a=a, transpose_b=b)

    @property
    def graph(self) -> KernelGraph:
        """The scheduled graph of the kernel that this spec describes."""
        return _scheduled(self.schedule, self.gemm, self.tile)

    @property
    def lowering(self) -> LowerToHopper | None:
        if self.cluster is None:
            return None
        m, n, k = self.cluster
        return LowerToHopper(cluster_m=m, cluster_n=n, cluster_k=k, consumers=self.consumers)

    def __str__(self) -> str:
        schedule, tile = ",".join(map(str, self.schedule)), "x".join(map(str, self.tile))
        types = f"{self.dtype}-{self.out_dtype or self.dtype}"
        cluster = "" if self.cluster is None else " cluster " + "x".join(map(str, self.cluster))
        consumers = "" if self.consumers == "cooperative" else f" {self.consumers}"
        return f"{schedule} {tile} {self.layout} {types} {self.target}{cluster}{consumers}"


@cache
def _scheduled(schedule: tuple[Pass, ...], gemm: Gemm, tile: tuple[int, int, int]) -> KernelGraph:
    return Pipeline(schedule)(gemm.graph(tile))


DATA_PARALLEL = Spec()
STREAM_K = Spec((StreamK(),))
STREAM_K_LAST = Spec((StreamK(owner="last"),))
TWO_TILE = Spec((TwoTileStreamK(),))
WARPGROUPS = Spec((StreamK(),), (128, 128, 64))
"""Arguments of a kernel whose tile is lowered to TMA and wgmma if the GPU has them."""


@cache
def kernel(spec: Spec) -> CudaKernel:
    """The kernel of a spec, compiled once per session."""
    made = codegen.compile(spec.graph, spec.target, debug=spec.watchdog, lowering=spec.lowering)
    assert isinstance(made, CudaKernel)
    return made


def buffers(made: CudaKernel, name: str) -> list[Any]:
    """The device buffers of a kernel's workspace tensor `name`: `partials` or `flags`."""
    found = []
    for workspaces in made._workspaces.values():
        found += [b for (_, label), b in workspaces._buffers.items() if label == name]
    return found


def poison_partials(made: CudaKernel, stream: Any = None) -> None:
    """Fill the partial sums in a kernel's workspaces with NaN, on the current stream.

    With `stream`, only the workspace of that stream is filled, on that stream. Workspaces that must
    be zero before a launch are left alone.
    """
    if any(t.name == "partials" and t.role.zeroed for t in made.graph.tensors):
        return
    at = (stream or _torch().cuda.current_stream()).cuda_stream
    for workspaces in made._workspaces.values():
        for (owner, name), buffer in workspaces._buffers.items():
            if name == "partials" and (stream is None or owner == at):
                cuda("cuMemsetD32Async", buffer.pointer, NAN, buffer.size // 4, at)


def flags_are_down(made: CudaKernel) -> bool:
    """True if the flags and atomic sums in all workspaces are zero, after all launches have
    ended, also those of graphs that were captured.
    """
    _torch().cuda.synchronize()
    zeroed = [t.name for t in made.graph.tensors if t.role.zeroed]
    every = [buffer for name in zeroed for buffer in buffers(made, name)]
    pools = (pool.buffers for pool in capture_pool._pools.values())
    for buffer in (*every, *(buffer for pool in pools for zero, buffer in pool if zero)):
        host = np.ones(buffer.size // 4, np.uint32)
        cuda("cuMemcpyDtoH", host.ctypes.data, buffer.pointer, host.nbytes)
        if host.any():
            return False
    return True


def _torch() -> Any:
    import torch

    return torch


def torch_type(name: str) -> Any:
    torch = _torch()
    return {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[name]


def poisoned(shape: tuple[int, int], dtype: str) -> Any:
    """A tensor filled with NaN, so that elements that are not written are found."""
    torch = _torch()
    return torch.full(shape, float("nan"), dtype=torch_type(dtype), device="cuda")


@dataclass(frozen=True)
class Problem:
    """A matrix product with the operands stored as the kernel of `spec` needs them."""

    spec: Spec
    shape: tuple[int, int, int]
    a: Any
    b: Any
    c: Any

    @classmethod
    def make(cls, spec: Spec, shape: tuple[int, int, int], seed: int = 0) -> Problem:
        """A problem with normally distributed operands on the GPU."""
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
        """Launch the kernel on a D that is filled with NaN, and return D."""
        out = self.out()
        kernel(self.spec)(self.a, self.b, out=out, **options)
        return out

    @property
    def operands(self) -> tuple[Any, Any, Any]:
        """(A as an m x k view, B as a k x n view, C)."""
        a = self.a.T if self.spec.layout[0] == "t" else self.a
        b = self.b.T if self.spec.layout[1] == "t" else self.b
        return a, b, self.c

    def check(self, found: Any, *, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compare every element with float64, within rounding errors."""
        check(found, *self.operands, alpha, beta)


def compare(
    found: Any, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0
) -> tuple[Any, Any, Any]:
    """(which elements are wrong, the exact result, the allowed error), without synchronization.

    A sum of k products in f32 (tensor cores truncate instead of rounding) may be wrong by k·2^-22
    of the sum of the absolute products. Rounding the result adds half a unit in the last place.
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
        # Subnormal f16 numbers are 2^-24 apart, so rounding to f16 may add half of that.
        allowed += 2.0**-25
    # `~(x <= y)` is true if x is NaN, so NaN counts as wrong; `x > y` would be false.
    return ~((found.double() - exact).abs() <= allowed), exact, allowed


def check(found: Any, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
    """Fail unless every element is within rounding errors of the float64 result."""
    wrong, exact, allowed = compare(found, a, b, c, alpha, beta)
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
    """Random (m, n, k), each from 1 to 3000, log-uniform: all multiples of 8, or all odd.

    Aligned operands are copied 16 bytes at a time, those with odd extents one element at a time.
    """
    chance = random.Random(seed)

    def extent() -> int:
        found = round(exp(chance.uniform(0, log(3000))))
        return -(-found // 8) * 8 if aligned else found | 1

    for corner in CORNERS[seed % 4 :: 4]:
        yield tuple(-(-x // 8) * 8 for x in corner) if aligned else tuple(x | 1 for x in corner)  # type: ignore[misc]
    for _ in range(count):
        yield extent(), extent(), extent()
