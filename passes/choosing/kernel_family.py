"""`KernelFamily`: a few kernels that, for sizes in given ranges, are nearly as fast as any plan.

One kernel accepts problems of every size, so a program can limit itself to a few kernels. A greedy
search selects them: it draws sizes, predicts the time of every candidate kernel for each size by
the cost model, and adds one kernel after another. Each added kernel is the one that lowers most the
mean logarithm of the shortest predicted time with the selected kernels. Then each selected kernel
is replaced by the one that lowers this mean most, if there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgraph import Gemm
from coordgraph.tensors import dtype
from passes.base import Pass
from passes.choosing.candidates import candidates, fallback
from passes.choosing.constants import Constants
from passes.choosing.drawn_sizes import USUAL, SizeRange, draw_sizes
from passes.choosing.model import cost
from passes.choosing.plan import Plan
from passes.choosing.plan_table import Flag, Table, schedule_in
from passes.lowering import CONSUMERS

__all__ = ["KernelFamily", "choose_family", "losses_of"]

COUNT = 96
"""The number of kernels of a `KernelFamily` (few kernels for many problem sizes), unless the caller
asks for another."""
DRAWN = 1200
"""The number of random problem sizes for which the kernels of a `KernelFamily` are selected."""
WORST = 4.0
"""Largest ratio of a kernel's predicted time to that of the best kernel for a size. Larger ratios,
and the ratios of kernels that are no candidates for the size, are replaced by WORST, so that no
single size decides the selection."""
NEAR_BEST, LEAST_GAIN = 60, 1e-7
"""NEAR_BEST: a selected kernel may be replaced by one that is among this many best kernels for some
size. LEAST_GAIN: a kernel is added, or replaced, if the mean logarithm of times falls by more."""
COLUMNS = ("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "cluster_k", "turns", "width")
"""Columns of a `Table`: two plans have the same kernel if they agree in these columns and in the
schedule."""

Key = tuple[Any, ...]
"""Type: a kernel's values of `COLUMNS`, then its schedule for the tile `COUNTED_TILE`. Plans with
the same key have the same kernel."""


@dataclass(frozen=True, eq=False)
class KernelFamily:
    """A set of kernels. `rank(…, among=family)` returns only plans with these kernels.

    Two families are equal only if they are the same object.

    Attributes:
        kernels: the kernels, each as a plan without a grid, in the order of selection.
        losses: entry i is for the first i + 1 kernels: the geometric mean, over the sizes for which
            the kernels were selected, of (best predicted time with these kernels / best predicted
            time with any kernel), minus 1. Ratios above `WORST` count as `WORST`.
        ranges: the ranges of sizes for which the kernels were selected.
    """

    kernels: tuple[Plan, ...]
    losses: tuple[float, ...] = ()
    ranges: tuple[SizeRange, ...] = USUAL

    def __len__(self) -> int:
        return len(self.kernels)

    def covers(self, size: tuple[int, int, int]) -> bool:
        """Whether a size (m, n, k) is in a range for which the kernels were selected."""
        return any(size in each for each in self.ranges)

    def joined(self, other: KernelFamily) -> KernelFamily:
        """A family with the kernels and ranges of `self` and `other`; its `losses` are empty."""
        kernels = dict.fromkeys((*self.kernels, *other.kernels))
        ranges = dict.fromkeys((*self.ranges, *other.ranges))
        return KernelFamily(tuple(kernels), ranges=tuple(ranges))

    @property
    def tilings(self) -> frozenset[tuple[int, ...]]:
        """Tile, cluster and number of pingpong warpgroups of the kernels, as in `COLUMNS`."""
        return self._tilings

    @cached_property
    def _tilings(self) -> frozenset[tuple[int, ...]]:
        return frozenset(key[:7] for key in map(_key_of, self.kernels) if key)

    @cached_property
    def _codes(self) -> tuple[Mapping[Pass, int], NDArray[np.int64]]:
        """(number of each schedule of the kernels, sorted array of integers that identify kernels).

        `_numbers` computes a kernel's integer from the number of its schedule and its `COLUMNS`.
        """
        keys = [key for key in map(_key_of, self.kernels) if key]
        places = {schedule: place for place, schedule in enumerate({key[-1]: None for key in keys})}
        rows = [(places[key[-1]], *key[:-1]) for key in keys]
        return places, np.sort(_numbers([*np.array(rows, np.int64).reshape(-1, 9).T]))

    def holds(self, table: Table) -> Flag:
        """For each row of a table, whether the family has the kernel of the row's plan."""
        places, codes = self._codes
        if not len(codes):
            return np.zeros(len(table), bool)
        # Schedules of the table that are not in the family all get the same number, which differs
        # from the numbers of the family's schedules.
        schedule = table.of_schedule([places.get(each, len(places)) for each in table.schedules])
        numbers = _numbers([schedule, *(getattr(table, name) for name in COLUMNS)])
        found = codes[np.minimum(np.searchsorted(codes, numbers), len(codes) - 1)]
        return found == numbers


def choose_family(
    problem: Gemm,
    device: Constants,
    ranges: Iterable[SizeRange] = USUAL,
    count: int = COUNT,
    *,
    batches: int = 1,
    reads_c: bool = False,
    drawn: int = DRAWN,
    advance: Callable[[int, int], None] = lambda done, of: None,
) -> KernelFamily:
    """Select at most `count` kernels for sizes in some ranges.

    Args:
        problem: a problem with the element types and layouts; its sizes are ignored.
        device: the cost model's constants of the device.
        ranges: the ranges of sizes.
        count: the largest number of kernels; selection ends earlier if no further kernel lowers the
            predicted times.
        batches: number of products in a batch, or of groups.
        reads_c: whether the epilogue reads C.
        drawn: number of random sizes by which the kernels are selected.
        advance: a function to report progress; its arguments are the number of sizes that are done
            and the number of all sizes.
    """
    ranges = tuple(ranges)
    sizes = draw_sizes(ranges, drawn)
    options = {"batches": batches, "reads_c": reads_c}
    plans, _, ratios = _predicted(problem, device, sizes, advance, **options)
    chosen = exchanged(ratios, greedy(ratios, count))
    kernels = [plans[place] for place in chosen]
    shortest = np.minimum.accumulate(ratios[:, chosen], axis=1)
    losses = [math.expm1(float(mean)) for mean in shortest.mean(0)]
    # The family includes the kernel of the fallback plan, which every problem can use.
    spare = fallback(problem.grouped, dtype(problem.dtype).row)
    if all(kernel != spare for kernel in kernels):
        if len(kernels) == count:
            kernels, losses = kernels[:-1], losses[:-1]
        kernels.append(spare)
        losses.append(losses[-1] if losses else 0.0)
    return KernelFamily(tuple(kernels), tuple(losses), ranges)


def greedy(ratios: NDArray[np.float32], count: int) -> list[int]:
    """Choose columns one after another to lower the mean, over rows, of the smallest chosen entry.

    Args:
        ratios: the array that `_predicted` returns, with logarithms of ratios of times.
        count: the largest number of columns; no column is added that does not lower the mean.
    """
    chosen = list[int]()
    now = np.full(len(ratios), math.log(WORST), np.float32)
    while len(chosen) < count:
        means = np.minimum(ratios, now[:, None]).mean(0)
        best = int(means.argmin())
        if means[best] >= now.mean() - LEAST_GAIN:
            break
        now = np.minimum(now, ratios[:, best])
        chosen.append(best)
    return chosen


def exchanged(ratios: NDArray[np.float32], chosen: Sequence[int]) -> list[int]:
    """Replace each chosen column by another one that lowers more the mean which `greedy` lowers.

    A column stays if no other lowers that mean more: the mean, over rows, of the smallest chosen
    entry.

    The columns are returned in the order in which each lowers the mean most.

    Args:
        ratios: the array that `_predicted` returns.
        chosen: the columns that `greedy` returns.
    """
    found = list(chosen)
    # Only columns that are among the smallest of some row are worth trying.
    near = min(NEAR_BEST, ratios.shape[1]) - 1
    some = np.unique(np.append(np.argpartition(ratios, near, axis=1)[:, : near + 1], chosen))
    tried = ratios[:, some]
    for place in range(len(found)):
        others = ratios[:, found[:place] + found[place + 1 :]]
        now = others.min(1, initial=math.log(WORST))
        means = np.minimum(tried, now[:, None]).mean(0)
        best = int(means.argmin())
        if means[best] < np.minimum(ratios[:, found[place]], now).mean() - LEAST_GAIN:
            found[place] = int(some[best])
    return [found[place] for place in greedy(ratios[:, found], len(found))]


def losses_of(
    family: KernelFamily,
    problem: Gemm,
    device: Constants,
    sizes: Sequence[tuple[int, int, int]],
    *,
    reads_c: bool = False,
) -> NDArray[np.float32]:
    """The predicted losses of time if only the first 1, 2, … kernels of a family may be used.

    The loss is (best predicted time with these kernels / best predicted time with any kernel) - 1.

    Args:
        family: the kernels, in the order of selection.
        problem: a problem with the element types and layouts; its sizes are ignored.
        device: the cost model's constants of the device.
        sizes: the sizes (m, n, k); to judge a family, pass sizes that did not select it.
        reads_c: whether the epilogue reads C.

    Returns:
        An array with a row for each number of kernels, and a column for each size.
    """
    _, places, ratios = _predicted(problem, device, sizes, lambda done, of: None, reads_c=reads_c)
    now = np.full(len(sizes), math.log(WORST), np.float32)
    rows = list[NDArray[np.float32]]()
    for kernel in family.kernels:
        if (place := places.get(_key_of(kernel))) is not None:
            now = np.minimum(now, ratios[:, place])
        rows.append(np.expm1(now))
    return np.array(rows)


def _predicted(
    problem: Gemm,
    device: Constants,
    sizes: Sequence[tuple[int, int, int]],
    advance: Callable[[int, int], None],
    **options: Any,
) -> tuple[list[Plan], dict[Key, int], NDArray[np.float32]]:
    """All candidate kernels, and their predicted times for some sizes.

    Args:
        problem, device, sizes, advance: as for `choose_family`.
        options: arguments of `candidates`: `batches` and `reads_c`.

    Returns:
        The kernels, as plans without grids; a dict from the `Key` of a kernel to its column in the
        array; and the array, with a row for each size: the logarithm of each kernel's time divided
        by the time of the fastest kernel for that size. Ratios above `WORST`, and those of kernels
        that are no candidate for the size, count as `WORST`.
    """
    plans: list[Plan] = []
    places: dict[Key, int] = {}
    rows: list[tuple[list[int], NDArray[np.float64]]] = []
    for done, (m, n, k) in enumerate(sizes):
        table = candidates(replace(problem, m=m, n=n, k=k), device, reused=True, **options)
        seconds = cost(table, device).total
        numbers = _numbers([table.schedule, *(getattr(table, name) for name in COLUMNS)])
        _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
        best = np.full(len(first), np.inf)
        np.minimum.at(best, which.reshape(-1), seconds)
        keys = [_key_in(table, int(row)) for row in first]
        for key, row in zip(keys, first, strict=True):
            if key not in places:
                places[key] = len(plans)
                plans.append(replace(table.plan(int(row)), workgroups=None))
        rows.append(([places[key] for key in keys], np.log(best / best.min())))
        advance(done + 1, len(sizes))
    ratios = np.full((len(sizes), len(places)), math.log(WORST), np.float32)
    for row, (columns, values) in zip(ratios, rows, strict=True):
        row[columns] = np.minimum(values, math.log(WORST))
    return plans, places, ratios


def _numbers(columns: Sequence[Any]) -> NDArray[np.int64]:
    """One integer for each row, computed from its schedule's number and its values of `COLUMNS`.

    Rows that differ in these values have different integers.
    """
    found = np.zeros(len(columns[0]), np.int64)
    for column, bits in zip(columns, (6, 12, 12, 10, 4, 4, 4, 2, 5), strict=True):
        found = (found << bits) + np.asarray(column).astype(np.int64)
    return found


def _key_in(table: Table, row: int) -> Key:
    numbers = (int(getattr(table, name)[row]) for name in COLUMNS)
    return *numbers, table.schedules[int(table.schedule[row])]


def _key_of(plan: Plan) -> Key:
    """The `Key` of a plan's kernel; () if the cost model does not know the plan's schedule."""
    if (known := schedule_in(plan)) is None:
        return ()
    schedule, width = known
    return *plan.tile, *plan.cluster, CONSUMERS[plan.consumers], width, schedule
