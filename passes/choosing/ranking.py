"""`rank`: returns the plans of a problem with the shortest predicted times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count as count_from
from itertools import islice
from threading import Lock
from typing import Any

import numpy as np

from coordgraph import Gemm
from coordgraph.tensors import dtype
from passes.base import Pass
from passes.choosing.candidates import candidates, fallback
from passes.choosing.constants import Constants, constants_of
from passes.choosing.known_schedules import chosen_schedules
from passes.choosing.model import cost
from passes.choosing.plan import Plan
from passes.choosing.plan_table import Column
from passes.choosing.summation_order import SummationOrder
from passes.choosing.tiling_columns import Kernels

__all__ = ["Choice", "choices", "rank", "ranked"]

LIMITS = {
    "dram": "reading A and B from memory and writing D",
    "l2": "requests of workgroups to the L2 cache",
    "power": "the power limit of the device",
}
"""Descriptions of those terms of `Cost` that are lower bounds of the main loop's time, by name."""
PARTS = {
    "launch": "the launch itself",
    "loop": "the busiest workgroup's main loop: tensor cores, and waves that are not full",
    "tiles": "the ends of tiles, where D is stored",
    "fixup": "adding up partial sums through memory",
    "cluster": "sums over the cluster",
}
"""Descriptions of those terms of `Cost` whose sum is the time of the workgroup with most work, by
name."""
LEARNED = "a correction, learned from errors of the sum of the other terms"
"""Description of the term `correction` of `Cost`."""
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
        """Name of the term of `Cost` that limits the plan's speed.

        The terms in `LIMITS` are lower bounds of the main loop's time. If the largest of them is
        at least the time of the workgroup with most work, the result is its name; else the result
        is the longest part of that workgroup's time, one of `PARTS`.
        """
        path = sum(self.terms[name] for name in PARTS if name != "launch")
        floor = max(LIMITS, key=self.terms.__getitem__)
        if self.terms[floor] >= path:
            return floor
        return max(PARTS, key=self.terms.__getitem__)

    @property
    def reason(self) -> str:
        """A description of the term `bound` of the cost model, which limits the plan's speed."""
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
    order: SummationOrder | None = None,
    nearest: bool = True,
) -> Iterator[Choice]:
    """Yield every candidate plan for a problem, in the order of predicted times.

    Args:
        problem: the problem, with values for m, n and k; if groups divide an axis, its value is the
            sum of the groups' extents.
        device: the cost model's constants of the device; None for those of the measured H200.
        batches: number of products in a batch, or of groups.
        reads_c: whether the epilogue reads C.
        all_kinds: whether to add schedules that are excluded from the choice; see `candidates`.
        large_clusters: whether to add clusters of more than two CTAs where the cost model never
            chooses them; see `candidates`.
        among: the kernels to which the plans are limited; None sets no limit.
        order: the order of additions along k that the plans must have; None sets no limit.
        nearest: whether to correct predicted times only where a plan can be the fastest; see
            `passes.choosing.model.cost`.

    Raises:
        VerifyError: m, n or k has no value.
    """
    device = device or constants_of()
    table = candidates(
        problem,
        device,
        batches=batches,
        reads_c=reads_c,
        all_kinds=all_kinds,
        large_clusters=large_clusters,
        among=among,
        order=order,
    )
    if not len(table):
        return
    found = cost(table, device, nearest=nearest)
    for row in _ascending(found.total):
        terms = found.row(row)
        yield Choice(table.plan(row), terms.pop("total"), terms)


def _ascending(total: Column) -> Iterator[int]:
    """Yield row numbers in ascending order of their times in `total`, equal times in row order.

    The times are sorted only if the caller takes more than one row: most calls of `codegen.matmul`
    take only the fastest plan.
    """
    yield int(total.argmin())
    for row in np.argsort(total, kind="stable")[1:]:
        yield int(row)


def rank(
    problem: Gemm,
    device: Constants | None = None,
    count: int = 16,
    *,
    batches: int = 1,
    reads_c: bool = False,
    among: Kernels | None = None,
    order: SummationOrder | None = None,
    nearest: bool = True,
) -> tuple[Choice, ...]:
    """The plans for a problem with the shortest predicted times, the best first.

    Of plans with the same tile and cluster only a few are listed.

    Args:
        problem: the problem, with values for m, n and k.
        device: the cost model's constants of the device; None for those of the measured H200.
        count: largest number of plans to return.
        batches: number of products in a batch, or of groups.
        reads_c: whether the epilogue reads C; large tiles leave no registers for elements of C.
        among: the kernels to which the plans are limited; None sets no limit.
        order: the order of additions along k that the plans must have; None sets no limit.
        nearest: whether to correct predicted times only where a plan can be the fastest, which
            takes less time. The first plan is the same either way; later ones may differ.
    """
    limits: dict[str, Any] = {"among": among, "order": order, "nearest": nearest}
    return tuple(ranked(problem, device, count, batches=batches, reads_c=reads_c, **limits))


def ranked(
    problem: Gemm,
    device: Constants | None = None,
    count: int = 16,
    *,
    batches: int = 1,
    reads_c: bool = False,
    among: Kernels | None = None,
    order: SummationOrder | None = None,
    nearest: bool = True,
) -> Iterator[Choice]:
    """Yield the plans that `rank` returns; a plan is computed when a caller first asks for it."""
    device = device or constants_of()
    # Schedules may be registered between calls, so they are a part of the cache key.
    given = problem, device, count, batches, reads_c, among, order, nearest
    known = _ranking(*given, chosen_schedules())
    return iter(known)


class _Ranking:
    """The plans of one call of `rank`, which are computed in order when they are needed.

    Args:
        found: yields the plans.
    """

    def __init__(self, found: Iterator[Choice]) -> None:
        self._known: list[Choice] = []
        self._rest = found
        self._lock = Lock()

    def __iter__(self) -> Iterator[Choice]:
        for place in count_from(0):
            if place == len(self._known) and not self._advanced(place):
                return
            yield self._known[place]

    def _advanced(self, place: int) -> bool:
        """Make sure that plan number `place` is computed; return False if there is no such plan."""
        with self._lock:
            if place == len(self._known):
                self._known.extend(islice(self._rest, 1))
            return place < len(self._known)


@lru_cache(maxsize=256)
def _ranking(
    problem: Gemm,
    device: Constants,
    count: int,
    batches: int,
    reads_c: bool,
    among: Kernels | None,
    order: SummationOrder | None,
    nearest: bool,
    schedules: tuple[Pass, ...],
) -> _Ranking:
    """The cached `_Ranking` for these arguments; `schedules` is only a part of the cache key."""
    limits: dict[str, Any] = {"among": among, "order": order, "nearest": nearest}
    found = choices(problem, device, batches=batches, reads_c=reads_c, **limits)
    spare = partial(_spare, problem, order)
    made = _Ranking(_dissimilar(found, count, spare))
    next(iter(made))  # an error must not leave a ranking without plans in the cache
    return made


def _spare(problem: Gemm, order: SummationOrder | None) -> Plan:
    """A plan without clusters, for devices that hold none; it adds along k in the order `order`."""
    plan = fallback(problem.grouped, dtype(problem.dtype).row)
    if order is not None and order.segments > 1:
        return replace(plan, pipeline=order.pipeline)
    return plan


def _dissimilar(found: Iterable[Choice], count: int, spare: Callable[[], Plan]) -> Iterator[Choice]:
    """At most `count` choices, of which only a few have the same tile and cluster.

    Args:
        found: all choices, the best first.
        count: the largest number of choices.
        spare: makes a plan without clusters, which is yielded last if all other yielded plans have
            clusters.
    """
    alike: dict[object, int] = {}
    taken, clusters = 0, True
    for choice in found:
        plan = choice.plan
        key = plan.tile, plan.cluster
        ordered = *key, plan.consumers, plan.family, plan.workgroups
        if alike.get(key, 0) == SIMILAR or alike.get(ordered, 0) == ORDERS:
            continue
        for each in (key, ordered):
            alike[each] = alike.get(each, 0) + 1
        yield choice
        taken, clusters = taken + 1, clusters and plan.cluster != (1, 1, 1)
        if taken == count:
            break
    if clusters:
        yield Choice(spare(), float("inf"), {})
