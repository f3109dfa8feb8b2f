"""Model of the bytes of A and B that a launch reads from memory because L2 does not hold them."""

from __future__ import annotations

from math import ceil
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from passes.choosing.kernel_shape import block
from passes.choosing.plan_table import Column, Flag, Table

__all__ = ["traffic_of"]

MOST_TILES = 24
"""Largest number of output tiles in a row, or in a column, for which the model estimates the reuse
of A or B between them; further tiles of the row or column are left out."""
STEEP = 2
"""Exponent in the formula for the share of cache lines that the L2 cache evicts before their next
use: the larger it is, the more abruptly the share grows when the bytes read in between reach the
cache's size."""
ROUNDS = 3
"""Number of rounds of the fixed-point iteration that computes the bytes read from memory. Iteration
is needed because evicted lines are read again: these reads add to the bytes that pass through the
L2 cache, and so evict more lines."""


class Divided(Protocol):
    """How plans divide the output into tiles; `Shape` and `MmaShape` implement it."""

    @property
    def tiles_m(self) -> Column:
        """Number of output tiles of one product along m."""
        ...

    @property
    def tiles_n(self) -> Column:
        """Number of output tiles of one product along n."""
        ...

    @property
    def tiles(self) -> Column:
        """Number of output tiles of all products together."""
        ...

    @property
    def depth(self) -> Column:
        """Number of iterations of an output tile."""
        ...


def traffic_of(
    t: Table,
    s: Divided,
    grid: Column,
    asked: Column,
    l2_bytes: float,
    *,
    mixed: Flag,
    streams: Column,
) -> Column:
    """Bytes of A and B that a launch reads from memory, given the reuse in the L2 cache.

    Workgroups at the same k of neighbouring tiles share data through the L2 cache. A wave of tiles
    reuses the data of the wave before it as far as the cache still holds them.

    Args:
        t: a table with one problem and one plan in each row.
        s: each plan's numbers of output tiles, and of iterations of a tile.
        grid: number of resident workgroups.
        asked: bytes that all workgroups request from the L2 cache.
        l2_bytes: bytes of the L2 cache.
        mixed: whether workgroups are at different k of their tiles at the same time.
        streams: number of iterations of all workgroups on tiles that may be divided along k.
    """
    a, b = t.l * t.m * t.k * t.in_bytes, t.l * t.n * t.k * t.in_bytes
    together = np.minimum(grid, s.tiles)
    high, wide = block(t, s.tiles_m, s.tiles_n, together)
    shared = np.minimum(high * t.tile_m, t.m) + np.minimum(wide * t.tile_n, t.n)
    wave = shared * t.k * t.in_bytes
    waves = np.maximum(s.tiles / together, 1)
    apart = np.maximum(waves * wave, a + b)
    # Each band's rows of A are read once. B is read once per band, unless it stays in the cache.
    bands = np.ceil(s.tiles_m / high)
    # B stays in the cache between two bands if A and B of one product fit in the cache. The size of
    # the batch does not matter, since the bands of one product are computed one after another.
    stays = l2_bytes >= (a + b) / t.l
    banded = a + b * np.where(stays, 1, bands)
    stay = np.minimum(l2_bytes / wave, 1)
    found = np.minimum(stay * banded + (1 - stay) * apart, apart)
    (rows,) = mixed.nonzero()
    if len(rows):
        count = s.tiles[rows] * s.depth[rows]
        part = np.minimum(streams[rows] / np.maximum(count, 1), 1)
        share = np.maximum(streams[rows] / grid[rows], 1)
        few = t.where(rows)
        shape = (s.tiles_m[rows], s.tiles_n[rows], s.depth[rows])
        streamed = _streamed(few, *shape, a[rows], b[rows], asked[rows], share, l2_bytes)
        pieces = s.depth[rows] / share
        together = _interleaved(pieces, a[rows] + b[rows], l2_bytes)
        streamed = np.where(few.interleaved, np.minimum(streamed, together), streamed)
        rest = found[rows]
        found[rows] = np.maximum(rest, part * streamed + (1 - part) * rest)
    return found


def _streamed(
    t: Table,
    tiles_m: Column,
    tiles_n: Column,
    depth: Column,
    a: Column,
    b: Column,
    asked: Column,
    share: Column,
    l2_bytes: float,
) -> Column:
    """Bytes of A and B read from memory if each workgroup has a contiguous range of iterations.

    A share is the range of iterations of one workgroup; the launch lasts as long as one share. The
    iteration at a given k of output tile i runs at the time `i·depth/share + const`, modulo 1; the
    unit of time is the length of the launch. All tiles of a row need the same rows of A, so A is
    read again if much other data was read since the previous tile's access; likewise for B and the
    tiles of a column.

    Args:
        t: a table with one problem and one plan in each row.
        tiles_m, tiles_n: number of output tiles along m and n.
        a, b: bytes of A and of B.
        asked: bytes that all workgroups request from the L2 cache.
        share: number of iterations of a workgroup.
        l2_bytes: bytes of the L2 cache.
    """
    # `band`: distance, in the order of tiles, from a tile to the next tile of the same row.
    # `along_m`: distance to the next tile of the same column.
    band = np.minimum(t.width, tiles_m)
    along_m = np.where(t.width > 1, 1, tiles_n)
    phase = depth / share
    gaps_a, gaps_b = _gaps(tiles_n, phase * band), _gaps(tiles_m, phase * along_m)
    both = read = a + b
    most = np.maximum(asked, both)
    for _ in range(ROUNDS):
        read = a * _reads(gaps_a, read / l2_bytes) + b * _reads(gaps_b, read / l2_bytes)
        read = np.minimum(np.maximum(read, both), most)
    return read


def _interleaved(pieces: Column, both: Column, l2_bytes: float) -> Column:
    """Bytes of A and B read from memory if all workgroups stay at nearly the same k.

    Let f be the fractional part of `pieces`. Compared with even progress along k, a tile is ahead
    by at most the fraction `f·(1 - f)/pieces` of the launch's time; see the edge `Interleave`. In
    the time between an early and a late read of the same data, this fraction of A and B is read,
    which may evict the data from the L2 cache.

    Args:
        pieces: main loop iterations of an output tile, divided by those of a workgroup.
        both: bytes of A and B.
        l2_bytes: bytes of the L2 cache.
    """
    over = pieces % 1
    passed = (over * (1 - over) / pieces * both / l2_bytes) ** STEEP
    return both * (1 + passed / (1 + passed))


def _gaps(tiles: Column, phase: Column) -> NDArray[np.float64]:
    """Times between reads of the same data, if tile i reads it at time i·phase (modulo 1).

    The unit of time is the length of a launch. A column is a plan; its row i is the time from its
    i-th read, in the order of time, to the next. The first read follows the last one (modulo 1), so
    a column adds up to 1. Rows without a tile are 0.
    """
    count = np.minimum(np.maximum(tiles, 1), MOST_TILES)
    # The arrays have a row for each tile, up to the largest `count` of all plans.
    number = np.arange(ceil(count.max()))[:, None]
    used = number < count
    times = np.where(used, number * phase % 1.0, np.inf)
    times.sort(axis=0)
    after = np.empty_like(times)
    after[:-1], after[-1] = times[1:], np.inf
    after = np.where(number == np.ceil(count) - 1, 1 + times[0], after)
    gaps = np.zeros_like(times)
    np.subtract(after, times, out=gaps, where=used)
    return gaps


def _reads(gaps: NDArray[np.float64], turnover: Column) -> Column:
    """Number of times that data requested by several tiles is read from memory, not from L2.

    Args:
        gaps: times between the requests, as fractions of the launch's time; they add up to 1.
        turnover: bytes read during the whole launch, divided by the size of the L2 cache.
    """
    passed = (gaps * turnover) ** STEEP
    lost = passed / (1 + passed)
    # Times are cyclic, so one gap between requests contains the begin of the launch. The request
    # after this gap is the first one, which always reads memory. A gap contains the begin with the
    # probability `gap` (its length); `lost` counts only if the gap does not contain the begin.
    return 1 + ((1 - gaps) * lost).sum(axis=0)
