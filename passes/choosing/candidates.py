"""Candidates: the plans that are judged for a problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from coordgraph import Gemm
from coordgraph.tensors import dtype
from passes.base import Pass
from passes.choosing.constants import Constants
from passes.choosing.plan import Plan
from passes.choosing.schedules import (
    EACH,
    EVERY,
    FEWER,
    FULL,
    LAST,
    NONE,
    NOTHING,
    SCATTER,
    TREE,
    TURNSTILE,
    schedule_of,
)
from passes.choosing.shape import UNIT_K, Shape, along
from passes.choosing.table import Column, Flag, Table, extents
from passes.choosing.tilings import small_tiles, sums, tilings
from passes.data_parallel import DataParallel
from passes.lowering.hopper.division import MMA_M, WARPGROUP

__all__ = ["candidates", "chooseable", "fallback", "slow"]

FEW_TILE, LEAST_ROWS = 128, 48
MOST_SUMS_STREAMED, MOST_SUMS_TWICE = 144, 112
"""Accumulators of a workitem of plans that send and receive partial sums, and of those that have a
second main loop beside a reduce-scatter."""
GROUPED_ROWS = 128
"""Of a workgroup's part, at least, where groups part an axis."""
BANDS = (4, 8, 16)
LEAST_DEPTH = 4
"""Iterations of a tile that are worth being divided."""
MOST_SPLITS = 64
SLIVER = 8
"""Iterations of a piece, at least, where short ones are given to the neighbour."""
NARROWEST = 32
"""Elements of a box."""
OWNED: dict[str, float] = {**NOTHING, "owner": LAST}
"""Streamed tiles whose last piece is the owner's: workgroups wait for lower numbers alone."""
Values = Mapping[str, float | Column]


@dataclass(frozen=True)
class Kind:
    """A kind of schedule, the tilings that are tried with it, and their grids.

    Args:
        values: the schedule's columns; one number for all tilings, or one for each.
        tried: which tilings.
        grid: workgroups; 0 for as many as there are tiles.
    """

    values: Values
    tried: Flag
    grid: Column


@dataclass(frozen=True)
class Tiled:
    """A problem cut by every tiling that suits its size, as columns.

    Args:
        tiling: tile m, n, k, cluster m, n, k and turns.
        few: rows that every tile has, where they are few: then each column of B is read by one
            workgroup alone; else 0.
        held: accumulators of a workitem where tiles are streamed.
        small: pairs of columns: small tiles, 0 where there is none of that kind.
        slots: clusters that the device holds.
        products: of that size.
        counted: how many tiles there are is known, and `even`, that all are equally deep; else
            groups decide it.
        each: a workgroup for every tile is possible.
    """

    tiling: tuple[Column, ...]
    few: float
    held: Column
    small: tuple[tuple[Column, Column], ...]
    slots: Column
    products: float
    counted: bool
    even: bool
    each: bool
    tiles_m: Column
    tiles_n: Column
    depth: Column

    @cached_property
    def tiles(self) -> Column:
        """Of the output of all products."""
        return np.ceil(self.products * self.tiles_m * self.tiles_n)

    @cached_property
    def several(self) -> Flag:
        """Where a workgroup has more than one tile."""
        return self.tiles > self.slots

    @cached_property
    def rest(self) -> Column:
        """Tiles of the ragged wave."""
        return self.tiles % self.slots


def slow(table: Table) -> Flag:
    """Rows whose B, as it is, comes in boxes of 16 elements, which slow the copy engine.

    It was measured so against B given as its transpose: a fifth to a half slower.
    """
    found = table.turned_b == 0
    if found.any():
        found[found] = Shape(table.where(found)).box_n < NARROWEST
    return found


def crowded(table: Table, device: Constants) -> Flag:
    """Plans with a workgroup for every tile, and more tiles than the device holds workgroups."""
    shape = Shape(table)
    return (table.whole == EACH) & (shape.tiles > device.slots(shape.workgroups))


def unusual(table: Table) -> Flag:
    """Plans that are candidates only where all kinds are asked for, for measurements to judge."""
    shape = Shape(table)
    evenly = (table.whole == NONE) & (table.workgroups % shape.tiles == 0)
    uneven = (table.reduction == SCATTER) & ~evenly
    return uneven | (table.reduction == TURNSTILE) | (table.least_segment > 1)


def chooseable(table: Table, device: Constants) -> Flag:
    """Plans of kinds that may be chosen: neither slow, nor crowded, nor unusual."""
    return ~(slow(table) | crowded(table, device) | unusual(table))


def candidates(
    problem: Gemm,
    device: Constants,
    *,
    batches: int = 1,
    reads_c: bool = False,
    all_kinds: bool = False,
) -> Table:
    """Plans for a problem whose sizes are given, as a table without those that make no sense.

    Args:
        problem: with m, n and k.
        device: see `constants_of`.
        batches: products of a batch, or groups.
        reads_c: C is added.
        all_kinds: also schedules that the model never prefers, for measurements to judge them.
    """
    out_bytes = dtype(problem.out_dtype or problem.dtype).bytes
    c_bytes = out_bytes if reads_c else 0
    same = extents(problem, batches)
    cut = _cut(problem, same, device, c_bytes)
    kinds = [*_usual(cut), *_ragged(cut), *(_unusual(cut) if all_kinds else ())]
    kinds = [kind for kind in kinds if _is_taken(problem, kind, cut)]
    # In one wave the order matters to those who have no cluster: their GPC asks once for all.
    alone = cut.tiling[3] * cut.tiling[4] * cut.tiling[5] == 1
    wide = (cut.several | alone) & (cut.tiles_n > 2)
    bands = {1: True, **{band: wide & (cut.tiles_m > band) for band in BANDS}}
    parts: list[tuple[Kind, int, NDArray[np.intp]]] = []
    for kind in kinds:
        for band, suits in bands.items():
            chosen = (kind.tried & suits).nonzero()[0]
            if len(chosen):
                parts.append((kind, band, chosen))
    counts = [len(chosen) for _, _, chosen in parts]

    def spread(values: Sequence[float | Column]) -> Column:
        """A part's number, or a column of all tilings, for each of its rows."""
        if not any(isinstance(value, np.ndarray) for value in values):
            return np.repeat(np.array(values, np.float64), counts)
        pairs = zip(values, parts, strict=True)
        return np.concatenate([_some(value, chosen) for value, (_, _, chosen) in pairs])

    which = np.concatenate([chosen for _, _, chosen in parts])
    names = ("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "cluster_k", "turns")
    found = {name: column[which] for name, column in zip(names, cut.tiling, strict=True)}
    for name in parts[0][0].values:
        found[name] = spread([kind.values[name] for kind, _, _ in parts])
    found["workgroups"] = spread([kind.grid for kind, _, _ in parts])
    found["width"] = spread([band for _, band, _ in parts])
    same |= {"turned_a": problem.transpose_a, "turned_b": problem.transpose_b}
    same |= {"out_bytes": out_bytes, "c_bytes": c_bytes}
    table = Table(**{name: np.full(len(which), float(v)) for name, v in same.items()}, **found)
    kept = ~slow(table)
    return table.where(kept) if kept.any() and not kept.all() else table


def _some(value: float | Column, chosen: NDArray[np.intp]) -> Column:
    return value[chosen] if isinstance(value, np.ndarray) else np.full(len(chosen), float(value))


def _is_taken(problem: Gemm, kind: Kind, cut: Tiled) -> bool:
    """Whether graphs take schedules of a kind: those of single products and batches take all."""
    tried = kind.tried.nonzero()[0][:1]
    if not problem.grouped or not len(tried):
        return True
    m, n, k = (int(column[tried[0]]) for column in cut.tiling[:3])
    numbers = {name: float(_some(value, tried)[0]) for name, value in kind.values.items()}
    return _takes(replace(problem, m=None, n=None, k=None), schedule_of(numbers, (m, n, k)))


@cache
def _takes(gemm: Gemm, schedule: Pass) -> bool:
    # What groups refuse does not depend on the tile.
    return schedule.why_not(gemm.graph(fallback().tile)) is None


def _cut(problem: Gemm, size: Mapping[str, float], device: Constants, c_bytes: int) -> Tiled:
    """The tilings that suit a size. Where C is read, its elements have so many bytes."""
    m, n, k = (size[axis] for axis in "mnk")
    known, held, small = _columns(c_bytes)
    few = m if m <= FEW_TILE else 0
    most = MMA_M
    if problem.ragged("m"):
        few, most = 0, GROUPED_ROWS  # on average: others have many
    keep = (known[0] >= (few or LEAST_ROWS)) & ((known[0] < 2 * m) | (known[0] <= most))
    keep &= known[1] < 2 * max(n, UNIT_K)
    if problem.grouped:
        # What the end of a group takes is in no term. Low parts, and warpgroups that take turns,
        # were measured to take up to 1.5 times what is predicted; the others keep to their order.
        part_m, part_n = known[0] / known[3], known[1] / known[4]
        keep &= (known[6] == 1) & (part_m >= GROUPED_ROWS)
        if problem.ragged("k"):  # so were boxes with rows of less than a cache line, 1.15 times
            keep &= (part_m % UNIT_K == 0) & (part_n % UNIT_K == 0)
    tiling = tuple(column[keep] for column in known)
    tile_m, tile_n, tile_k, cluster_m, cluster_n, cluster_k, _ = tiling
    return Tiled(
        tiling,
        few,
        held[keep],
        tuple((one[keep], other[keep]) for one, other in small),
        device.slots(cluster_m * cluster_n * cluster_k),
        size["l"],
        not problem.ragged("m"),
        not problem.ragged("k"),
        not problem.grouped or _takes(replace(problem, m=None, n=None, k=None), DataParallel()),
        along(m, tile_m, size["ragged_m"]),
        along(n, tile_n),
        np.ceil(along(k, tile_k, size["ragged_k"])),
    )


def _usual(cut: Tiled) -> Iterator[Kind]:
    """Whole tiles, and streamed ones on the grids that suit them."""
    tiles, depth, slots, several = cut.tiles, cut.depth, cut.slots, cut.several
    alike = cut.tiling[6] == 1
    if cut.each:
        yield Kind({**NOTHING, "whole": EACH}, ~several & alike, np.zeros_like(tiles))
    yield Kind({**NOTHING, "whole": EVERY}, several if cut.each else several | alike, slots)
    # Who has one tile has nobody to take turns with.
    divide = _divisible(cut) & (alike | several)
    stream, ragged = {**OWNED, "whole": NONE}, cut.rest > 0
    scatter = {**NOTHING, "whole": NONE, "reduction": SCATTER}
    yield Kind(stream, divide & ragged, slots)
    if not cut.counted:
        return
    most = np.minimum(np.floor(slots / tiles), np.floor(depth / 2))
    even, any_split = np.ones_like(most), np.minimum(most, MOST_SPLITS)
    for split in range(2, int(any_split.max(initial=1)) + 1):
        even = np.where((depth % split == 0) & (split <= most), split, even)
    evenly = divide & (even > 1)
    yield Kind(stream, evenly & (tiles * even != slots), tiles * even)
    uneven = divide & (any_split > 1) & (any_split != even) & (tiles * any_split != slots)
    yield Kind(stream, uneven, tiles * any_split)
    yield Kind(scatter, evenly, tiles * even)


def _divisible(cut: Tiled) -> Flag:
    """Where tiles may be streamed.

    Shares of iterations are equal, but where groups part k those of short ones end many more tiles
    than others, and how many is not known: it was measured to be up to three times as slow.
    """
    return cut.even & (cut.depth >= LEAST_DEPTH) & (cut.held <= MOST_SUMS_STREAMED)


def _ragged(cut: Tiled) -> Iterator[Kind]:
    """Whole tiles in full waves, and what becomes of the ragged one."""
    ragged = cut.several & (cut.rest > 0)
    divide = ragged & _divisible(cut)
    yield Kind({**OWNED, "whole": FEWER}, divide, cut.slots)
    # With fewer tiles in the ragged wave each would have three pieces or more.
    yield Kind({**OWNED, "whole": FULL}, divide & (2 * cut.rest >= cut.slots), cut.slots)
    for small_m, small_n in cut.small:
        pieces = cut.tiling[0] * cut.tiling[1] / np.maximum(small_m * small_n, 1)
        sooner = (
            (small_m > 0) & (small_m >= cut.few) & (np.ceil(cut.rest * pieces / cut.slots) < pieces)
        )
        values = {**NOTHING, "whole": FULL, "small_m": small_m, "small_n": small_n}
        yield Kind(values, ragged & sooner, cut.slots)


def _unusual(cut: Tiled) -> Iterator[Kind]:
    """What others are predicted to beat: other reductions, few tiles in many pieces, no slivers."""
    alike, slots = cut.tiling[6] == 1, cut.slots
    divide = _divisible(cut) & (cut.rest > 0)
    deep = cut.depth >= 2 * SLIVER
    for whole, streamed in ((NONE, cut.tiles), (FEWER, slots + cut.rest), (FULL, cut.rest)):
        # Who has one tile has nobody to take turns with, and no wave of whole ones.
        some = divide & (cut.several | (alike if whole == NONE else False))
        owned = {**OWNED, "whole": whole}
        yield Kind({**owned, "least_segment": SLIVER}, some & deep, slots)
        if whole == FULL:
            yield Kind(owned, some & (2 * cut.rest < slots), slots)
        # Of two pieces one goes to the other, whatever the reduction.
        several_pieces = some & (2 * streamed < slots)
        yield Kind({**owned, "reduction": TURNSTILE}, several_pieces, slots)
        yield Kind({**owned, "reduction": TREE}, several_pieces, slots)
        # Those that divide tiles evenly are usual.
        room = alike & (slots % cut.tiles > 0 if whole == NONE else cut.held <= MOST_SUMS_TWICE)
        scatter = {**NOTHING, "whole": whole, "reduction": SCATTER}
        yield Kind(scatter, some & room, slots)


@cache
def _columns(
    c_bytes: int,
) -> tuple[tuple[Column, ...], Column, tuple[tuple[Column, Column], ...]]:
    """The columns of `tilings`, the accumulators of each, and small tiles; see `Tiled`."""
    known = tilings(c_bytes)
    found = np.array(known, np.float64)
    part = found[:, :2] / found[:, 3:5]
    held = [
        rows * columns / WARPGROUP
        if turns > 1
        else sums(int(rows), int(columns), streamed=True, c_bytes=c_bytes)
        for (rows, columns), turns in zip(part, found[:, 6], strict=True)
    ]
    # Beside C no tiles of two shapes were tried.
    small = [() if c_bytes else small_tiles(tiling) for tiling in known]
    most = max(map(len, small))
    filled = np.array([[*some, *[(0, 0)] * (most - len(some))] for some in small], np.float64)
    pairs = tuple((filled[:, i, 0], filled[:, i, 1]) for i in range(most))
    return tuple(found.T), np.array(held, np.float64), pairs


def fallback(persistent: bool = False) -> Plan:
    """A plan that serves every problem, if not fast; groups ask for a persistent one."""
    return Plan((128, 128, UNIT_K), pipeline=str(DataParallel(persistent=persistent)))
