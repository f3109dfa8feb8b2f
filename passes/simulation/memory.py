"""`Cache` estimates which k tiles of A and B the L2 cache still holds, by the bytes read since.

A *panel* is the part of A that one row of output tiles reads, or the part of B that one column of
output tiles reads. The k tiles of a panel are read from DRAM one after another. A k tile stays in
the L2 cache until as many bytes as the cache holds have been read from DRAM after its last use (an
LRU cache). So for each panel the model stores only the last ranges of k, and how many bytes had
been read from DRAM when each range was read. Workgroups at the same k of neighbouring tiles share
the data that one of them reads; a workgroup that is far behind another one reads the data again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgraph.interpreter.lockstep import StepKind, Steps
from passes.simulation.work import TileWork

__all__ = ["Cache", "Found", "Pieces", "Traffic"]

MOST_READS = 256
"""Number of reads of a panel that the model of the L2 cache remembers; it forgets older reads."""
MOST_TILES = 1 << 32
"""More than the number of k tiles of any launch."""
NEVER = (-inf, 0)
"""The last two numbers of a `Read` (bytes read from DRAM before it, and slot) if there is none."""
Read = tuple[int, int, float, int]
"""Type of a recorded read of a panel: the first k tile, the k tile after the last, the bytes that
had been read from DRAM when the first k tile was read, and the slot (SM) of the workgroup."""
Found = tuple[float, bool]
"""Type of the result of a request: the number of k tiles that must be read from DRAM (a fraction if
it is the mean of several panels), and whether a workgroup on a neighbouring SM requests the same k
tiles at the same time."""


@dataclass
class Cache:
    """Model of the L2 cache, which is empty at the beginning of a launch.

    Args:
        capacity: number of bytes of A and B that the cache holds.
        near: number of neighbouring slots (SMs) whose requests may be merged.
        reads: for each panel, its last reads, the oldest first.
    """

    capacity: float
    near: int = 16
    reads: dict[int, list[Read]] = field(default_factory=dict[int, list[Read]])

    def request(
        self, panel: int, first: int, stop: int, volume: float, pace: float, slot: int
    ) -> Found:
        """Request k tiles of a panel, one after another, and remember that they were read.

        Args:
            panel: the number of the panel.
            first, stop: the range of k tiles.
            volume: bytes that have been read from DRAM until now.
            pace: bytes that are read from DRAM during one iteration of all running workgroups.
            slot: the slot (SM) on which the workgroup runs.
        """
        before = self.reads.get(panel)
        if before is None:
            self.reads[panel] = [(first, stop, volume, slot)]
            return stop - first, False
        start, end, since, place = before[-1]
        if stop <= start or end <= first:
            at = _same(before, first, stop)
            if at >= 0:
                evicted = volume - before[at][2] >= self.capacity
                if not evicted or at == 0:  # at 0, no older read has a k tile of the range
                    del before[at]
                    before.append((first, stop, volume, slot))
                    return (stop - first if evicted else 0), False
        # The lag is the number of bytes read from DRAM between the previous read of a k tile and
        # this request. The lag is the same for all k tiles of a range, because all workgroups
        # advance at one pace.
        lag = volume - since + pace * (start - first)
        if start <= first and stop <= end and lag < self.capacity:
            near = -2 * pace <= lag <= 2 * pace and -self.near < slot - place < self.near
            missing = 0
        else:
            near = False
            lag = volume - pace * first
            missing = self._missing(before, len(before), first, stop, lag, pace)
        if start == first and stop == end:
            # No other read is inside this range: such reads were forgotten when the last one was
            # remembered.
            before[-1] = (first, stop, volume, slot)
        else:
            before[:] = [old for old in before if old[0] < first or stop < old[1]]
            before.append((first, stop, volume, slot))
            if len(before) > MOST_READS:
                del before[0]
        return missing, near

    def _missing(
        self, before: list[Read], count: int, first: int, stop: int, lag: float, pace: float
    ) -> int:
        """Number of k tiles of a range that are not in the L2 cache (never read, or evicted).

        Args:
            before: reads of the panel.
            count: only the oldest `count` of these reads are searched.
            first, stop: the range of k tiles.
            lag: bytes that had been read from DRAM when the request was at k tile 0, or would have
                been, if the request's range begins at a later k tile.
            pace: as for `request`.
        """
        while count:
            count -= 1
            start, end, since, _ = before[count]
            if end <= first or stop <= start or lag - since + pace * start >= self.capacity:
                continue
            missing = 0
            if first < start:
                missing = self._missing(before, count, first, start, lag, pace)
            if end < stop:
                missing += self._missing(before, count, end, stop, lag, pace)
            return missing
        return stop - first


@dataclass
class Pieces:
    """`Cache` for launches in which the ranges of k of a panel's requests are equal or disjoint.

    Then each range is evicted as a whole, and only its last read matters.

    Args:
        capacity, near: as for `Cache`.
        reads: for each range, the bytes that had been read from DRAM when it was read last, and the
            slot (SM) of the workgroup. The key is `MOST_TILES` times the number of the panel, plus
            the first k tile.
        latest: for each panel, the first k tile of the range that was read last.
    """

    capacity: float
    near: int = 16
    reads: dict[int, tuple[float, int]] = field(default_factory=dict[int, tuple[float, int]])
    latest: dict[int, int] = field(default_factory=dict[int, int])

    def request(
        self, panel: int, first: int, stop: int, volume: float, pace: float, slot: int
    ) -> Found:
        """Request a range of k tiles; arguments are those of `Cache.request`."""
        piece = panel * MOST_TILES + first
        since, place = self.reads.get(piece, NEVER)
        self.reads[piece] = volume, slot
        lag = volume - since
        if lag >= self.capacity:
            self.latest[panel] = first
            return stop - first, False
        if self.latest[panel] != first:
            self.latest[panel] = first
            return 0, False
        return 0, lag <= 2 * pace and -self.near < slot - place < self.near


def _same(before: list[Read], first: int, stop: int) -> int:
    """The index of the last read of the range from `first` to `stop`; -1 if there is none.

    It is -1, too, if a later read overlaps the range. Reads of other pieces of k do not.
    """
    at = len(before) - 2
    while at >= 0:
        start, end, _, _ = before[at]
        if start < stop and first < end:
            return at if start == first and end == stop else -1
        at -= 1
    return -1


class Traffic:
    """Simulates memory traffic: bytes requested from the L2 cache, and bytes read from DRAM.

    Args:
        steps: what every workgroup computes, sends, receives and stores, in order.
        works: the cost of a tile of each tile shape.
        spans: for each tile shape, its extents in m and n, divided by the extents of the smallest
            tile shape of the graph.
        sizes: an array with m, n and k of each product; one row if all products have the same
            sizes.
        element: bytes of an element of A and B.
        capacity: bytes of A and B that the L2 cache holds.
        merged: share of requests that the L2 cache merges if neighbouring SMs request the same data
            at the same time.
        loaded_bytes: bytes that the epilogue of a macro tile of the first shape reads.

    Attributes:
        asked: bytes that were requested from the L2 cache.
        read_a, read_b: bytes of A and of B that were read from DRAM.
    """

    def __init__(
        self,
        steps: Steps,
        works: Sequence[TileWork],
        spans: Sequence[tuple[int, int]],
        sizes: NDArray[np.int64],
        element: int,
        *,
        capacity: float,
        merged: float,
        loaded_bytes: float = 0.0,
    ) -> None:
        self.merged = merged
        self.asked = self.read_a = self.read_b = 0.0
        chosen = np.flatnonzero(steps.kind == StepKind.MULTIPLY)
        loops = _MainLoops(steps, chosen, works, spans, sizes)
        columns = loops.requests(element, loaded_bytes)
        self.cache = (Pieces if loops.in_pieces(*columns[:2]) else Cache)(capacity)
        # One tuple for each main loop needs fewer CPU cache lines than a list for each column.
        rows = zip(*(column.tolist() for column in columns), strict=True)
        self.loops = dict(zip(chosen.tolist(), rows, strict=True))
        """For each main loop (by step): the first panels of A and of B that it reads, the numbers
        of panels, the range of k tiles; and per k tile the bytes of A and of B that are requested,
        the bytes of A and of B that are read from DRAM if the cache has none of them, and the bytes
        of D."""

    def request(self, step: int, slot: int, volume: float, pace: float) -> tuple[int, float, float]:
        """Request the k tiles of a main loop, which begins.

        Args:
            step: the index of the step.
            slot: the slot (SM) on which the workgroup runs.
            volume, pace: as for `Cache.request`.

        Returns:
            The number of k tiles; and per k tile the bytes that are requested from the L2 cache,
            and the bytes that are read from DRAM.
        """
        panel_a, panel_b, span_a, span_b, first, stop, a, b, bytes_a, bytes_b, d = self.loops[step]
        count = stop - first
        if span_a == span_b == 1:
            request = self.cache.request
            missing_a, near_a = request(panel_a, first, stop, volume, pace, slot)
            missing_b, near_b = request(panel_b, first, stop, volume, pace, slot)
        else:
            missing_a, near_a = self._panels(panel_a, span_a, first, stop, volume, pace, slot)
            missing_b, near_b = self._panels(panel_b, span_b, first, stop, volume, pace, slot)
        asked = a * (1 - self.merged * near_a) + b * (1 - self.merged * near_b)
        of_a, of_b = missing_a * bytes_a, missing_b * bytes_b
        self.asked += asked * count
        self.read_a += of_a
        self.read_b += of_b
        return count, asked, (of_a + of_b) / count + d

    def _panels(
        self, panel: int, span: int, first: int, stop: int, volume: float, pace: float, slot: int
    ) -> Found:
        """Request the same k tiles of `span` consecutive panels of A (or of B) from the L2 cache.

        Returns:
            The mean number of k tiles of a panel that must be read from DRAM, and whether a
            workgroup on a neighbouring SM requests the same k tiles of all panels.
        """
        request = self.cache.request
        found = [request(panel + 2 * i, first, stop, volume, pace, slot) for i in range(span)]
        return sum(missing for missing, _ in found) / span, all(near for _, near in found)


class _MainLoops:
    """The main loops of a launch, as columns.

    Args:
        steps: the steps of all workgroups.
        chosen: the indices of the steps that are main loops.
        works, spans, sizes: as for `Traffic`.
    """

    def __init__(
        self,
        steps: Steps,
        chosen: NDArray[np.int64],
        works: Sequence[TileWork],
        spans: Sequence[tuple[int, int]],
        sizes: NDArray[np.int64],
    ) -> None:
        def of(name: str) -> NDArray[np.int64]:
            return getattr(steps, name)[chosen]

        self.works, self.tiling = works, of("tiling")
        self.shape = np.array([work.shape for work in works])[self.tiling]
        self.span = np.array(spans)[self.tiling]
        self.product, self.m, self.n = of("product"), of("m"), of("n")
        self.first, self.count, self.padding = of("first"), of("count"), of("padding")
        self.sizes = sizes[np.minimum(self.product, len(sizes) - 1)]
        self.tiles = steps.tiles[-3:-1]

    def requests(self, element: int, loaded_bytes: float) -> tuple[NDArray[Any], ...]:
        """The columns of `Traffic.loops`."""
        # A panel is the rows of A (or columns of B) that one row (or column) of output tiles of the
        # smallest shape reads. Panels are numbered by product, and in a product by position.
        span, own, shape = self.span, self.sizes, self.shape
        place_m, place_n = self.m * span[:, 0], self.n * span[:, 1]
        width_m, width_n = (int(x.max(initial=0)) + 1 for x in (place_m, place_n))
        depth = np.maximum(-(-own[:, 2] // shape[:, 2]), 1)
        tiles_m, tiles_n = (int(n) for n in self.tiles)
        part_m = _inside(own[:, 0], shape[:, 0], self.m, tiles_m // span[:, 0])
        part_n = _inside(own[:, 1], shape[:, 1], self.n, tiles_n // span[:, 1])
        there = 1 - self.padding
        along_k = own[:, 2] / depth * element * there
        area = shape[:, 0] * shape[:, 1] / max(prod(self.works[0].shape[:2]), 1)
        stored = self._of("stored_bytes") + loaded_bytes * area
        return (
            2 * (self.product * width_m + place_m),
            2 * (self.product * width_n + place_n) + 1,
            *span.T,
            self.first,
            self.first + self.count,
            self._of("asked_a") * part_m * there,
            self._of("asked_b") * part_n * there,
            part_m * shape[:, 0] * along_k,
            part_n * shape[:, 1] * along_k,
            stored * part_m * part_n / depth * there,
        )

    def in_pieces(self, *panels: NDArray[np.int64]) -> bool:
        """Whether all ranges of k tiles that are read of a panel are equal or disjoint.

        Args:
            panels: for each main loop, its panel of A; and likewise of B.
        """
        stop = self.first + self.count
        width = int(stop.max(initial=0)) + 1
        for panel in panels:
            # Ranges as integers, which are sorted by panel and then by first k tile.
            ranges = np.unique((panel * width + self.first) * width + stop)
            begin, end = np.divmod(ranges, width)
            same = begin[1:] // width == begin[:-1] // width
            if np.any(same & (begin[1:] % width < end[:-1])):
                return False
        return all(np.all(span == 1) for span in self.span.T)

    def _of(self, name: str) -> NDArray[np.float64]:
        """An attribute of `TileWork`, for the tile shape of each main loop."""
        return np.array([getattr(work, name) for work in self.works])[self.tiling]


def _inside(
    extent: NDArray[np.int64],
    tile: NDArray[np.int64],
    number: NDArray[np.int64],
    tiles: NDArray[np.int64],
) -> NDArray[np.float64]:
    """For each tile, the fraction of its extent along an axis that lies inside the matrix.

    If groups end inside tiles, it is the mean fraction of all tiles.

    Args:
        extent: number of elements of the matrix along the axis.
        tile: number of elements of a tile along the axis.
        number: the index of the tile along the axis.
        tiles: number of tiles along the axis, more than the extent needs if groups end inside
            tiles.
    """
    ragged = tiles > -(-extent // tile) + 1
    left = np.clip(extent - number * tile, 0, tile) / tile
    return np.where(ragged, np.minimum(extent / (tiles * tile), 1), left)
