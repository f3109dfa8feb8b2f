"""Simulate the L2 cache: bytes of A and B that a schedule reads from memory. No GPU is needed.

The graph determines which tiles (m, n) and which k tiles each workgroup computes, and their order.
All workgroups advance in step, one iteration (a k tile) each, and request one block of A and one of
B: the operand's tile of this iteration, without the part outside the matrix. A workgroup that has
finished makes no more requests. If there are more workgroups than can run at the same time, the
next one starts when the first of the running ones ends. If a cluster shares a tile, it counts as
one workgroup, since its multicast loads request each block once.

Assumptions: the cache is fully associative, evicts the least recently used block, and begins empty.
D, C, partial sums and flags take no space in it; epilogues and waiting take no time. In a real L2
cache there are sets, and possibly two halves that hold the same line, and workgroups drift apart.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.counting.counts import Tile, scheduled, starts
from coordgraph import VerifyError
from coordgraph.interpreter import Trace, trace
from coordgraph.tensors import dtype as dtype_named

__all__ = ["Requests", "Traffic", "requests", "through_cache"]

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Requests:
    """The sequence of all workgroups' requests to the L2 cache.

    A block is the tile of A or of B that a workgroup needs in one iteration.

    Args:
        blocks: for each request the number of its block; blocks of A come before those of B.
        sizes: by block number, the block's size in bytes.
        first_b: the number of the first block of B.
    """

    blocks: Numbers
    sizes: Numbers
    first_b: int

    @property
    def bytes(self) -> int:
        """The number of bytes that all requests together ask the L2 cache for."""
        return int(self.sizes[self.blocks].sum())

    @property
    def compulsory(self) -> int:
        """The total size in bytes of the requested tiles of A and B, each tile counted once."""
        return int(self.sizes[np.unique(self.blocks)].sum())


@dataclass(frozen=True)
class Traffic:
    """Numbers of bytes of A and B that are requested and read from memory during one product.

    Args:
        asked_bytes: number of bytes requested from the L2 cache.
        read_a, read_b: number of bytes of A and of B read from memory.
        compulsory_bytes: total size of all tiles of A and B, each tile counted once. Each must be
            read from memory at least once, whatever the order of tiles and the cache.
    """

    asked_bytes: int
    read_a: int
    read_b: int
    compulsory_bytes: int

    @property
    def read_bytes(self) -> int:
        """The number of bytes of A and B together that are read from memory."""
        return self.read_a + self.read_b

    def json(self) -> dict[str, int]:
        """All fields and `read_bytes` as a dict, for a JSON record."""
        return {**asdict(self), "read_bytes": self.read_bytes}


def requests(
    pipeline: str, tile: Tile, size: tuple[int, int, int], slots: int, dtype: str = "bf16"
) -> Requests:
    """The requests to the L2 cache by a schedule on one problem.

    Args:
        pipeline: the passes as text: those that order tiles, then the schedule.
        tile: the macro tile, in elements of m, n and k.
        size: m, n and k of the problem.
        slots: how many workgroups run at the same time; also the number of workgroups if that is a
            launch argument.
        dtype: the element type of A and B.

    Raises:
        ParseError: the pipeline is malformed.
        PassError: a pass refuses the problem.
        VerifyError: the schedule has tiles of several shapes.
    """
    graph = scheduled(pipeline, tile, dtype)
    values: dict[str, int] = dict(zip("mnk", size, strict=True))
    if "workgroups" in graph.parameters:
        values["workgroups"] = slots
    found = trace(graph, values)
    counts = tuple(-(-whole // extent) for extent, whole in zip(tile, size, strict=True))
    if found.tiles != counts:
        raise VerifyError(
            f"'{pipeline}' has tiles of several shapes, which the simulation does not support; use "
            "a schedule whose tiles have one shape"
        )
    rows, columns, depths = (
        np.minimum(extent, whole - extent * np.arange(count))
        for extent, whole, count in zip(tile, size, counts, strict=True)
    )
    m, n, k = _iterations(found, slots).T
    depth, first_b = len(depths), len(rows) * len(depths)
    blocks = np.column_stack((m * depth + k, first_b + n * depth + k)).ravel()
    sizes = np.outer(np.concatenate((rows, columns)), depths).ravel()
    return Requests(blocks, sizes * dtype_named(dtype).bytes, first_b)


def _iterations(found: Trace, slots: int) -> Numbers:
    """An array with a row of tile numbers (m, n, k) for each main-loop iteration of a launch.

    Rows are sorted by time step, then by workgroup.
    """
    begins = starts(found.iterations, slots)
    shares: list[tuple[int, ...]] = []
    for segment in found.segments:
        begin = begins[segment.workgroup]
        begins[segment.workgroup] += segment.k_count
        if not segment.padding:  # k tiles outside the tensors take time, but request no block
            shares.append(
                (begin, segment.workgroup, *segment.tile, segment.k_first, segment.k_count)
            )
    table = np.array(shares, np.int64)
    counts = table[:, -1]
    each = np.repeat(table, counts, axis=0)
    within = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)
    step, workgroup = each[:, 0] + within, each[:, 1]
    each[:, 4] += within
    return each[np.lexsort((workgroup, step)), 2:5]


def through_cache(asked: Requests, cache_bytes: float) -> Traffic:
    """Simulate requests to an LRU cache of `cache_bytes` bytes, which starts empty.

    >>> twice = Requests(np.array([0, 1, 0, 1]), np.array([4, 4]), 1)
    >>> through_cache(twice, 8).read_bytes, through_cache(twice, 7).read_bytes
    (8, 16)
    """
    held: OrderedDict[int, int] = OrderedDict()
    sizes, touch, evict = asked.sizes.tolist(), held.move_to_end, held.popitem
    free, of_a, of_b, first_b = cache_bytes, 0, 0, asked.first_b
    for block in asked.blocks.tolist():
        if block in held:
            touch(block)
            continue
        size = held[block] = sizes[block]
        if block < first_b:
            of_a += size
        else:
            of_b += size
        free -= size
        while free < 0:
            free += evict(last=False)[1]
    return Traffic(asked.bytes, of_a, of_b, asked.compulsory)
