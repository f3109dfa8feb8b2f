"""`rank`: returns the plans of a problem with the shortest predicted times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from coordgraph import Gemm
from coordgraph.tensors import dtype
from passes.base import Pass
from passes.choosing.candidates import Kernels, candidates, fallback
from passes.choosing.constants import Constants, constants_of
from passes.choosing.known_schedules import chosen_schedules
from passes.choosing.model import cost
from passes.choosing.plan import Plan

__all__ = ["Choice", "choices", "rank"]

LIMITS = {
    "dram": "reading A and B from memory and writing D",
    "l2": "requests of workgroups to the L2 cache",
    "power": "the power limit of the device",
}
"""Descriptions of the terms of a cost that are lower bounds of the main loop's time."""
PARTS = {
    "launch": "the launch itself",
    "loop": "the busiest workgroup's main loop: tensor cores, and waves that are not full",
    "tiles": "the ends of tiles, where D is stored",
    "fixup": "adding up partial sums through memory",
    "cluster": "sums over the cluster",
}
"""Descriptions of the terms of a cost that make up the time of the workgroup with most work."""
SIMILAR, ORDERS = 3, 2
"""SIMILAR: largest number of plans with the same tile and cluster that `rank` returns. ORDERS:
largest number of plans that differ only in the order in which tiles are visited."""


@dataclass(frozen=True)
class Choice:
    """A plan and its predicted time.

    Args:
        plan: the tile, cluster, schedule and grid.
        seconds: predicted seconds of a launch.
        terms: predicted seconds of each term of `Cost` except the total, by name.
    """

    plan: Plan
    seconds: float
    terms: dict[str, float]

    @property
    def bound(self) -> str:
        """Name of the term of `Cost` that bounds the plan's time.

        If the largest lower bound of the main loop's time exceeds the time of the workgroup with
        most work, it is that bound; else it is the longest part of that workgroup's time.
        """
        path = sum(self.terms[name] for name in PARTS if name != "launch")
        floor = max(LIMITS, key=self.terms.__getitem__)
        if self.terms[floor] >= path:
            return floor
        return max(PARTS, key=self.terms.__getitem__)

    @property
    def reason(self) -> str:
        """A description of the term that bounds the plan's time."""
        return {**LIMITS, **PARTS}[self.bound]


def choices(
    problem: Gemm,
    device: Constants | None = None,
    *,
    batches: int = 1,
    reads_c: bool = False,
    all_kinds: bool = False,
    large_clusters: bool = False,
    among: Kernels | None = None,
) -> Iterator[Choice]:
    """Yield every candidate plan for a problem, in the order of predicted times.

    Args:
        problem: the problem, with values for m, n and k; if groups divide an axis, its value is the
            sum of the groups' extents.
        device: the constants of the device; None for those of the measured H200.
        batches: number of products in a batch, or of groups.
        reads_c: whether the epilogue reads C.
        all_kinds: whether to add schedules that the cost model never prefers; see `candidates`.
        large_clusters: whether to add clusters of more than two CTAs where the cost model never
            chooses them; see `candidates`.
        among: the kernels to which the plans are limited; None sets no limit.

    Raises:
        ValueError: m, n or k has no value.
    """
    device = device or constants_of()
    options = {"all_kinds": all_kinds, "large_clusters": large_clusters}
    table = candidates(problem, device, batches=batches, reads_c=reads_c, among=among, **options)
    if not len(table):
        return
    found = cost(table, device)
    for row in np.argsort(found.total, kind="stable"):
        terms = found.row(int(row))
        yield Choice(table.plan(int(row)), terms.pop("total"), terms)


def rank(
    problem: Gemm,
    device: Constants | None = None,
    count: int = 16,
    *,
    batches: int = 1,
    reads_c: bool = False,
    among: Kernels | None = None,
) -> tuple[Choice, ...]:
    """The plans for a problem with the shortest predicted times, the best first.

    Of plans with the same tile and cluster only a few are listed.

    Args:
        problem: the problem, with values for m, n and k.
        device: the constants of the device; None for those of the measured H200.
        count: largest number of plans to return.
        batches: number of products in a batch, or of groups.
        reads_c: whether the epilogue reads C; large tiles leave no registers for it.
        among: the kernels to which the plans are limited; None sets no limit.
    """
    device = device or constants_of()
    # Schedules may be registered between calls, so they are a part of the cache key.
    return _rank(problem, device, count, batches, reads_c, among, chosen_schedules())


@lru_cache(maxsize=256)
def _rank(
    problem: Gemm,
    device: Constants,
    count: int,
    batches: int,
    reads_c: bool,
    among: Kernels | None,
    schedules: tuple[Pass, ...],
) -> tuple[Choice, ...]:
    """The cached implementation of `rank`; `schedules` is only a part of the cache key."""
    found: list[Choice] = []
    alike: dict[object, int] = {}
    for choice in choices(problem, device, batches=batches, reads_c=reads_c, among=among):
        plan = choice.plan
        key = plan.tile, plan.cluster
        ordered = *key, plan.consumers, plan.family, plan.workgroups
        if alike.get(key, 0) == SIMILAR or alike.get(ordered, 0) == ORDERS:
            continue
        for each in (key, ordered):
            alike[each] = alike.get(each, 0) + 1
        found.append(choice)
        if len(found) == count:
            break
    if all(choice.plan.cluster != (1, 1, 1) for choice in found):
        plan = fallback(problem.grouped, dtype(problem.dtype).row)
        found.append(Choice(plan, float("inf"), {}))
    return tuple(found)
