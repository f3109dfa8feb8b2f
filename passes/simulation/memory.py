"""`Cache` estimates which k tiles of A and B the L2 cache holds, by the bytes read after each.

A *panel* is the part of A that one row of output tiles reads, or the part of B that one column of
output tiles reads. The k tiles of a panel are read from DRAM one after another. A k tile stays in
the L2 cache until as many bytes as the cache holds have been read from DRAM after its last use (an
LRU cache). So for each panel the model stores only the last ranges of k, and how many bytes had
been read from DRAM when each range was read. Workgroups at the same k of neighbouring tiles share
the data that one of them reads; a workgroup that is far behind another one reads the data again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from passes.simulation.main_loops import MainLoops

__all__ = ["Cache", "Found", "Pieces", "Traffic"]

MOST_READS = 256
"""Number of reads that the model of the L2 cache remembers for each panel (the part of A that a row
of output tiles reads, or the part of B that a column reads); the model forgets older reads."""
MOST_TILES = 1 << 32
"""A number larger than the number of k tiles of any launch, so that panel * MOST_TILES + k tile
identifies a k tile of a panel (the part of A or B that a row or column of output tiles reads)."""
NEVER = (-inf, 0)
"""Stands for (bytes that had been read from DRAM at the last read of a range of k tiles, slot (SM)
of that read) if the range was not read before."""
Read = tuple[int, int, float, int]
"""Type of a recorded read of k tiles of A or B: the first k tile, the k tile after the last, the
bytes that had been read from DRAM when the first k tile was read, and the slot (SM) of the
workgroup that read."""
Found = tuple[float, bool]
"""Type of the result of a request: the number of k tiles that must be read from DRAM (a fraction if
it is the mean of several panels), and whether a workgroup on a neighbouring SM requests the same k
tiles at the same time."""


@dataclass
class Cache:
    """Model of the L2 cache, which is empty at the beginning of a launch.

    A panel is the part of A that one row of output tiles reads, or the part of B that one column of
    output tiles reads.

    Args:
        capacity: number of bytes of A and B that the cache holds.
        near: number of neighbouring slots (SMs) whose requests may be merged.
        reads: for each panel, the last reads of its k tiles, the oldest first.
    """

    capacity: float
    near: int = 16
    reads: dict[int, list[Read]] = field(default_factory=dict[int, list[Read]])

    def request(
        self, panel: int, first: int, stop: int, volume: float, pace: float, slot: int
    ) -> Found:
        """Request k tiles of A or B, one after another, and remember that they were read.

        Args:
            panel: the number of the panel: the part of A (B) that one row (column) of output tiles
                reads.
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
                # If what this read loaded was evicted, and it is the oldest read in `before`, none
                # of the requested k tiles is cached.
                if not evicted or at == 0:
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
            # The last read has the same range. Other reads inside the range were removed from
            # `before` when the last read was added.
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
            before: earlier reads of the same rows of A (or columns of B), the oldest first.
            count: only the oldest `count` of these reads are searched.
            first, stop: the range of k tiles.
            lag: bytes that will have been read from DRAM when the request is at k tile t, minus
                `pace` times t; the number is the same for every t.
            pace: bytes that are read from DRAM during one iteration of all running workgroups.
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
    """Like `Cache`, for launches in which two requested ranges of a panel are equal or disjoint.

    A panel is the rows of A, or columns of B, of an output tile. Each range of its k tiles is then
    evicted as a whole, and only the range's last read matters.

    Args:
        capacity: number of bytes of A and B that the cache holds.
        near: number of neighbouring slots (SMs) whose requests may be merged.
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
        """Request a range of k tiles of A or B, and remember that it was read.

        Args:
            panel: the number of the panel: the part of A (B) that one row (column) of output tiles
                reads.
            first, stop: the range of k tiles.
            volume: bytes that have been read from DRAM until now.
            pace: bytes that are read from DRAM during one iteration of all running workgroups.
            slot: the slot (SM) on which the workgroup runs.
        """
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
    """The index of the latest read of exactly the range `first` to `stop`; -1 if there is none.

    The last read of `before` is not searched. The result is also -1 if the latest read that
    overlaps the range is of another range.
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
        loops: the k tiles that each main loop of the launch reads, and their bytes.
        capacity: bytes of A and B that the L2 cache holds.
        merged: share of requests that the L2 cache merges if neighbouring SMs request the same data
            at the same time.

    Attributes:
        asked: bytes that were requested from the L2 cache.
        read_a, read_b: bytes of A and of B that were read from DRAM.
    """

    def __init__(self, loops: MainLoops, *, capacity: float, merged: float) -> None:
        self.merged = merged
        self.asked = self.read_a = self.read_b = 0.0
        self.cache = (Cache if loops.ranges is None else Pieces)(capacity)
        # One tuple for each main loop needs fewer CPU cache lines than a list for each column.
        rows = zip(*(column.tolist() for column in loops.requests), strict=True)
        self.loops = dict(zip(loops.steps.tolist(), rows, strict=True))
        """For each main loop, by its step: its k tiles and their bytes (`MainLoops.requests`)."""

    def request(self, step: int, slot: int, volume: float, pace: float) -> tuple[int, float, float]:
        """Request the k tiles of a main loop, which begins.

        Args:
            step: the index of the step.
            slot: the slot (SM) on which the workgroup runs.
            volume: bytes that have been read from DRAM until now.
            pace: bytes that are read from DRAM during one iteration of all running workgroups.

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
        """Request the same k tiles for `span` adjacent rows (columns) of output tiles from L2.

        A panel is the part of A (B) that one row (column) of output tiles reads.

        Returns:
            The mean number of k tiles of a panel that must be read from DRAM, and whether a
            workgroup on a neighbouring SM requests the same k tiles of all panels.
        """
        request = self.cache.request
        found = [request(panel + 2 * i, first, stop, volume, pace, slot) for i in range(span)]
        return sum(missing for missing, _ in found) / span, all(near for _, near in found)
