"""`rank`: plans for a problem in the order of what they are predicted to take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from coordgraph import Gemm
from passes.choosing.candidates import candidates, fallback
from passes.choosing.constants import Constants, constants_of
from passes.choosing.model import cost
from passes.choosing.plan import Plan

__all__ = ["Choice", "choices", "rank"]

LIMITS = {
    "dram": "reading A and B and writing D: memory",
    "l2": "what workgroups ask the L2 cache for",
    "power": "the power limit of the device",
}
PARTS = {
    "launch": "the launch itself",
    "loop": "the busiest workgroup's main loop: tensor cores, and waves that are not full",
    "tiles": "the ends of tiles, where D is stored",
    "fixup": "bringing partial sums together through memory",
    "cluster": "sums over the cluster",
}
SIMILAR, ORDERS = 3, 2
"""Plans in a short list that differ in less than tile and cluster, and in nothing but the order in
which tiles are visited."""


@dataclass(frozen=True)
class Choice:
    """A plan and what it is predicted to take.

    Args:
        plan: how to multiply.
        seconds: the prediction.
        terms: seconds of each of `Cost`'s terms but the total.
    """

    plan: Plan
    seconds: float
    terms: dict[str, float]

    @property
    def bound(self) -> str:
        """The term that decides: a floor, or the longest part of the way."""
        path = sum(self.terms[name] for name in PARTS if name != "launch")
        floor = max(LIMITS, key=self.terms.__getitem__)
        if self.terms[floor] >= path:
            return floor
        return max(PARTS, key=self.terms.__getitem__)

    @property
    def reason(self) -> str:
        """What bounds the plan, in words."""
        return {**LIMITS, **PARTS}[self.bound]


def choices(
    problem: Gemm,
    device: Constants | None = None,
    *,
    batches: int = 1,
    reads_c: bool = False,
    all_kinds: bool = False,
) -> Iterator[Choice]:
    """Every candidate, the best first.

    Args:
        problem: with m, n and k; what groups part is that of all together.
        device: see `constants_of`.
        batches: products of a batch, or groups.
        reads_c: C is added.
        all_kinds: see `candidates`.

    Raises:
        ValueError: the problem leaves a size open.
    """
    device = device or constants_of()
    table = candidates(problem, device, batches=batches, reads_c=reads_c, all_kinds=all_kinds)
    found = cost(table, device)
    for row in np.argsort(found.total, kind="stable"):
        terms = found.row(int(row))
        yield Choice(table.plan(int(row)), terms.pop("total"), terms)


@lru_cache(maxsize=256)
def rank(
    problem: Gemm,
    device: Constants | None = None,
    count: int = 16,
    *,
    batches: int = 1,
    reads_c: bool = False,
) -> tuple[Choice, ...]:
    """The best plans of a problem, the best first, and no more than a few that are alike.

    Args:
        problem: with m, n and k.
        device: see `constants_of`.
        count: how many at most.
        batches: products of a batch, or groups.
        reads_c: C is added, for which large tiles have no registers.
    """
    found: list[Choice] = []
    alike: dict[object, int] = {}
    for choice in choices(problem, device, batches=batches, reads_c=reads_c):
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
        found.append(Choice(fallback(problem.grouped), float("inf"), {}))
    return tuple(found)
