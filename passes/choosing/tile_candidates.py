"""Macro tiles and clusters (tilings) that can be lowered to sm_90a, and small tiles for them.

A CTA's part of a tile is the macro tile divided by the cluster, along m and n.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Literal

from passes.choosing.kernel_shape import UNIT_K
from passes.lowering.sm_90a.division import (
    MMA_COLUMNS,
    MMA_M,
    MOST_COLUMNS,
    WARPGROUP,
    halved_columns,
    most_alone,
    swapped,
)
from passes.lowering.sm_90a.registers import accumulators_beside

__all__ = ["WIDE", "KMajor", "More", "Tiling", "small_tiles", "sums", "tilings"]

Tiling = tuple[int, int, int, int, int, int, int]
"""Type: a macro tile and its cluster, as seven numbers.

The numbers are the extents of the tile along m, n and k; the numbers of CTAs of the cluster along
m, n and k; and the number of pingpong warpgroups (1 if warpgroups are cooperative).
"""

LEFT_A_WIDTHS = {
    64: (*range(48, 257, 16), *range(40, 128, 16)),
    128: (*range(48, 257, 16), *range(72, 128, 16), 288, 320),
    192: (*range(64, 193, 16), 224),
    256: (*range(64, 193, 16), *range(72, 128, 16)),
    320: (96, 128),
}
"""Extents of a CTA's part of a tile that are tried with A as the left operand of wgmma: for each
number of rows, the numbers of columns. With 64 rows and 128, 192 or 256 columns B is the left
operand (see `swapped`). Odd multiples of 8 above 120 are left out: those up to 184
were measured to be up to 17 % slower than the next multiple of 16 (H200, 2026-11-24). With 320
rows, each of two warpgroups has half of the columns. Widths whose half is an odd multiple of 8 are
left out there, since 320x112 was measured to be 26 % slower than predicted (H200, 2026-11-27)."""
LEFT_B_HEIGHTS = {
    128: (*range(72, 256, 8), 48),
    192: (*range(72, 120, 8), *range(112, 193, 16)),
    256: (*range(72, 192, 8), 48),
    320: (*range(80, 145, 16),),
    384: (*range(72, 128, 8),),
}
"""Extents of a CTA's part of a tile that are tried with B as the left operand of wgmma: for each
number of columns, the numbers of rows. Multiples of 64 are left out, because A is the left operand
then."""
SLIM_HEIGHTS = {64: (*range(72, 217, 8),)}
"""Further extents of a CTA's part of a tile, with B as the left operand, that are tried if D is
small: for each number of columns, the numbers of rows. A single warpgroup multiplies such a part.
On 139 of 716 sizes (H200, 2026-11-28) the fastest plan with such a tile takes at least 1 % less
time than the fastest other one, 15 % at most; D has up to 1.5 million elements there. With taller
tiles of 64 columns no plan does."""
FEW_ROWS = {8: (64, 128, 192, 256), 16: (64, 128, 192, 256), 32: (64, 128, 256)}
"""Extents of a CTA's part of a tile that are tried if m is small: for each number of rows, the
numbers of columns."""
TURNS = (
    *((128, columns) for columns in range(96, 193, 16)),
    (64, 256),
    *((rows, 128) for rows in range(72, 192, 8) if rows % MMA_M),
)
"""Sizes (rows, columns) of a CTA's part of a tile that are tried with pingpong warpgroups, which
alternate between tiles."""
LARGE_CLUSTERS = ((2, 2), (2, 4), (4, 2), (1, 4), (4, 1), (1, 8), (8, 1))
"""(CTAs along m, CTAs along n) of clusters of more than two CTAs. Clusters of these sizes speed up
products that have few output tiles and whose time is limited by the rate of the L2 cache; see
`passes.choosing.exclusions.far`. `benchmarks sweep --clusters` measures plans with these clusters
for other products too."""
LARGE_CLUSTER_WIDTHS = {
    **dict.fromkeys(range(56, 249, 8), (128,)),
    48: (64, 128),
    64: (*range(32, 193, 16), 256),
    128: (*range(32, 193, 16), 256),
    192: (64, 96, 128),
    256: (64, 96, 128),
}
"""Extents of a CTA's part of a tile that are tried with `LARGE_CLUSTERS`: for each number of rows,
the numbers of columns."""
TUNED_CLUSTER_WIDTHS = {
    **dict.fromkeys(range(56, 249, 8), (192, 256)),
    48: (192, 256),
    128: (*range(208, 257, 16), 288, 320),
    192: (*range(112, 193, 16), 224),
    256: (*range(80, 193, 16),),
    320: (96, 128),
}
"""Further extents of a CTA's part of a tile that `tune=True` tries with `LARGE_CLUSTERS`: for each
number of rows, the numbers of columns. The cost model alone does not choose such plans."""
NARROW_WIDTHS = {64: (16, 32)}
"""Further extents of a CTA's part of a tile that are tried for batch-invariant products: for each
number of rows, the numbers of columns. If m and n are small, such tiles give work to more
workgroups. The usual way to do that, dividing k, is not possible if the product's fixed order of
additions has one segment of k."""
NARROW_DEPTHS = (1, 2, 4)
"""Extents of macro tiles along k that are tried with `NARROW_WIDTHS`, as numbers of 128-byte rows
of shared memory."""
DEEP = {8: (2, 4), 16: (2, 4), 32: (2, 4), 64: (2,)}
"""Extents of macro tiles along k that are tried if a CTA's part of a tile has few rows: for each
number of rows, the extents along k, as numbers of 128-byte rows of shared memory. With few rows, a
large extent along k keeps enough bytes of B in flight.
"""
DEEPEST_COLUMNS = 64
"""Largest number of columns of a CTA's part of a tile for which an extent along k of four 128-byte
rows (see `DEEP`) is tried."""
MOST_DIVIDED = 320
"""Largest sum of rows and columns of a CTA's part of a tile for which clusters that divide k are
tried: two stages of twice the extent along k fit in shared memory then, beside the sums."""
WIDE = 16
"""The number of columns of wgmma's result in a small tile is a multiple of WIDE, and so is that of
each wgmma instruction if several instructions multiply the columns of a warpgroup. If B is
contiguous along n, plans with an odd multiple of 8 columns are not tried: TMA loads the next
multiple of WIDE columns anyway, and such plans were measured to be 3 to 14 % slower (H200,
2026-11-24)."""
More = Literal["large clusters", "narrow", "slim", "tuned"]
"""Type: a name for further tilings; see `tilings`."""
KMajor = tuple[bool, bool]
"""Type: whether A, and whether B, is contiguous along k."""
NEVER = 1 << 30
"""Number of accumulators of a thread that `sums` returns if warpgroups cannot divide the tile. The
number is more than any thread can have, so the tile is not used."""


@cache
def tilings(
    c_bytes: int = 0,
    row: int = UNIT_K,
    *,
    k_major: KMajor = (True, True),
    more: frozenset[More] = frozenset(),
) -> tuple[Tiling, ...]:
    """The macro tiles and clusters of candidate plans, all of which can be lowered to sm_90a.

    Args:
        c_bytes: bytes of the widest element that the epilogue reads for every element of D, or 0.
        row: number of elements of A and B in a 128-byte row of shared memory.
        k_major: whether A, and whether B, is contiguous along k.
        more: which further tilings to add. `large clusters` are `LARGE_CLUSTERS`, `narrow` are
            `NARROW_WIDTHS`, `slim` are `SLIM_HEIGHTS`, also with large clusters if these are
            added, and `tuned`, together with `large clusters`, `TUNED_CLUSTER_WIDTHS`.
    """

    def fits(parts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        return (part for part in parts if _fits(*part, row, c_bytes, k_major))

    found = [*_divided(fits(_parts()), row), *_pingpong(c_bytes, row)]
    if "large clusters" in more:
        found += _large_clusters(fits(_listed(LARGE_CLUSTER_WIDTHS)), row)
    if "slim" in more:
        slim = [*fits(_left_b(SLIM_HEIGHTS))]
        found += _divided(slim, row)
        if "large clusters" in more:
            found += _large_clusters(slim, row)
    if "narrow" in more:
        found += (
            (*part, units * row, 1, 1, 1, 1)
            for part in _listed(NARROW_WIDTHS)
            for units in NARROW_DEPTHS
        )
    if more >= {"tuned", "large clusters"}:
        found += _large_clusters(fits(_listed(TUNED_CLUSTER_WIDTHS)), row)
    return tuple(dict.fromkeys(found))


def _listed(widths: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Yield (rows, columns) for each number of rows and each of its numbers of columns."""
    for rows, several in widths.items():
        yield from ((rows, columns) for columns in several)


def _large_clusters(parts: Iterable[tuple[int, int]], row: int) -> Iterator[Tiling]:
    """Yield the tilings with clusters of more than two CTAs.

    Args:
        parts: (rows, columns) of a CTA's part of a tile.
        row: number of elements of A and B in a 128-byte row of shared memory.
    """
    for rows, columns in parts:
        for m, n in LARGE_CLUSTERS:
            yield m * rows, n * columns, row, m, n, 1, 1
            # Small parts are also tried with twice the extent along k, so that each TMA box brings
            # more bytes.
            if rows * columns <= 64 * 96:
                yield m * rows, n * columns, 2 * row, m, n, 1, 1


def _divided(parts: Iterable[tuple[int, int]], row: int) -> Iterator[Tiling]:
    """Yield the tilings with one CTA and with two, whose warpgroups are cooperative.

    Args:
        parts: (rows, columns) of a CTA's part of a tile.
        row: number of elements of A and B in a 128-byte row of shared memory.
    """
    for rows, columns in parts:
        yield from _clusters(rows, columns, row, turns=1)
        if min(rows, columns) <= 64 and rows + columns <= MOST_DIVIDED:
            yield rows, columns, 2 * row, 1, 1, 2, 1
        for units in DEEP.get(rows, ()):
            if units == 2 or columns <= DEEPEST_COLUMNS:
                yield rows, columns, units * row, 1, 1, 1, 1


def _pingpong(c_bytes: int, row: int) -> Iterator[Tiling]:
    """Yield the tilings with pingpong warpgroups; the arguments are those of `tilings`."""
    for rows, columns in TURNS:
        left_b = swapped(rows, columns, 2)
        right = rows if left_b else columns
        if right % WIDE and row > UNIT_K:
            continue
        if rows * columns // WARPGROUP <= accumulators_beside(c_bytes, left_b):
            yield from _clusters(rows, columns, row, turns=2)


def _parts() -> Iterator[tuple[int, int]]:
    """Yield (rows, columns) of a CTA's part of a tile that are tried without pingpong."""
    yield from _listed(FEW_ROWS)
    yield from _listed(LEFT_A_WIDTHS)
    yield from _left_b(LEFT_B_HEIGHTS)


def _left_b(heights: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Yield (rows, columns) of parts of a tile for which B is the left operand of wgmma.

    Args:
        heights: for each number of columns, numbers of rows. Multiples of 64 are left out, because
            A is the left operand there.
    """
    for columns, several in heights.items():
        yield from ((rows, columns) for rows in several if rows % MMA_M)


def _fits(rows: int, columns: int, row: int, c_bytes: int, k_major: KMajor) -> bool:
    """Whether wgmma has an instruction for a CTA's part of a tile, and threads have the registers.

    Args:
        rows, columns: extents of a CTA's part of a tile along m and n, in elements.
        row: number of elements of A and B in a 128-byte row of shared memory.
        c_bytes: bytes of the widest element that the epilogue reads for every element of D, or 0.
        k_major: whether A, and whether B, is contiguous along k.
    """
    left_b = swapped(rows, columns, 1)
    right = rows if left_b else columns
    if right % WIDE and row > UNIT_K:
        return False  # the columns of wgmma on 8-bit elements are a multiple of 16
    held = sums(rows, columns, c_bytes=c_bytes, row=row, k_major=k_major)
    return held <= accumulators_beside(c_bytes, left_b)


def _clusters(rows: int, columns: int, row: int, turns: int) -> Iterator[Tiling]:
    """The tilings with one CTA and with clusters of two CTAs, for a CTA's part of a tile.

    No cluster along n is tried with an odd multiple of 8 columns, because it was measured to be
    slower.

    Args:
        rows, columns: extents of a CTA's part of a tile along m and n, in elements.
        row: extent of the tile along k, in elements.
        turns: number of pingpong warpgroups; 1 if they are cooperative.
    """
    yield rows, columns, row, 1, 1, 1, turns
    if rows >= 64:
        yield 2 * rows, columns, row, 2, 1, 1, turns
        if columns % WIDE == 0:
            yield rows, 2 * columns, row, 1, 2, 1, turns


def small_tiles(
    tiling: Tiling, row: int = UNIT_K, k_major: KMajor = (True, True)
) -> tuple[tuple[int, int], ...]:
    """Each shape (rows, columns) of small tiles into which `HeterogeneousTiles` can divide a tile.

    A small tile is a half or a quarter of the macro tile.

    Args:
        tiling: the macro tile and its cluster.
        row: number of elements of A and B in a 128-byte row of shared memory.
        k_major: whether A, and whether B, is contiguous along k.
    """
    tile, cluster, turns = tiling[:2], tiling[3:5], tiling[6]
    if tiling[5] > 1:
        return ()
    rows, columns = (extent // count for extent, count in zip(tile, cluster, strict=True))
    found: list[tuple[int, int]] = []
    for across, along in product((1, 2), (1, 2)):
        if across * along == 1 or rows % across or columns % along:
            continue
        part = rows // across, columns // along
        if turns > 1:
            fits = part[0] % MMA_M == 0 and part[1] % WIDE == 0
        else:
            # A CTA has one warpgroup, or two if one has too few registers for the CTA's part of a
            # macro tile. The same warpgroups multiply small tiles, so if there are two, they must
            # be able to divide a small tile.
            team = _team(rows, columns)
            fits = sums(*part, team=team, row=row, k_major=k_major) < NEVER
            fits = fits and (team == 1 or _halved(*part, row, k_major))
            fits = fits and _sides(*part)[1] % WIDE == 0
        if fits:
            found.append((tile[0] // across, tile[1] // along))
    return tuple(found)


def _sides(rows: int, columns: int) -> tuple[int, int]:
    """The extents of a CTA's part of a tile along the rows and along the columns of wgmma's result.

    The result is (rows, columns), or (columns, rows) if wgmma's left operand is B and its right
    operand is A.
    """
    return (columns, rows) if swapped(rows, columns, 1) else (rows, columns)


def _halved(rows: int, columns: int, row: int, k_major: KMajor) -> bool:
    """Whether two warpgroups can divide a CTA's part of a tile, `rows` x `columns` elements."""
    left, right = _sides(rows, columns)
    return left % (2 * MMA_M) == 0 or right % _halved_columns(rows, columns, row, k_major) == 0


def _halved_columns(rows: int, columns: int, row: int, k_major: KMajor) -> int:
    """The number that must divide wgmma's columns so that each of two warpgroups gets half of them.

    Args:
        rows, columns: extents of a CTA's part of a tile along m and n, in elements.
        row: number of elements of A and B in a 128-byte row of shared memory.
        k_major: whether A, and whether B, is contiguous along k.
    """
    right_a = swapped(rows, columns, 1)
    return halved_columns(k_major[0 if right_a else 1], 1 if row > UNIT_K else 2)


def _team(rows: int, columns: int, *, streamed: bool = False, c_bytes: int = 0) -> int:
    """Number of cooperative warpgroups that a CTA's part of a tile is divided among.

    Args:
        rows, columns: extents of a CTA's part of a tile along m and n, in elements.
        streamed: whether workgroups send and receive partial sums.
        c_bytes: bytes of the widest element that the epilogue reads for every element of D, or 0.
    """
    alone = most_alone(streamed, c_bytes, swapped(rows, columns, 1))
    return 1 if rows * columns <= alone * WARPGROUP else 2


def sums(
    rows: int,
    columns: int,
    team: int | None = None,
    *,
    streamed: bool = False,
    c_bytes: int = 0,
    row: int = UNIT_K,
    k_major: KMajor = (True, True),
) -> int:
    """Number of accumulators of a thread; NEVER if warpgroups cannot divide the part of the tile.

    Args:
        rows, columns: extents of a CTA's part of a tile along m and n, in elements.
        team: number of warpgroups, if another tile of the kernel determines that number; None if
            this tile does.
        streamed: whether workgroups send and receive partial sums.
        c_bytes: bytes of the widest element that the epilogue reads for every element of D, or 0.
        row: number of elements of A and B in a 128-byte row of shared memory.
        k_major: whether A, and whether B, is contiguous along k.
    """
    left, right = _sides(rows, columns)
    consumers = team or _team(rows, columns, streamed=streamed, c_bytes=c_bytes)
    divided = left % (2 * MMA_M) != 0 and consumers > 1
    share = right // 2 if divided else right
    pieces = -(-share // MOST_COLUMNS)
    halved = _halved_columns(rows, columns, row, k_major)
    if left % MMA_M or right % MMA_COLUMNS or (divided and right % halved):
        return NEVER
    if pieces > 1 and share % (WIDE * pieces):
        return NEVER
    return rows * columns // consumers // WARPGROUP
