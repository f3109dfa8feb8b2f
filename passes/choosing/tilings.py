"""Tilings: macro tiles and clusters that can be lowered, and the small tiles that go with them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

from passes.choosing.shape import UNIT_K
from passes.lowering.hopper.division import MMA_M, WARPGROUP, most_alone, swapped
from passes.lowering.hopper.lower import MOST_ACCUMULATORS, MOST_BESIDE_C

__all__ = ["Tiling", "small_tiles", "sums", "tilings"]

Tiling = tuple[int, int, int, int, int, int, int]
"""Tile m, n, k, cluster m, n, k, and warpgroups that take turns."""

WIDTHS = {
    16: (64, 128, 192, 256),
    32: (64, 128, 256),
    48: (128, 256),
    64: (*range(48, 257, 16),),
    80: (128, 256),
    96: (128, 256),
    112: (128, 256),
    144: (128, 256),
    160: (128, 256),
    176: (128, 256),
    128: (48, *range(64, 257, 16), 288, 320),
    192: (64, 96, 128, 160, 192),
    256: (64, 96, 112, 128, 144, 160, 192),
    320: (96, 128),
}
"""Of a workgroup's part of a tile, by its rows: those that were measured."""
TURNS = (*((128, columns) for columns in range(96, 193, 16)), (64, 256))
"""Rows and columns of the parts with which warpgroups take turns."""
DEEP = {16: (2, 4), 32: (2, 4), 64: (2,)}
"""Iterations of more than one row of shared memory, by rows: so that enough of B is under way."""
DEEPEST_COLUMNS = 64
"""With which stages that deep are still many."""
NEVER = 1 << 30
"""More accumulators than there are."""


@cache
def tilings(c_bytes: int = 0) -> tuple[Tiling, ...]:
    """Tiles and clusters that can be lowered; where C is read, its elements have so many bytes."""
    return tuple(dict.fromkeys(_tilings(c_bytes)))


def _tilings(c_bytes: int) -> Iterator[Tiling]:
    for rows, widths in WIDTHS.items():
        for columns in widths:
            left_b = swapped(rows, columns, 1)
            most = MOST_BESIDE_C[c_bytes, bool(left_b)] if c_bytes else MOST_ACCUMULATORS
            if sums(rows, columns, c_bytes=c_bytes) > most:
                continue
            yield from _clusters(rows, columns, turns=1)
            if rows <= 64 or columns <= 64:
                yield rows, columns, 2 * UNIT_K, 1, 1, 2, 1
            for units in DEEP.get(rows, ()):
                if units == 2 or columns <= DEEPEST_COLUMNS:
                    yield rows, columns, units * UNIT_K, 1, 1, 1, 1
    for rows, columns in TURNS:
        if not c_bytes or rows * columns // WARPGROUP <= MOST_BESIDE_C[c_bytes, False]:
            yield from _clusters(rows, columns, turns=2)


def _clusters(rows: int, columns: int, turns: int) -> Iterator[Tiling]:
    yield rows, columns, UNIT_K, 1, 1, 1, turns
    if rows >= 64:
        yield 2 * rows, columns, UNIT_K, 2, 1, 1, turns
        yield rows, 2 * columns, UNIT_K, 1, 2, 1, turns


def small_tiles(tiling: Tiling) -> tuple[tuple[int, int], ...]:
    """Halves of a macro tile, and its quarters, that can be lowered beside it."""
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
            fits = part[0] % MMA_M == 0 and part[1] % 16 == 0
        else:
            # Both shapes have the same warpgroups: two where one has no room for the larger.
            team = _team(rows, columns)
            fits = sums(*part, team=team) < NEVER and (team == 1 or _halved(*part))
        if fits:
            found.append((tile[0] // across, tile[1] // along))
    return tuple(found)


def _sides(rows: int, columns: int) -> tuple[int, int]:
    """Rows of the left operand, and columns of the right one."""
    return (columns, rows) if swapped(rows, columns, 1) else (rows, columns)


def _halved(rows: int, columns: int) -> bool:
    """Whether two warpgroups can divide a part."""
    left, right = _sides(rows, columns)
    return left % (2 * MMA_M) == 0 or right % 32 == 0


def _team(rows: int, columns: int, *, streamed: bool = False, c_bytes: int = 0) -> int:
    """Warpgroups that divide a part."""
    alone = most_alone(streamed, c_bytes, swapped(rows, columns, 1))
    return 1 if rows * columns <= alone * WARPGROUP else 2


def sums(
    rows: int,
    columns: int,
    team: int | None = None,
    *,
    streamed: bool = False,
    c_bytes: int = 0,
) -> int:
    """Accumulators of a workitem; more than any limit where no division is possible.

    Args:
        rows, columns: of a workgroup's part.
        team: warpgroups that divide it, where another tile decides that.
        streamed: partial sums come and go.
        c_bytes: of an element of C where it is added.
    """
    left, right = _sides(rows, columns)
    consumers = team or _team(rows, columns, streamed=streamed, c_bytes=c_bytes)
    share = right if left % (2 * MMA_M) == 0 or consumers == 1 else right // 2
    pieces = -(-share // 256)
    if left % MMA_M or right % 16 or share % 16 or share % (16 * pieces):
        return NEVER
    return rows * columns // consumers // WARPGROUP
