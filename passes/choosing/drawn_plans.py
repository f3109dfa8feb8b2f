"""Draw sizes and plans to measure, to fit a device's constants; the plans share few kernels.

A fit of the cost model needs measurements of plans that the model prefers, of the best plan of
every family of schedules, and of slower plans: measurements of the preferred plans alone do not
show the errors of the predicted times of other plans. One kernel accepts problems of every size. So
the plans of all sizes are limited to a few kernels, those that are good for the most sizes; that
saves time for compilation.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coordgraph import Gemm
from passes.choosing.candidates import candidates
from passes.choosing.constants import Constants
from passes.choosing.drawn_sizes import SizeRange, draw_sizes
from passes.choosing.exclusions import chooseable
from passes.choosing.kernel_family import KernelFamily
from passes.choosing.known_schedules import family
from passes.choosing.model import cost
from passes.choosing.plan import Plan
from passes.choosing.plan_table import Column, Table

__all__ = ["RANGES", "Drawn", "draw_plans"]

RANGES = (
    SizeRange.of(),
    SizeRange((1, 128), (512, 16384), (512, 16384), 0.4),
    SizeRange((128, 1200), (128, 1200), (4096, 65536), 0.4),
    SizeRange((128, 1200), (128, 1200), (1024, 8192), 0.3),
    SizeRange((1200, 8192), (128, 640), (1024, 16384), 0.3),
)
"""Ranges from which problem sizes are drawn: the default range; problems with few rows (m at most
128); problems with few output tiles, and with large or medium k; and problems with few columns."""
KEPT = 600
"""Number of candidates, those with the shortest predicted times, from which the plans to measure on
a problem size are selected."""
LIKELY, SAME_TILE = 5, 2
"""LIKELY: number of plans that are selected for measurement on a problem size because they are
predicted to be the fastest. SAME_TILE: largest number of such plans with equal tile and cluster."""
FAMILIES = 1.3
"""The best plan of each family of schedules is selected for measurement if its predicted time is at
most FAMILIES times the shortest predicted time of any plan for the problem size."""
LARGE, EXPLORED = 4, 3
"""LARGE: largest number of plans with clusters of more than two CTAs that are selected for
measurement on a problem size because their predicted time is at most FAMILIES times the shortest
one. EXPLORED: number of further plans that are selected at random."""


@dataclass(frozen=True)
class Drawn:
    """A problem and the plans to measure on it.

    Args:
        gemm: the problem, with m, n and k.
        plans: the plans to measure, without duplicates.
    """

    gemm: Gemm
    plans: tuple[Plan, ...]


def draw_plans(
    gemm: Gemm, device: Constants, sizes: int, kernels: int, seed: int = 0
) -> Iterator[Drawn | None]:
    """Draw sizes of a problem and plans for each; all plans together need few different kernels.

    Yields None each time the plans of a size have been drawn, so that the caller can show progress;
    after all sizes, yields a `Drawn` for each size.

    Args:
        gemm: the types and layouts of A, B and D.
        device: the cost model's constants of the device, with which times of plans are predicted.
        sizes: number of problem sizes (m, n, k) to draw.
        kernels: largest number of kernels of all plans together.
        seed: another seed gives other sizes and plans.
    """
    generator = random.Random(f"plans {seed}")
    tables: list[tuple[Gemm, Table]] = []
    wanted: list[list[Plan]] = []
    for m, n, k in draw_sizes(RANGES, sizes, seed):
        problem = replace(gemm, m=m, n=n, k=k)
        table, seconds = _best(problem, device)
        tables.append((problem, table))
        wanted.append([table.plan(row) for row in _rows(table, seconds, generator)])
        yield None
    counts = Counter(kernel for plans in wanted for kernel in {plan.kernel for plan in plans})
    kept = {kernel for kernel, _ in counts.most_common(kernels)}
    plans = {p.kernel: replace(p, workgroups=None) for some in wanted for p in some}
    pool = KernelFamily(tuple(plans[kernel] for kernel in kept))
    for (problem, table), some in zip(tables, wanted, strict=True):
        mine = [plan for plan in some if plan.kernel in kept]
        # Only the kernels in `kept` will be compiled: those that plans of the most sizes need.
        # A drawn plan that needs another kernel is replaced by the best plan of the same size whose
        # kernel is in `kept`.
        others = np.flatnonzero(pool.holds(table))[: len(some)]
        mine += [table.plan(int(row)) for row in others]
        yield Drawn(problem, tuple(list(dict.fromkeys(mine))[: max(len(some), 2)]))


def _best(problem: Gemm, device: Constants) -> tuple[Table, Column]:
    """(table of the candidates with the shortest predicted times, fastest first; these times)."""
    table = candidates(problem, device)
    table = table.where(chooseable(table, device))
    seconds = cost(table, device).total
    order = np.argsort(seconds, kind="stable")[:KEPT]
    return table.where(order), seconds[order]


def _rows(table: Table, seconds: Column, generator: random.Random) -> Sequence[int]:
    """Row numbers, in `table` (sorted by predicted seconds), of the plans to measure."""
    found: dict[int, None] = {}
    alike: Counter[object] = Counter()
    families: set[str] = set()
    names = [family(schedule) for schedule in table.schedules]
    large = 0
    for row in range(len(table)):
        clusters = table.cluster_m[row] * table.cluster_n[row]
        key = table.tile_m[row], table.tile_n[row], table.cluster_m[row], table.cluster_n[row]
        name = names[int(table.schedule[row])]
        near = seconds[row] <= FAMILIES * seconds[0]
        likely = len(found) < LIKELY and alike[key] < SAME_TILE
        if likely or (near and (name not in families or (clusters > 2 and large < LARGE))):
            found[row] = None
            alike[key] += 1
            families.add(name)
            large += clusters > 2
    others = [row for row in range(len(table)) if row not in found]
    found |= dict.fromkeys(generator.sample(others, min(EXPLORED, len(others))))
    return list(found)
