"""Candidates: the plans that are judged for a problem."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from coordgraph import Gemm
from coordgraph.tensors import dtype
from passes.choosing.constants import Constants
from passes.choosing.model import ALONE, SCATTER, TREE, WARPGROUP, Shape
from passes.choosing.plan import Plan
from passes.choosing.table import Column, Flag, Table, sizes

__all__ = ["candidates", "crowded", "slow", "sums", "tilings"]

Tiling = tuple[int, int, int, int, int, int, int]
"""Tile m, n, k, cluster m, n, k, and warpgroups that take turns."""

UNIT_K = 64
WIDTHS = {
    16: (64, 128, 192, 256),
    32: (64, 128, 256),
    48: (128, 256),
    64: (64, 80, 96, 112, 128, 192, 256),
    80: (128, 256),
    96: (128, 256),
    112: (128, 256),
    144: (128, 256),
    160: (128, 256),
    176: (256,),
    128: (48, *range(64, 257, 16), 288, 320),
    192: (64, 96, 128, 160, 192),
    256: (64, 96, 112, 128, 144, 160, 192),
    320: (96, 128),
}
"""Of a workgroup's part of a tile, by its rows: those that were measured."""
TURNS = ((128, 128), (128, 96), (64, 256))
"""Rows and columns of the parts with which warpgroups take turns."""
FEWEST_ROWS, FEW_TILE, LEAST_ROWS = 16, 128, 48
DEEP = {16: (2, 4), 32: (2, 4), 64: (2,)}
"""Iterations of more than one row of shared memory, by rows: so that enough of B is under way."""
DEEPEST_COLUMNS = 64
"""With which stages that deep are still many."""
MOST_SUMS, MOST_SUMS_STREAMED = 192, 144
"""Accumulators of a workitem, and those of plans that send and receive partial sums."""
MOST_SUMS_BESIDE_C = {(2, False): 192, (4, False): 96, (2, True): 96, (4, True): 64}
"""Where C is read: by the bytes of its elements, and whether B is the left operand."""
BANDS = (4, 8, 16)
LEAST_DEPTH = 4
"""Iterations of a tile that are worth being divided."""
MOST_SPLITS, TREE_PEERS = 64, 3
NARROWEST = 32
"""Elements of a box."""
PLAIN, PERSISTENT, STREAM_K, TWO_TILE = range(4)


@cache
def tilings(c_bytes: int = 0) -> tuple[Tiling, ...]:
    """Tiles and clusters that can be lowered; where C is read, its elements have so many bytes."""
    return tuple(dict.fromkeys(_tilings(c_bytes)))


def _tilings(c_bytes: int) -> Iterator[Tiling]:
    for rows, widths in WIDTHS.items():
        for columns in widths:
            swapped = _swapped(rows, columns)
            most = MOST_SUMS_BESIDE_C[c_bytes, swapped] if c_bytes else MOST_SUMS
            if sums(rows, columns) > most:
                continue
            yield from _clusters(rows, columns, turns=1)
            if rows <= 64 or columns <= 64:
                yield rows, columns, 2 * UNIT_K, 1, 1, 2, 1
            for units in DEEP.get(rows, ()):
                if units == 2 or columns <= DEEPEST_COLUMNS:
                    yield rows, columns, units * UNIT_K, 1, 1, 1, 1
    for rows, columns in TURNS:
        if not c_bytes or rows * columns // WARPGROUP <= MOST_SUMS_BESIDE_C[c_bytes, False]:
            yield from _clusters(rows, columns, turns=2)


def _clusters(rows: int, columns: int, turns: int) -> Iterator[Tiling]:
    yield rows, columns, UNIT_K, 1, 1, 1, turns
    if rows >= 64:
        yield 2 * rows, columns, UNIT_K, 2, 1, 1, turns
        yield rows, 2 * columns, UNIT_K, 1, 2, 1, turns


def _swapped(rows: int, columns: int) -> bool:
    """Whether B is the left operand of a workgroup's part."""
    return rows % 64 != 0 or rows < 128 <= columns


def sums(rows: int, columns: int) -> int:
    """Accumulators of a workitem; more than any limit where no division is possible."""
    left, right = (columns, rows) if _swapped(rows, columns) else (rows, columns)
    consumers = 1 if rows * columns <= ALONE * WARPGROUP else 2
    share = right if left % 128 == 0 or consumers == 1 else right // 2
    pieces = -(-share // 256)
    if left % 64 or right % 16 or share % 16 or share % (16 * pieces):
        return 1 << 30
    return rows * columns // consumers // WARPGROUP


def slow(table: Table) -> Flag:
    """Rows whose B, as it is, comes in boxes of 16 elements, which slow the copy engine.

    It was measured so against B given as its transpose: a fifth to a half slower.
    """
    return (table.turned_b == 0) & (Shape(table).box_n < NARROWEST)


def crowded(table: Table, device: Constants) -> Flag:
    """Plans with a workgroup for every tile, and more tiles than the device holds workgroups."""
    shape = Shape(table)
    return (table.schedule == PLAIN) & (shape.tiles > device.slots(shape.workgroups))


def candidates(problem: Gemm, device: Constants, *, reads_c: bool = False) -> Table:
    """Plans for a problem whose sizes are given, as a table without those that make no sense.

    Args:
        problem: with m, n and k.
        device: see `constants_of`.
        reads_c: C is added.
    """
    m, n, k = sizes(problem)
    out_bytes = dtype(problem.out_dtype or problem.dtype).bytes
    known = _columns(out_bytes if reads_c else 0)
    held, taking = known[7], known[6]
    # Where a tile has all of few rows, each column of B is read by one workgroup alone.
    least = m if m <= FEW_TILE else LEAST_ROWS
    keep = (known[0] >= least) & (known[0] < 2 * max(m, FEWEST_ROWS))
    keep &= known[1] < 2 * max(n, UNIT_K)
    tile_m, tile_n, tile_k, *cluster = (column[keep] for column in known[:6])
    taking = taking[keep]
    workgroups = cluster[0] * cluster[1] * cluster[2]
    slots = device.slots(workgroups)
    tiles_m, tiles_n = np.ceil(m / tile_m), np.ceil(n / tile_n)
    tiles, depth = tiles_m * tiles_n, np.ceil(k / tile_k)
    divide = (depth >= LEAST_DEPTH) & (held[keep] <= MOST_SUMS_STREAMED)
    several, alike = tiles > slots, taking == 1
    # Who has one tile has nobody to take turns with.
    divide &= alike | several
    parts: list[tuple[int, Flag, Column]] = [
        (PLAIN, ~several & alike, slots),
        (PERSISTENT, several, slots),
        (STREAM_K, divide & (tiles % slots != 0), slots),
        (TWO_TILE, divide & several & (tiles % slots != 0), slots),
    ]
    most = np.minimum(np.floor(slots / tiles), np.floor(depth / 2))
    even, any_split = np.ones_like(most), np.minimum(most, MOST_SPLITS)
    for split in range(2, int(any_split.max(initial=1)) + 1):
        even = np.where((depth % split == 0) & (split <= most), split, even)
    parts.append((STREAM_K, divide & (even > 1) & (tiles * even != slots), tiles * even))
    uneven = divide & (any_split > 1) & (any_split != even) & (tiles * any_split != slots)
    parts.append((STREAM_K, uneven, tiles * any_split))
    many = any_split > TREE_PEERS
    parts.append((TREE, divide & many & (even > 1) & (tiles * even != slots), tiles * even))
    parts.append((TREE, divide & many & (tiles % slots != 0), slots))
    parts.append((SCATTER, divide & (even > 1), tiles * even))
    bands = [1, *(band for band in BANDS if band < m)]
    rows: list[tuple[Column, ...]] = []
    for kind, mask, grid in parts:
        for band in bands:
            chosen = mask & several & (tiles_m > band) & (tiles_n > 2) if band > 1 else mask
            if not chosen.any():
                continue
            columns = (tile_m, tile_n, tile_k, *cluster, taking, np.full_like(tiles, kind), grid)
            rows.append(tuple(c[chosen] for c in (*columns, np.full_like(tiles, band))))
    joined = [np.concatenate(column) for column in zip(*rows, strict=True)]
    same = np.ones_like(joined[0])
    extents = (same * m, same * n, same * k)
    turned = (same * problem.transpose_a, same * problem.transpose_b)
    table = Table(*extents, *turned, same * out_bytes, *joined)
    chosen = ~slow(table)
    return table.where(chosen) if chosen.any() else table


@cache
def _columns(c_bytes: int) -> tuple[Column, ...]:
    """The columns of `tilings`, and the accumulators of each."""
    found = np.array(tilings(c_bytes), np.float64)
    part = found[:, :2] / found[:, 3:5]
    held = [
        rows * columns / WARPGROUP if turns > 1 else sums(int(rows), int(columns))
        for (rows, columns), turns in zip(part, found[:, 6], strict=True)
    ]
    return (*found.T, np.array(held, np.float64))


def fallback() -> Plan:
    """A plan that serves every problem, if not fast."""
    return Plan((128, 128, UNIT_K))
