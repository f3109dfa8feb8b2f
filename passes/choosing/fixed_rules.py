"""Plans by a fixed rule, for targets and tensors without a cost model."""

from __future__ import annotations

from passes.choosing.kernel_shape import UNIT_K
from passes.choosing.plan import Plan

__all__ = ["host_plan", "instructions_plan"]

HOST_TILE, SMALLEST = (256, 256, 64), 16
GPU_TILES, ROWS = ((128, 128), (64, 64)), 2
"""GPU_TILES: rows and columns of output tiles. ROWS: k tiles in a row of 128 bytes."""
DEEP = 16
"""Smallest number of iterations of a tile that is split along k."""


def host_plan(m: int, n: int, k: int) -> Plan:
    """The plan for the CPU: a tile that fits the caches, halved until the problem fills it."""
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
    """The plan for mma.sync: on GPUs before Hopper, and for operands without TMA's alignment.

    It has the largest tile of which there is at least one for every SM. If there is none, tiles are
    split along k if they have enough iterations; else the tile is the smallest.

    Args:
        m, n, k: extents of the problem.
        processors: number of SMs.
        batches: number of products.
        row: elements of A and B in 128 bytes.
    """
    depth = row // ROWS
    for rows, columns in GPU_TILES:
        if batches * -(-m // rows) * -(-n // columns) >= processors:
            return Plan((rows, columns, depth))
    if k >= DEEP * depth:
        return Plan((*GPU_TILES[0], depth), pipeline="stream-k{owner=last}")
    return Plan((*GPU_TILES[-1], depth))
