"""Plans by fixed rules, for targets and tensors that the cost model does not cover."""

from __future__ import annotations

from passes.choosing.kernel_shape import UNIT_K
from passes.choosing.plan import Plan

__all__ = ["host_plan", "instructions_plan"]

HOST_TILE, SMALLEST = (256, 256, 64), 16
"""HOST_TILE: the largest tile (m, n, k) on a CPU. SMALLEST: smallest extent of a tile on a CPU."""
GPU_TILES, ROWS = ((128, 128), (64, 64)), 2
"""GPU_TILES: rows and columns of output tiles that are tried, the largest first. ROWS: number of k
tiles in 128 bytes of A or B, so that a tile's extent along k is 64 bytes."""
DEEP = 16
"""Smallest number of k tiles of an output tile for which `instructions_plan` divides it along k."""


def host_plan(m: int, n: int, k: int) -> Plan:
    """The plan for a CPU, with a tile of at most `HOST_TILE`.

    Along each axis, the extent of `HOST_TILE` is halved as long as one tile still covers the
    problem, but not below `SMALLEST`.
    """
    extents = []
    for side, extent in zip(HOST_TILE, (m, n, k), strict=True):
        while side > SMALLEST and side // 2 >= extent:
            side //= 2
        extents.append(side)
    tile_m, tile_n, tile_k = extents
    return Plan((tile_m, tile_n, tile_k))


def instructions_plan(
    m: int, n: int, k: int, processors: int, batches: int = 1, row: int = UNIT_K
) -> Plan:
    """The plan for mma.sync: on GPUs before Hopper, and for operands not aligned as TMA needs.

    The plan has the largest tile of `GPU_TILES` that gives every SM at least one output tile. If no
    tile does, tiles are divided along k by Stream-K if k is large; else the plan has the smallest
    tile.

    Args:
        m, n, k: extents of the problem.
        processors: number of SMs.
        batches: number of products.
        row: number of elements of A and B in 128 bytes.
    """
    depth = row // ROWS
    for rows, columns in GPU_TILES:
        if batches * -(-m // rows) * -(-n // columns) >= processors:
            return Plan((rows, columns, depth))
    if k >= DEEP * depth:
        return Plan((*GPU_TILES[0], depth), pipeline="stream-k{owner=last}")
    return Plan((*GPU_TILES[-1], depth))
