"""Triton kernel of a batch-invariant product: one tile configuration for all sizes, no split-k.

The kernel follows the description of batch-invariant matrix products in He et al., Defeating
Nondeterminism in LLM Inference (Thinking Machines Lab, 2025): "compile one kernel configuration and
use that for all shapes", with whole sums along k. Elements are loaded through masked pointers.
Importing this module needs Triton.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from benchmarks.peers.contender import Unavailable
from benchmarks.peers.triton_matmul import processors
from benchmarks.problems.problem import Problem, Run

__all__ = ["InvariantTriton"]

TILE, GROUP, WARPS, STAGES = (128, 128, 64), 8, 8, 3
"""The only configuration of the batch-invariant Triton kernel: extents of a tile along m, n and k;
rows of tiles that are visited together; warps of a program; stages of the software pipeline."""


@triton.jit(do_not_specialize=["m"])
def invariant_product(
    a,
    b,
    d,
    m,
    n,
    k,
    a_m,
    a_k,
    b_k,
    b_n,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """D = A · B, D row-major. Program p computes tiles p, p + programs, …

    Tiles are numbered column by column within groups of GROUP tile rows.
    """
    tiles_m = tl.cdiv(m, M)
    tiles_n = tl.cdiv(n, N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        in_group = GROUP * tiles_n
        first = tile // in_group * GROUP
        rows = min(tiles_m - first, GROUP)
        at_m = (first + tile % in_group % rows) * M + tl.arange(0, M)
        at_n = (tile % in_group // rows) * N + tl.arange(0, N)
        # Rows and columns outside the matrices are read from row 0 and column 0, and not stored.
        of_a = tl.max_contiguous(tl.multiple_of(tl.where(at_m < m, at_m, 0), M), M)
        of_b = tl.max_contiguous(tl.multiple_of(tl.where(at_n < n, at_n, 0), N), N)
        row = tl.cast(of_a, tl.int64)[:, None] * a_m
        column = tl.cast(of_b, tl.int64)[None, :] * b_n
        total = tl.zeros((M, N), dtype=tl.float32)
        for step in range(tl.cdiv(k, K)):
            at_k = step * K + tl.arange(0, K)
            left = tl.load(a + (row + at_k[None, :] * a_k), mask=at_k[None, :] < k, other=0.0)
            right = tl.load(
                b + (tl.cast(at_k, tl.int64)[:, None] * b_k + column),
                mask=at_k[:, None] < k,
                other=0.0,
            )
            total = tl.dot(left, right, total)
        tl.store(
            d + (tl.cast(at_m, tl.int64)[:, None] * n + at_n[None, :]),
            tl.cast(total, d.dtype.element_ty),
            mask=(at_m[:, None] < m) & (at_n[None, :] < n),
        )


class InvariantTriton:
    """Contender: the batch-invariant Triton kernel.

    Args:
        persistent: whether programs loop over tiles, one program for each SM; else there is one
            program for each tile.
        tile: extents of a tile along m, n and k.
    """

    ours = False

    def __init__(self, *, persistent: bool, tile: tuple[int, int, int] = TILE) -> None:
        self.persistent, self.tile = persistent, tile
        self.name = f"Triton invariant{', persistent' if persistent else ''}"
        self.details: dict[str, Any] = {"tile": "x".join(map(str, tile))}

    def prepare(self, problem: Problem) -> Run:
        """A function that launches the kernel on the stored operands."""
        shape = problem.shape
        tiles = triton.cdiv(shape.m, self.tile[0]) * triton.cdiv(shape.n, self.tile[1])
        grid = (min(tiles, processors()) if self.persistent else tiles,)

        def run(a: Any, b: Any, out: Any) -> None:
            left, right = problem.as_multiplied(a, b)
            strides = (*left.stride(), *right.stride())
            sizes = (shape.m, shape.n, shape.k)
            extents = dict(zip("MNK", self.tile, strict=True))
            try:
                invariant_product[grid](
                    *(left, right, out, *sizes, *strides),
                    **extents,
                    GROUP=GROUP,
                    num_warps=WARPS,
                    num_stages=STAGES,
                )
            except triton.runtime.errors.OutOfResources as error:
                raise Unavailable(str(error)) from None

        return run
