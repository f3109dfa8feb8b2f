"""Triton kernel of one product: persistent, TMA loads, tiles visited in bands, no split-k.

Importing this module needs Triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.peers.contender import Unavailable
from benchmarks.problems.problem import Problem

__all__ = ["ALIGNMENT", "Config", "Matmul", "configurations", "processors"]

ALIGNMENT = 8
"""Row lengths must be multiples of this many 2-byte elements: TMA needs multiples of 16 bytes."""


@dataclass(frozen=True)
class Config:
    """A configuration of a Triton kernel.

    Args:
        m, n, k: the extents of a tile, in elements.
        warps: the number of warps of a program (CTA).
        stages: the number of stages of the software pipeline.
        programs: the number of programs per SM.
        halves: True to store a tile in two halves, which needs less shared memory.
    """

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
NARROW = (
    (64, 128, 4, 4, 2),
    (128, 64, 4, 5, 2),
    (128, 128, 4, 4, 1),
    (32, 256, 4, 4, 2),
    (64, 256, 4, 4, 1),
    (32, 128, 4, 5, 4),
)
"""Configurations of the Triton kernel for problems whose m fits in one tile, without the tile's m:
the tile's n and k, warps, stages, programs per SM."""


def configurations(m: int, n: int) -> Iterator[Config]:
    """Configurations of the Triton kernel to time, in a fixed order, without tiles far beyond D."""
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
    TRANSPOSE_A: tl.constexpr,
    TRANSPOSE_B: tl.constexpr,
    HALVES: tl.constexpr,
    GROUP: tl.constexpr,
):
    """D = A · B. Program p computes tiles p, p + programs, …

    Tiles are numbered column by column within groups of GROUP tile rows.
    """
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
            if TRANSPOSE_A:
                a = a_rows.load([at_k, at_m]).T
            else:
                a = a_rows.load([at_m, at_k])
            if TRANSPOSE_B:
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
    """The number of SMs of the GPU."""
    import torch

    return torch.cuda.get_device_properties(0).multi_processor_count


class Matmul:
    """The Triton kernel with one configuration, for the shape and layout of a problem.

    Raises:
        Unavailable: rows of A, B or D are not multiples of 16 bytes; or, at a call, the
            configuration needs more shared memory than the device has.
    """

    def __init__(self, config: Config, problem: Problem) -> None:
        a, b, d = problem.sets[0]
        if any(operand.shape[1] % ALIGNMENT for operand in (a, b, d)):
            raise Unavailable(
                "the Triton kernel loads by TMA, which needs rows of A, B and D of a multiple of "
                f"{ALIGNMENT} elements (16 bytes), but the shape is {problem.shape.size}; choose "
                f"m, n and k that are multiples of {ALIGNMENT}"
            )
        self.config, shape = config, problem.shape
        self.transposes = {"TRANSPOSE_A": problem.transpose_a, "TRANSPOSE_B": problem.transpose_b}
        self.size = (shape.m, shape.n, shape.k)
        tiles = triton.cdiv(shape.m, config.m) * triton.cdiv(shape.n, config.n)
        self.grid = (min(tiles, processors() * config.programs),)

    def __call__(self, a: Any, b: Any, out: Any) -> None:
        c = self.config
        a_box = [c.k, c.m] if self.transposes["TRANSPOSE_A"] else [c.m, c.k]
        b_box = [c.n, c.k] if self.transposes["TRANSPOSE_B"] else [c.k, c.n]
        try:
            product[self.grid](
                TensorDescriptor.from_tensor(a, a_box),
                TensorDescriptor.from_tensor(b, b_box),
                TensorDescriptor.from_tensor(out, [c.m, c.n // 2 if c.halves else c.n]),
                *self.size,
                M=c.m,
                N=c.n,
                K=c.k,
                **self.transposes,
                HALVES=c.halves,
                GROUP=8,
                num_warps=c.warps,
                num_stages=c.stages,
            )
        except triton.runtime.errors.OutOfResources as error:
            raise Unavailable(str(error)) from None
