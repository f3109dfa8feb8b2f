"""Model of the bytes of A and B that a launch reads from memory because L2 does not hold them."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from passes.choosing.kernel_shape import block
from passes.choosing.plan_table import Column, Flag, Table
from passes.choosing.streamed_traffic import Streams, evicted
from passes.choosing.tile_order import TileOrder

__all__ = ["traffic_of"]


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
    kept_bytes: float,
    *,
    mixed: Flag,
    streams: Column,
) -> Column:
    """Bytes of A and B that a launch reads from memory, given the reuse in the L2 cache.

    Workgroups at the same k of neighbouring tiles share data through the L2 cache. A wave of tiles
    reuses the data of the wave before it unless the cache has evicted them. The cache evicts the
    least recently used data first, so it keeps almost nothing of a wave that is larger than itself.

    Args:
        t: a table with one problem and one plan in each row.
        s: each plan's numbers of output tiles, and of iterations of a tile.
        grid: number of resident workgroups.
        kept_bytes: bytes of A and B that the L2 cache keeps.
        mixed: whether workgroups are at different k of their tiles at the same time.
        streams: the most iterations of a workgroup on tiles that may be divided along k, times
            `grid`.
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
    stays = kept_bytes >= (a + b) / t.l
    banded = a + b * np.where(stays, 1, bands)
    stay = 1 - evicted(wave / kept_bytes)
    found = np.minimum(stay * banded + (1 - stay) * apart, apart)
    (rows,) = mixed.nonzero()
    if len(rows):
        few, both = t.where(rows), (a + b)[rows]
        tiles_m, tiles_n = s.tiles_m[rows], s.tiles_n[rows]
        tiles = np.minimum(streams[rows] / s.depth[rows], s.tiles[rows])
        # The mean length of a share. `streams` has the longest, which is longer than the mean if
        # `least_segment` moves the ends of shares.
        share = np.maximum(np.ceil(tiles * s.depth[rows] / grid[rows]), 1)
        pieces = s.depth[rows] / share
        order = TileOrder(np.minimum(few.width, tiles_m), tiles_m, tiles_n)
        streamed = Streams(order, tiles, pieces, few.backward)
        again = streamed.read_again(a[rows] / few.l, b[rows] / few.l, kept_bytes)
        same_k = both * _evicted_at_same_k(pieces, both, kept_bytes)
        again = np.where(few.interleaved, np.minimum(again, same_k), again)
        # Workgroups compute whole tiles after the streamed ones. If B does not stay in the cache,
        # whole tiles read those columns of B again that streamed tiles have read before.
        whole = 1 - tiles / s.tiles[rows]
        other = b[rows] * np.minimum(tiles / tiles_n, 1) * ((tiles_m > 1) & ~stays[rows])
        found[rows] = both + again + whole * (found[rows] - both + other)
    return found


def _evicted_at_same_k(pieces: Column, both: Column, kept_bytes: float) -> Column:
    """The share of A and B that is read twice although all workgroups stay at nearly the same k.

    Let f be the fractional part of `pieces`. Compared with even progress along k, a tile is ahead
    by at most the fraction `f·(1 - f)/pieces` of the launch's time; see the edge `Interleave`. In
    the time between an early and a late read of the same data, this fraction of A and B is read,
    which may evict the data from the L2 cache.

    Args:
        pieces: main loop iterations of an output tile, divided by those of a workgroup.
        both: bytes of A and B.
        kept_bytes: bytes of A and B that the L2 cache keeps.
    """
    over = pieces % 1
    return evicted(over * (1 - over) / pieces * both / kept_bytes)
