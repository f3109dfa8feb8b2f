"""Candidates: the plans that are judged for a problem."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from coordgraph import Gemm
from coordgraph.tensors import dtype
from passes.choosing.constants import Constants
from passes.choosing.plan import Plan
from passes.choosing.table import Column, Flag, Table, sizes

__all__ = ["candidates", "tilings"]

Tiling = tuple[int, int, int, int, int, int]
"""Tile m, n, k and cluster m, n, k."""

UNIT_K = 64
WIDTHS = {
    16: (64, 128, 192, 256),
    32: (64, 128, 256),
    64: (64, 80, 96, 112, 128, 192, 256),
    128: (48, *range(64, 257, 16), 288, 320),
    192: (64, 96, 128, 160, 192),
    256: (64, 96, 112, 128, 144, 160, 176, 192),
    320: (96, 128),
}
"""Of a workgroup's part of a tile, by its rows: those that were measured."""
FEW_ROWS = (16, 32)
MOST_SUMS = {2: 192, 4: 96}
"""Accumulators of a workitem, by the bytes of an element of C; see `LowerToHopper`."""
MOST_SUMS_STREAMED = 160
"""Of plans that send and receive partial sums."""
BANDS = (4, 8, 16)
LEAST_DEPTH = 4
"""Iterations of a tile that are worth being divided."""
MOST_SPLITS = 64
SHORT = 320
"""Rows and columns of a workgroup's part, together, of a short iteration."""
PLAIN, PERSISTENT, STREAM_K, TWO_TILE = range(4)


@cache
def tilings(out_bytes: int, narrow_boxes: bool) -> tuple[Tiling, ...]:
    """Tiles and clusters that can be lowered.

    Args:
        out_bytes: of an element of C and D.
        narrow_boxes: widths that are multiples of 16 only, where that costs nothing.
    """
    return tuple(dict.fromkeys(_tilings(out_bytes, narrow_boxes)))


def _tilings(out_bytes: int, narrow_boxes: bool) -> Iterator[Tiling]:
    for rows, widths in WIDTHS.items():
        for columns in widths:
            if not narrow_boxes and slowed(rows, columns):
                continue
            if sums(rows, columns) > MOST_SUMS[out_bytes]:
                continue
            yield rows, columns, UNIT_K, 1, 1, 1
            if rows >= 64:
                yield 2 * rows, columns, UNIT_K, 2, 1, 1
                yield rows, 2 * columns, UNIT_K, 1, 2, 1
            if rows <= 64 or columns <= 64:
                yield rows, columns, 2 * UNIT_K, 1, 1, 2
            if rows in FEW_ROWS:
                yield rows, columns, 2 * UNIT_K, 1, 1, 1


def slowed(rows: Any, columns: Any) -> Any:
    """Where boxes narrower than 64 elements take longer than the multiplications; also of arrays.

    It was measured so (B as it is against its transpose): for boxes of 16 elements always, for
    boxes of 32 where an iteration is short.
    """
    return (columns % 32 != 0) | ((columns % 64 != 0) & (rows + columns < SHORT))


def sums(rows: int, columns: int) -> int:
    """Accumulators of a workitem; more than any limit where no division is possible."""
    swapped = rows % 64 != 0 or rows < 128 <= columns
    left, right = (columns, rows) if swapped else (rows, columns)
    if left % 64 or right % 16:
        return 1 << 30
    whole = left % 128 == 0
    two = whole or right % 32 == 0
    share = right if whole or not two else right // 2
    pieces = -(-share // 256)
    if share % pieces or share // pieces % 8:
        return 1 << 30
    return left // 64 * share // 2 // (2 if whole else 1)


def candidates(problem: Gemm, device: Constants) -> Table:
    """Plans for a problem whose sizes are given, as a table without those that make no sense."""
    m, n, k = sizes(problem)
    out_bytes = dtype(problem.out_dtype or problem.dtype).bytes
    known = _columns(out_bytes, problem.transpose_b)
    keep = (known[0] < 2 * max(m, 16)) & (known[1] < 2 * max(n, 64))
    tile_m, tile_n, tile_k, *cluster = (column[keep] for column in known[:6])
    workgroups = cluster[0] * cluster[1] * cluster[2]
    slots = device.slots(workgroups)
    tiles_m, tiles_n = np.ceil(m / tile_m), np.ceil(n / tile_n)
    tiles, depth = tiles_m * tiles_n, np.ceil(k / tile_k)
    divide = (depth >= LEAST_DEPTH) & (known[6][keep] <= MOST_SUMS_STREAMED)
    several = tiles > slots
    parts: list[tuple[int, Flag, Column]] = [
        (PLAIN, ~several, slots),
        (PERSISTENT, several, slots),
        (STREAM_K, divide & (tiles % slots != 0), slots),
        (TWO_TILE, divide & several & (tiles % slots != 0), slots),
    ]
    most = np.minimum(np.floor(slots / tiles), np.floor(depth / 2))
    even, any_split = np.ones_like(most), np.minimum(most, MOST_SPLITS)
    for split in range(2, int(any_split.max(initial=1)) + 1):
        even = np.where((depth % split == 0) & (split <= most), split, even)
    parts.append((STREAM_K, divide & (even > 1), tiles * even))
    parts.append((STREAM_K, divide & (any_split > 1) & (any_split != even), tiles * any_split))
    bands = [1, *(band for band in BANDS if band < m)]
    rows: list[tuple[Column, ...]] = []
    for kind, mask, grid in parts:
        for band in bands:
            chosen = mask & several & (tiles_m > band) & (tiles_n > 2) if band > 1 else mask
            if not chosen.any():
                continue
            columns = (tile_m, tile_n, tile_k, *cluster, np.full_like(tiles, kind), grid)
            rows.append(tuple(c[chosen] for c in (*columns, np.full_like(tiles, band))))
    joined = [np.concatenate(column) for column in zip(*rows, strict=True)]
    same = np.ones_like(joined[0])
    extents = (same * m, same * n, same * k)
    turned = (same * problem.transpose_a, same * problem.transpose_b)
    return Table(*extents, *turned, same * out_bytes, *joined)


@cache
def _columns(out_bytes: int, narrow_boxes: bool) -> tuple[Column, ...]:
    """The columns of `tilings`, and the accumulators of each."""
    found = np.array(tilings(out_bytes, narrow_boxes), np.float64)
    part = found[:, :2] / found[:, 3:5]
    held = [sums(int(rows), int(columns)) for rows, columns in part]
    return (*found.T, np.array(held, np.float64))


def fallback() -> Plan:
    """A plan that serves every problem, if not fast."""
    return Plan((128, 128, UNIT_K))
