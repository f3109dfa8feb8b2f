"""What of A and B reaches memory, by walking a schedule through a simulated L2 cache; no GPU.

The graph says which tile (m, n) and which k tiles each workgroup has, in which order. All
workgroups advance in step, one iteration (a k tile) each, and ask for one block of A and one of B:
an operand's tile of one iteration, less what lies outside. Who has done its share stands still;
where there are more workgroups than slots, who is free first takes the next one. Where a cluster
divides a tile, it is the workgroup here: its multicast loads ask for each block once.

Assumed: the cache is fully associative, evicts what was not asked for longest, and begins empty. D,
C, partial sums and their flags take no room in it, epilogues and waiting no time. A real cache has
sets, perhaps two halves that hold the same line, and workgroups that drift apart.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.counts import Tile, scheduled, starts
from coordgraph import VerifyError
from coordgraph.interpreter import Trace, trace
from coordgraph.tensors import dtype as dtype_named

__all__ = ["Requests", "Traffic", "requests", "through_cache"]

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Requests:
    """What all workgroups ask for, in order.

    Args:
        blocks: their numbers, those of A before those of B.
        sizes: bytes of each block, by its number.
        first_b: the number of B's first block.
    """

    blocks: Numbers
    sizes: Numbers
    first_b: int

    @property
    def bytes(self) -> int:
        """Of all requests."""
        return int(self.sizes[self.blocks].sum())

    @property
    def compulsory(self) -> int:
        """Bytes of every block that is asked for, once."""
        return int(self.sizes[np.unique(self.blocks)].sum())


@dataclass(frozen=True)
class Traffic:
    """Bytes of a product.

    Args:
        asked_bytes: what is asked of the cache.
        read_a, read_b: what of that comes from memory.
        compulsory_bytes: what no order and no cache avoids: all that is asked for, once.
    """

    asked_bytes: int
    read_a: int
    read_b: int
    compulsory_bytes: int

    @property
    def read_bytes(self) -> int:
        return self.read_a + self.read_b

    def json(self) -> dict[str, int]:
        return {**asdict(self), "read_bytes": self.read_bytes}


def requests(
    pipeline: str, tile: Tile, size: tuple[int, int, int], slots: int, dtype: str = "bf16"
) -> Requests:
    """What a schedule asks for on a problem of size m, n, k.

    Args:
        pipeline: its passes, with the order of tiles before the schedule.
        slots: workgroups of the schedule at the same time; the grid where it can be chosen.

    Raises:
        PassError, ParseError: there is no such schedule.
        VerifyError: it has tiles of several shapes.
    """
    graph = scheduled(pipeline, tile, dtype)
    values: dict[str, int] = dict(zip("mnk", size, strict=True))
    if "workgroups" in graph.parameters:
        values["workgroups"] = slots
    found = trace(graph, values)
    counts = tuple(-(-whole // extent) for extent, whole in zip(tile, size, strict=True))
    if found.tiles != counts:
        raise VerifyError(f"'{pipeline}' has tiles of several shapes; the walk knows one")
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
    """Tiles m, n and k of every iteration, a row each; of a step one workgroup after another."""
    begins = starts(found.iterations, slots)
    shares: list[tuple[int, ...]] = []
    for segment in found.segments:
        begin = begins[segment.workgroup]
        begins[segment.workgroup] += segment.k_count
        if not segment.padding:  # padding takes a step, but nothing is asked for
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
    """What comes from memory through a cache of so many bytes that evicts the least recently used.

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
