"""Triton kernel for a list of products that share no extent: persistent, with TMA loads.

Like coordgraph's kernels it reads all extents from device memory, and writes the TMA descriptors of
a product's matrices when it reaches the product. Importing this module needs Triton.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.peers.contender import Unavailable
from benchmarks.peers.triton_groups import configurations
from benchmarks.peers.triton_matmul import Config, processors
from coordgraph.gemm import ROW_STEP

__all__ = ["Product", "configurations"]


@triton.jit(do_not_specialize=["groups"])
def product_of_list(
    a_list,
    b_list,
    d_list,
    offsets,
    groups,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    STEP: tl.constexpr,
):
    """D = A · Bᵀ for all products: program p computes tiles p, p + programs, … of all products.

    The matrices of all products are consecutive in memory; rows start at multiples of STEP
    elements.
    """
    tile = tl.program_id(0)
    before = 0
    a_first = tl.cast(0, tl.int64)
    b_first = tl.cast(0, tl.int64)
    d_first = tl.cast(0, tl.int64)
    for group in range(groups):
        at = offsets + group
        m = tl.load(at + 1) - tl.load(at)
        n = tl.load(at + groups + 2) - tl.load(at + groups + 1)
        k = tl.load(at + 2 * groups + 3) - tl.load(at + 2 * groups + 2)
        k_pitch = tl.cdiv(k, STEP) * STEP
        n_pitch = tl.cdiv(n, STEP) * STEP
        tiles_n = tl.cdiv(n, N)
        after = before + tl.cdiv(m, M) * tiles_n
        if tile < after:
            a_rows = tl.make_tensor_descriptor(a_list + a_first, [m, k], [k_pitch, 1], [M, K])
            b_rows = tl.make_tensor_descriptor(b_list + b_first, [n, k], [k_pitch, 1], [N, K])
            d_rows = tl.make_tensor_descriptor(d_list + d_first, [m, n], [n_pitch, 1], [M, N])
            while tile < after:
                at_m = (tile - before) // tiles_n * M
                at_n = (tile - before) % tiles_n * N
                total = tl.zeros((M, N), dtype=tl.float32)
                for step in range(tl.cdiv(k, K)):
                    a = a_rows.load([at_m, step * K])
                    b = b_rows.load([at_n, step * K])
                    total = tl.dot(a, b.T, total)
                d_rows.store([at_m, at_n], tl.cast(total, d_list.dtype.element_ty))
                tile += tl.num_programs(0)
        before = after
        a_first += tl.cast(m, tl.int64) * k_pitch
        b_first += tl.cast(n, tl.int64) * k_pitch
        d_first += tl.cast(m, tl.int64) * n_pitch


def _descriptor_memory(size: int, alignment: int, stream: int | None) -> Any:
    """The allocator that Triton calls to get device memory for the kernel's TMA descriptors."""
    return torch.empty(size, device="cuda", dtype=torch.int8)


class Product:
    """The Triton kernel with one configuration.

    A call takes three vectors, which hold the matrices A (m x k), B (n x k) and D of all products.

    Raises:
        Unavailable: at a call, if the configuration needs more shared memory than the device has.
    """

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, a: Any, b: Any, out: Any, offsets: Any) -> None:
        c, groups = self.config, offsets.shape[1] - 1
        triton.set_allocator(_descriptor_memory)
        try:
            product_of_list[(processors() * c.programs,)](
                a,
                b,
                out,
                offsets,
                groups,
                M=c.m,
                N=c.n,
                K=c.k,
                STEP=ROW_STEP,
                num_warps=c.warps,
                num_stages=c.stages,
            )
        except triton.runtime.errors.OutOfResources as error:
            raise Unavailable(str(error)) from None
