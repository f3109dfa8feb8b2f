"""Triton kernel for groups that divide the rows of A and D: persistent, with TMA loads.

Like coordgraph's kernels it reads the groups' offsets from device memory, so one compiled kernel
serves groups of any sizes. Importing this module needs Triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.peers.contender import Unavailable
from benchmarks.peers.triton_matmul import ALIGNMENT, Config, processors

__all__ = ["Product", "configurations"]

BAND = 8
"""Height of a band in tiles: a band's tiles are visited column by column, to share B in L2."""
CONFIGURATIONS = (
    Config(128, 256, 64, 8, 3),
    Config(128, 128, 64, 4, 4),
    Config(128, 128, 64, 8, 4),
    Config(128, 128, 128, 8, 3),
    Config(64, 256, 64, 4, 4),
    Config(64, 128, 64, 4, 4, 2),
    Config(64, 128, 128, 4, 4),
)


def configurations() -> Iterator[Config]:
    """The configurations to time, which differ in tile height: the best depends on group sizes."""
    yield from CONFIGURATIONS


@triton.jit(do_not_specialize=["groups"])
def product_of_groups(
    a_rows,
    b_rows,
    d,
    offsets,
    groups,
    n,
    k,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BAND: tl.constexpr,
):
    """D_g = A_g · B_gᵀ for all groups: program p computes tiles p, p + programs, … of all groups.

    Group g has rows `offsets[g]` to `offsets[g + 1]` of A and D, and rows g·n to (g + 1)·n of B.
    A tile may read past the end of its group and of its B; those elements of D are masked out.
    """
    tiles_n = tl.cdiv(n, N)
    steps = tl.cdiv(k, K)
    in_band = BAND * tiles_n
    tile = tl.program_id(0)
    before = 0
    for group in range(groups):
        begin = tl.load(offsets + group)
        end = tl.load(offsets + group + 1)
        tiles_m = tl.cdiv(end - begin, M)
        after = before + tiles_m * tiles_n
        while tile < after:
            place = tile - before
            first = place // in_band * BAND
            rows = min(tiles_m - first, BAND)
            at_m = begin + (first + place % in_band % rows) * M
            at_n = place % in_band // rows * N
            total = tl.zeros((M, N), dtype=tl.float32)
            for step in range(steps):
                a = a_rows.load([at_m, step * K])
                b = b_rows.load([group * n + at_n, step * K])
                total = tl.dot(a, b.T, total)
            row = at_m + tl.arange(0, M)
            column = at_n + tl.arange(0, N)
            inside = (row < end)[:, None] & (column < n)[None, :]
            at = tl.cast(row, tl.int64)[:, None] * n + column[None, :]
            tl.store(d + at, tl.cast(total, d.dtype.element_ty), mask=inside)
            tile += tl.num_programs(0)
        before = after


class Product:
    """The Triton kernel with one configuration; A is m x k, B is groups x n x k, D is m x n.

    Raises:
        Unavailable: at a call, if rows of A and B are not multiples of 16 bytes, or the
            configuration needs more shared memory than the device has.
    """

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, a: Any, b: Any, out: Any, offsets: Any) -> None:
        c, (groups, n, k) = self.config, b.shape
        if k % ALIGNMENT:
            raise Unavailable(
                f"the Triton kernel loads by TMA, which needs k to be a multiple of {ALIGNMENT} "
                f"elements (16 bytes), but k = {k}; choose another k"
            )
        try:
            product_of_groups[(processors() * c.programs,)](
                TensorDescriptor.from_tensor(a, [c.m, c.k]),
                TensorDescriptor.from_tensor(b.reshape(groups * n, k), [c.n, c.k]),
                out,
                offsets,
                groups,
                n,
                k,
                M=c.m,
                N=c.n,
                K=c.k,
                BAND=BAND,
                num_warps=c.warps,
                num_stages=c.stages,
            )
        except triton.runtime.errors.OutOfResources as error:
            raise Unavailable(str(error)) from None
