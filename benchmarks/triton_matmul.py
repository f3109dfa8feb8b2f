"""A persistent matrix product in Triton: loads by TMA, tiles in grouped order, k never split.

Imported only where Triton is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.contenders import Unavailable
from benchmarks.problem import Problem

__all__ = ["ALIGNMENT", "Config", "Matmul", "configurations", "processors"]

ALIGNMENT = 8
"""Elements of 2 bytes in the 16 bytes that rows must be multiples of."""


@dataclass(frozen=True)
class Config:
    """Tile (m, n, k), warps, stages of the pipeline, programs on an SM, halves in the epilogue."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    programs: int = 1
    halves: bool = False

    def __str__(self) -> str:
        halves = " halves" if self.halves else ""
        return f"{self.m}x{self.n}x{self.k} w{self.warps} s{self.stages} p{self.programs}{halves}"


LARGE = (
    Config(128, 256, 64, 8, 3),
    Config(128, 256, 64, 8, 4, halves=True),
    Config(256, 128, 64, 8, 3),
    Config(256, 128, 64, 8, 4, halves=True),
    Config(128, 128, 64, 4, 4),
    Config(128, 128, 64, 8, 4),
    Config(128, 128, 128, 8, 3),
    Config(128, 64, 64, 4, 4, 2),
    Config(64, 128, 64, 4, 4, 2),
    Config(64, 64, 128, 4, 3, 2),
)
# For few rows: (n, k, warps, stages, programs).
NARROW = (
    (64, 128, 4, 4, 2),
    (128, 64, 4, 5, 2),
    (128, 128, 4, 4, 1),
    (32, 256, 4, 4, 2),
    (64, 256, 4, 4, 1),
    (32, 128, 4, 5, 4),
)


def configurations(m: int, n: int) -> Iterator[Config]:
    """What to try, the likeliest first; tiles at most as wide as the output needs."""
    if m <= 64:
        rows = max(16, triton.next_power_of_2(m))
        yield from (Config(rows, *narrow) for narrow in NARROW)
        return
    most = (triton.next_power_of_2(m), triton.next_power_of_2(n))
    yield from (c for c in LARGE if c.m <= most[0] and c.n <= most[1])


@triton.jit(do_not_specialize=["m", "n", "k"])
def product(
    a_rows,
    b_rows,
    d_rows,
    m,
    n,
    k,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    A_TURNED: tl.constexpr,
    B_TURNED: tl.constexpr,
    HALVES: tl.constexpr,
    GROUP: tl.constexpr,
):
    """D = A · B; every program takes every so-manyth output tile, in groups of GROUP tile rows."""
    tiles_m = tl.cdiv(m, M)
    tiles_n = tl.cdiv(n, N)
    steps = tl.cdiv(k, K)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        in_group = GROUP * tiles_n
        first = tile // in_group * GROUP
        rows = min(tiles_m - first, GROUP)
        at_m = (first + tile % in_group % rows) * M
        at_n = (tile % in_group // rows) * N
        total = tl.zeros((M, N), dtype=tl.float32)
        for step in range(steps):
            at_k = step * K
            if A_TURNED:
                a = a_rows.load([at_k, at_m]).T
            else:
                a = a_rows.load([at_m, at_k])
            if B_TURNED:
                b = b_rows.load([at_n, at_k]).T
            else:
                b = b_rows.load([at_k, at_n])
            total = tl.dot(a, b, total)
        if HALVES:
            pair = tl.permute(tl.reshape(total, (M, 2, N // 2)), (0, 2, 1))
            left, right = tl.split(pair)
            d_rows.store([at_m, at_n], left.to(d_rows.dtype))
            d_rows.store([at_m, at_n + N // 2], right.to(d_rows.dtype))
        else:
            d_rows.store([at_m, at_n], total.to(d_rows.dtype))


@cache
def processors() -> int:
    """Of the device."""
    import torch

    return torch.cuda.get_device_properties(0).multi_processor_count


class Matmul:
    """The kernel with a configuration, for a problem's shape and layout.

    Raises:
        Unavailable: rows are not multiples of 16 bytes, or (when called) the configuration needs
            more than the device has.
    """

    def __init__(self, config: Config, problem: Problem) -> None:
        a, b, d = problem.sets[0]
        if any(operand.shape[1] % ALIGNMENT for operand in (a, b, d)):
            raise Unavailable("the Triton kernel loads rows of multiples of 16 bytes only")
        self.config, shape = config, problem.shape
        self.turned = {"A_TURNED": problem.a_turned, "B_TURNED": problem.b_turned}
        self.size = (shape.m, shape.n, shape.k)
        tiles = triton.cdiv(shape.m, config.m) * triton.cdiv(shape.n, config.n)
        self.grid = (min(tiles, processors() * config.programs),)

    def __call__(self, a: Any, b: Any, out: Any) -> None:
        c = self.config
        a_box = [c.k, c.m] if self.turned["A_TURNED"] else [c.m, c.k]
        b_box = [c.n, c.k] if self.turned["B_TURNED"] else [c.k, c.n]
        try:
            product[self.grid](
                TensorDescriptor.from_tensor(a, a_box),
                TensorDescriptor.from_tensor(b, b_box),
                TensorDescriptor.from_tensor(out, [c.m, c.n // 2 if c.halves else c.n]),
                *self.size,
                M=c.m,
                N=c.n,
                K=c.k,
                **self.turned,
                HALVES=c.halves,
                GROUP=8,
                num_warps=c.warps,
                num_stages=c.stages,
            )
        except triton.runtime.errors.OutOfResources as error:
            raise Unavailable(str(error)) from None
