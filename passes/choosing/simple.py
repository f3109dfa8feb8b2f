"""Plans by a simple rule, for targets and tensors that no model knows."""

from __future__ import annotations

from passes.choosing.plan import Plan

__all__ = ["host_plan", "instructions_plan"]

HOST_TILE, SMALLEST = (256, 256, 64), 16
GPU_TILES = ((128, 128, 32), (64, 64, 32))
DEEP = 16
"""Iterations of a tile that are worth being divided."""


def host_plan(m: int, n: int, k: int) -> Plan:
    """For processor cores: a tile that fits the caches, halved until the problem fills it."""
    extents = []
    for side, extent in zip(HOST_TILE, (m, n, k), strict=True):
        while side > SMALLEST and side // 2 >= extent:
            side //= 2
        extents.append(side)
    tile_m, tile_n, tile_k = extents
    return Plan((tile_m, tile_n, tile_k))


def instructions_plan(m: int, n: int, k: int, processors: int, batches: int = 1) -> Plan:
    """For the instructions of sm_80: GPUs before Hopper, and rows of odd length.

    The largest tile of which there is one for every processor; where there are too few of any,
    they are divided in k.
    """
    for tile in GPU_TILES:
        if batches * -(-m // tile[0]) * -(-n // tile[1]) >= processors:
            return Plan(tile)
    if k >= DEEP * GPU_TILES[0][2]:
        return Plan(GPU_TILES[0], pipeline="stream-k{owner=last}")
    return Plan(GPU_TILES[-1])
