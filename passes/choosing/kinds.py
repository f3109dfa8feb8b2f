"""`Kind`: a candidate schedule, with the tilings (tile and cluster) and grids of its plans.

`passes.choosing.candidates` makes the usual kinds; functions of this module make the kinds for
tuning, for measurements, for `k_order=interleaved` and for batch-invariant products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from passes.base import Pass
from passes.choosing.plan_table import Column, Flag
from passes.choosing.summation_order import split_schedule
from passes.choosing.tuned_schedules import INTERLEAVED, SLIVER, TUNED
from passes.schedules.hybrid_stream_k import HybridStreamK
from passes.schedules.split_k import SplitK
from passes.schedules.stream_k import StreamK
from passes.schedules.two_tile_stream_k import TwoTileStreamK

__all__ = [
    "Kind",
    "Tiled",
    "divisible",
    "interleaved_kinds",
    "pinned_kinds",
    "tuned_kinds",
    "unusual_kinds",
]

MOST_SUMS_STREAMED, MOST_SUMS_TWICE = 144, 112
"""Largest numbers of accumulators of a thread. MOST_SUMS_STREAMED: for plans whose workgroups send
and receive partial sums. MOST_SUMS_TWICE: for plans with a reduce-scatter and a second main
loop."""
LEAST_DEPTH = 4
"""Smallest number of main loop iterations of an output tile that is divided along k."""
MOST_SPLITS = 64
"""Largest number of workgroups among which one tile is divided along k."""
SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
"""Numbers of workgroups per output tile that `tune=True` tries, besides those that follow from
`split_grids`."""


@dataclass(frozen=True)
class Kind:
    """A schedule, its candidate tilings (tile and cluster), and the grid for each tiling.

    Args:
        schedule: the schedule, with options for the macro tile `COUNTED_TILE`, not for that of the
            tiling.
        tried: for each tiling, whether the plan with this tiling is a candidate for the cost model.
        grid: for each tiling, the number of workgroups; 0 if the schedule decides it.
    """

    schedule: Pass
    tried: Flag
    grid: Column


@dataclass(frozen=True)
class Tiled:
    """A problem with every tiling that suits its size, as columns with one entry per tiling.

    Args:
        tiling: columns of tile m, n, k, cluster m, n, k, and the number of pingpong warpgroups.
        few: the m of the problem if one row of tiles covers m, so that each column of B is read by
            one workgroup only; else 0.
        held: number of accumulators of a thread if workgroups send and receive partial sums.
        small: for each number of small tiles in a macro tile, along m and n: a column that says
            which tilings can have such small tiles (see `HeterogeneousTiles`).
        slots: number of clusters that are resident on the device at the same time.
        products: number of products of a batch, or of groups.
        counted: whether the host knows the number of tiles at the launch; False if groups divide m.
        even: whether all tiles have the same number of iterations; False if groups divide k.
        each: whether a schedule with one workgroup for every tile can be applied to the problem.
        tiles_m, tiles_n: numbers of output tiles of one product along m and n.
        depth: number of iterations of an output tile.
    """

    tiling: tuple[Column, ...]
    few: float
    held: Column
    small: Mapping[tuple[int, int], Flag]
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
        """Number of output tiles of all products together."""
        return np.ceil(self.products * self.tiles_m * self.tiles_n)

    @cached_property
    def alone(self) -> Flag:
        """For each tiling, whether one CTA computes a macro tile, not a cluster of several."""
        cluster_m, cluster_n, cluster_k = self.tiling[3:6]
        return cluster_m * cluster_n * cluster_k == 1

    @cached_property
    def several(self) -> Flag:
        """For each tiling, whether there are more output tiles than resident clusters."""
        return self.tiles > self.slots

    @cached_property
    def split_grids(self) -> tuple[Column, ...]:
        """Two columns of grid sizes that divide every tile among several resident workgroups.

        The first is the largest grid in which every workgroup has equally many iterations; if there
        is no such grid, it is the number of tiles. The second is the largest grid in which every
        tile has equally many workgroups; it is 0 if it equals the first.
        """
        most = np.minimum(np.floor(self.slots / self.tiles), np.floor(self.depth / 2))
        even, any_split = np.ones_like(most), np.minimum(most, MOST_SPLITS)
        for split in range(2, int(any_split.max(initial=1)) + 1):
            even = np.where((self.depth % split == 0) & (split <= most), split, even)
        return self.tiles * even, np.where(any_split != even, self.tiles * any_split, 0)

    @cached_property
    def other_split_grids(self) -> tuple[Column, ...]:
        """Further grid sizes that divide every output tile among several workgroups.

        Each column has one grid size for each tiling; 0 if that size does not suit the tiling.
        """
        most = np.minimum(np.floor(self.slots / self.tiles), np.floor(self.depth / 2))
        grids = (self.tiles * split for split in SPLITS if (split <= most).any())
        usual = *self.split_grids, self.slots
        return tuple(
            np.where(
                (grid <= self.tiles * most) & np.all([grid != each for each in usual], axis=0),
                grid,
                0,
            )
            for grid in grids
        )

    @cached_property
    def rest(self) -> Column:
        """Number of output tiles in the last wave if the wave is not full; else 0."""
        return self.tiles % self.slots


def divisible(cut: Tiled) -> Flag:
    """For each tiling, whether tiles may be divided along k among workgroups.

    Tiles may not be divided if groups have their own k. Workgroups would get equal numbers of
    iterations, but a workgroup with short groups would finish many more tiles than others, and the
    cost model does not know how many. Plans that divide tiles of such groups were measured to be up
    to three times as slow as others.
    """
    return cut.even & (cut.depth >= LEAST_DEPTH) & (cut.held <= MOST_SUMS_STREAMED)


def unusual_kinds(cut: Tiled) -> Iterator[Kind]:
    """Yield Stream-K plans that the cost model never prefers.

    An example is a plan with `least_segment`, which excludes segments of few iterations.
    """
    alike, slots = cut.tiling[6] == 1, cut.slots
    divide = divisible(cut) & (cut.rest > 0)
    deep = cut.depth >= 2 * SLIVER
    for schedule, streamed in (
        (StreamK(owner="last"), cut.tiles),
        (TwoTileStreamK(owner="last"), slots + cut.rest),
        (HybridStreamK(owner="last"), cut.rest),
    ):
        # Two-tile and hybrid Stream-K compute waves of whole tiles, and pingpong warpgroups
        # alternate between tiles: both need more output tiles than resident clusters.
        whole = isinstance(schedule, StreamK)
        some = divide & (cut.several | (alike if whole else False))
        yield Kind(replace(schedule, least_segment=SLIVER), some & deep, slots)
        if isinstance(schedule, HybridStreamK):
            yield Kind(schedule, some & (2 * cut.rest < slots), slots)
        # If a tile has only two partial sums, every kind of reduction adds one of them to the
        # other, so `turnstile` and `tree` are tried only for tiles with more partial sums.
        several_pieces = some & (2 * streamed < slots)
        yield Kind(replace(schedule, reduction="turnstile"), several_pieces, slots)
        yield Kind(replace(schedule, reduction="tree"), several_pieces, slots)
        # Leave out plans with `scatter` and Stream-K that divide every tile into equal segments,
        # since these plans are candidates anyway. Two-tile and hybrid Stream-K have a second main
        # loop, so `scatter` is tried only if enough registers remain.
        room = alike & (slots % cut.tiles > 0 if whole else cut.held <= MOST_SUMS_TWICE)
        yield Kind(replace(schedule, owner="first", reduction="scatter"), some & room, slots)


def interleaved_kinds(
    cut: Tiled, wanted: Flag, schedules: Sequence[Pass] = INTERLEAVED
) -> Iterator[Kind]:
    """Yield Stream-K with `k_order=interleaved`, if that option changes the kernel's work.

    It does for a tiling with more resident clusters than output tiles, if the number of clusters is
    no multiple of the number of tiles.

    Args:
        cut: a problem with every tiling that suits it.
        wanted: for each tiling, whether to try it.
        schedules: the schedules to try.
    """
    if not cut.counted:
        return
    some = wanted & divisible(cut) & (cut.tiling[6] == 1) & (cut.tiles < cut.slots)
    some &= (cut.slots % cut.tiles > 0) & (cut.tiles * cut.depth >= LEAST_DEPTH * cut.slots)
    for schedule in schedules:
        yield Kind(schedule, some, cut.slots)


def pinned_kinds(cut: Tiled, segments: int) -> Iterator[Kind]:
    """Yield Split-K for batch-invariant products, with two or more segments of k.

    Batch-invariant products whose sums have one segment use ordinary schedules.

    Args:
        cut: a problem with every tiling that suits it.
        segments: number of segments of k.
    """
    some = divisible(cut) & (cut.tiling[6] == 1) & (cut.depth >= 2 * segments)
    yield Kind(split_schedule(segments), some, np.zeros_like(cut.tiles))


def tuned_kinds(cut: Tiled) -> Iterator[Kind]:
    """Candidates that only `tune=True` measures: schedules in `TUNED`, and grids from `SPLITS`."""
    yield from (kind for kind in unusual_kinds(cut) if kind.schedule in TUNED)
    if not cut.counted:
        return
    scatter = SplitK(splits=None, reduction="scatter")
    adjacent = replace(scatter, adjacent="tiles")
    for grid in cut.other_split_grids:
        tried = divisible(cut) & (cut.tiling[6] == 1) & (grid > 0)
        suits = scatter.suits(cut.tiles, cut.depth, np.maximum(grid, 1))
        yield Kind(scatter, tried & suits & ~cut.alone, grid)
        yield Kind(adjacent, tried & suits & cut.alone, grid)
        yield Kind(SplitK(splits=None, reduction="peers"), tried, grid)
        yield Kind(StreamK(owner="last", reduction="tree"), tried & (grid > 2 * cut.tiles), grid)
