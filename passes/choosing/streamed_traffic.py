"""Model of the bytes of A and B that Stream-K reads from memory again, after L2 evicted them.

Each workgroup has a share: a contiguous range of the iterations of all output tiles. The model
assumes that all shares take equally long, so workgroups are at different k of their tiles at the
same time. All output tiles of a row need the same rows of A, but at different times; all tiles of a
column need the same columns of B. Data is read from memory again if more other data was requested
between two such times than the L2 cache keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from passes.choosing.plan_table import Column, Flag
from passes.choosing.tile_order import TileOrder

__all__ = ["Streams", "evicted"]

MOST_TILES = 24
"""Largest number of output tiles of a row, or of a column, whose times are computed. If a row has
more tiles, the result is extrapolated from the first ones."""
SAMPLES = ((0.25, 0.5), (0.75, 0.12))
"""Places at which the model looks at the reuse of A and B: (position of an output tile in the order
of tiles, position in k), both as fractions. The result is the mean over these places."""
STEEP = 4
"""Exponent in the formula for the share of data that the L2 cache evicts before its next use: the
larger it is, the more abruptly the share grows when the bytes that are requested in between reach
the cache's size."""
ROUNDS = 4
"""Number of steps of Newton's method in `_time_to_fill`."""

Samples = NDArray[np.float64]
"""An array with a row for each entry of `SAMPLES` and a column for each plan."""


@dataclass(frozen=True)
class _Reuse:
    """When the streamed output tiles request the data of one operand, A or B.

    Attributes:
        gaps: times between consecutive requests of the same data, as fractions of the time of
            a share, divided by `missing`. The array has an axis of at most MOST_TILES - 1 requests,
            one of samples, and one of plans. Entries are 0 where a row or column has fewer tiles.
        requests: number of output tiles, of those whose times were computed, that request the data.
        missing: number of all output tiles of the row or column, divided by the number of those
            whose times were computed.
        asked: bytes of the operand that all streamed tiles request.
    """

    gaps: NDArray[np.float64]
    requests: Samples
    missing: Column
    asked: Column

    def touched(self, time: Column) -> tuple[Column, Column]:
        """(bytes that are requested at least once in a window of time, derivative by its length).

        A request counts if no earlier request in the window was for the same data. Over all
        positions of the window, this is so for a fraction min(gap before the request, `time`) of
        them. The gap before the first request is unlimited.

        Args:
            time: the length of the window, as a fraction of a share's time.
        """
        inside = (np.minimum(self.gaps, time).sum(axis=0) + time / self.missing) / self.requests
        slope = ((self.gaps > time).sum(axis=0) + 1 / self.missing) / self.requests
        return self.asked * inside.mean(axis=0), self.asked * slope.mean(axis=0)

    def read_again(self, limit: Column) -> Column:
        """Bytes of the operand that are read from memory after the first time.

        Args:
            limit: the time in which as many bytes are requested as the L2 cache keeps, as a
                fraction of a share's time.
        """
        lost = evicted(self.gaps / limit).sum(axis=0) / self.requests
        return self.asked * lost.mean(axis=0)


@dataclass(frozen=True)
class Streams:
    """The output tiles that workgroups stream: each workgroup has a contiguous range of iterations.

    Attributes:
        order: the order in which tiles are visited; the streamed tiles are the first ones.
        tiles: number of streamed tiles of all products of a batch.
        phase: number of iterations of an output tile, divided by the number of iterations of a
            share.
        backward: whether workgroups run their segments (the parts of their range that lie in one
            tile) from last to first.
    """

    order: TileOrder
    tiles: Column
    phase: Column
    backward: Flag

    def read_again(self, a: Column, b: Column, kept_bytes: float) -> Column:
        """Bytes of A and B that the streamed tiles read from memory after the first time.

        Args:
            a, b: bytes of A and of B that one product of a batch has.
            kept_bytes: bytes of A and B that the L2 cache keeps.
        """
        order = self.order
        begin, at = np.array(SAMPLES).T[:, :, None]
        of_one = np.minimum(self.tiles, order.tiles_m * order.tiles_n)
        row, column = order.place(np.floor(begin * of_one))
        of_a = self._reuse(a / order.tiles_m, order.tiles_n, lambda i: order.number(row, i), at)
        of_b = self._reuse(b / order.tiles_n, order.tiles_m, lambda i: order.number(i, column), at)
        limit = _time_to_fill(of_a, of_b, kept_bytes)
        return of_a.read_again(limit) + of_b.read_again(limit)

    def _reuse(
        self, size: Column, along: Column, number: Callable[[Samples], Samples], at: Samples
    ) -> _Reuse:
        """The reuse of A by the tiles of a row, or of B by the tiles of a column.

        Args:
            size: bytes of the operand that an output tile needs.
            along: number of output tiles of the row or column.
            number: maps a tile's place in the row or column to its number in the order of tiles.
            at: the position in k, as a fraction of k.
        """
        count = np.minimum(along, MOST_TILES)
        places = np.arange(np.ceil(count.max()))[:, None, None]
        numbers = number(places)
        used = (places < count) & (numbers < self.tiles)
        times = np.where(used, self._time(numbers, at), np.inf)
        times.sort(axis=0)
        gaps = np.zeros_like(times[1:])
        np.subtract(times[1:], times[:-1], out=gaps, where=np.isfinite(times[1:]))
        missing = along / count
        requests = np.maximum(used.sum(axis=0), 1)
        return _Reuse(gaps / missing, requests, missing, size * self.tiles)

    def _time(self, tile: Samples, at: Samples) -> Samples:
        """The time at which an iteration of an output tile runs, as a fraction of a share's time.

        Iterations are numbered tile by tile, and along k within a tile; each workgroup has a share
        of consecutive numbers. If segments run from last to first, a workgroup whose share contains
        the start of a tile begins there, at k = 0, and ends at the end of a tile.

        Args:
            tile: number of the output tile.
            at: the position of the iteration in k, as a fraction of k.
        """
        phase = self.phase
        place = (tile + at) * phase
        begin = np.floor(place)
        behind = begin + 1 - np.minimum((tile + 1) * phase, begin + 1)
        inside = place - np.maximum(tile * phase, begin)
        return np.where(self.backward, behind + inside, place - begin)


def evicted(passed: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of data that the L2 cache evicts before its next use.

    Args:
        passed: the number of bytes that are requested before the next use, divided by the number
            that the cache keeps. The ratio of the times in which these are requested serves, too.
    """
    power = passed**STEEP
    return power / (1 + power)


def _time_to_fill(of_a: _Reuse, of_b: _Reuse, kept_bytes: float) -> Column:
    """The time in which as many bytes are requested as the L2 cache keeps.

    The result is a fraction of a share's time. Bytes that are requested twice in this time count
    once. The number of bytes is a concave function of the time, so Newton's method approaches the
    solution from below.
    """
    time = np.zeros_like(of_a.asked)
    for _ in range(ROUNDS):
        (bytes_a, slope_a), (bytes_b, slope_b) = of_a.touched(time), of_b.touched(time)
        time = time + np.maximum(kept_bytes - bytes_a - bytes_b, 0) / (slope_a + slope_b)
    return time
