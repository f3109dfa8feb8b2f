"""`Selection`: which plans `python -m benchmarks sweep` measures on a problem."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

from benchmarks.peers.plans import Plan, gemm_of_layout
from benchmarks.problems.log_uniform import STEP
from benchmarks.problems.shapes import Shape
from coordgraph import Gemm
from passes.choosing import choices, constants_of, rank, sizes
from passes.choosing.fixed_rules import instructions_plan

__all__ = ["LIKELY", "Selection"]

LIKELY = 24
"""Default number of plans with the shortest predicted times that are measured."""
SAME_TILE = 2
"""Of the plans with the best predicted times among those with large clusters, at most this many
with the same tile and cluster are measured."""
EXPLORE_FACTOR, EXPLORE_PLANS = 2.0, 1000
"""Slower plans are drawn from the EXPLORE_PLANS plans with the best predicted times, and only plans
that are predicted to take at most EXPLORE_FACTOR times the time of the best."""
SHAPES_FACTOR = 1.35
"""Plans of a shape of cluster are measured if they are predicted to take at most this many times
the time of the best plan."""


@dataclass(frozen=True)
class Selection:
    """Which plans are measured on a problem.

    Args:
        likely: the number of plans with the shortest predicted times.
        explore: the number of other plans, drawn at random, each with a different tile.
        seed: the seed of the random generator.
        families: a factor. The best plan of every family of schedules (see
            `passes.choosing.known_schedules.family`) is added if it is predicted to take at most
            this many times the best plan's time. 0 adds none.
        clusters: the number of plans with the shortest predicted times among those with clusters of
            more than two CTAs, which the cost model chooses only for products with few output
            tiles.
        shapes: the largest number of plans with the same shape of cluster, such as 4 x 1. Plans of
            a shape differ in a CTA's part of the tile, or in whether they divide tiles along k.
    """

    likely: int = LIKELY
    explore: int = 0
    seed: int = 0
    families: float = 0.0
    clusters: int = 0
    shapes: int = 0

    def plans(self, shape: Shape, layout: str, dtype: str) -> list[Plan]:
        """The plans to measure on a problem, some of them perhaps more than once.

        Args:
            shape: the problem's m, n and k.
            layout: how A and B are stored, one of `LAYOUTS`.
            dtype: the element type of A, B and D.
        """
        gemm = replace(gemm_of_layout(dtype, layout), m=shape.m, n=shape.n, k=shape.k)
        if not _allows_tma(gemm):
            return [instructions_plan(shape.m, shape.n, shape.k, constants_of().processors)]
        found = [choice.plan for choice in rank(gemm, None, self.likely)]
        if self.clusters:
            found += _large_clusters(gemm, self.clusters)
        if self.shapes:
            found += _of_each_shape(gemm, self.shapes)
        if self.families:
            found += _families(gemm, self.families, {plan.family for plan in found})
        if not self.explore:
            return found
        slower = [plan for plan in _explored(gemm) if plan not in found]
        generator = random.Random(f"{shape.size} {layout} {self.seed}")
        return [*found, *generator.sample(slower, min(self.explore, len(slower)))]


def _near(
    gemm: Gemm, factor: float, *, all_kinds: bool = False, large_clusters: bool = False
) -> Iterator[Plan]:
    """Yield the plans that are predicted to take at most `factor` times the time of the best.

    Plans with shorter predicted times come first. The options are those of `choices`.
    """
    best = inf
    for choice in choices(gemm, all_kinds=all_kinds, large_clusters=large_clusters):
        best = min(best, choice.seconds)
        if choice.seconds > factor * best:
            return
        yield choice.plan


def _explored(gemm: Gemm) -> Iterator[Plan]:
    """For each tile, cluster and value of `consumers`, yield the plan with the shortest time.

    Times are predicted.
    """
    known = set[object]()
    for plan in islice(_near(gemm, EXPLORE_FACTOR), EXPLORE_PLANS):
        key = plan.tile, plan.cluster, plan.consumers
        if key not in known:
            known.add(key)
            yield plan


def _families(gemm: Gemm, factor: float, known: Set[str]) -> list[Plan]:
    """For each family of schedules that is not in `known`, the plan with the best predicted time.

    Plans are left out that are predicted to take more than `factor` times the time of the best of
    all plans.
    """
    found: dict[str, Plan] = {}
    for plan in _near(gemm, factor, all_kinds=True):
        found.setdefault(plan.family, plan)
    return [plan for name, plan in found.items() if name not in known]


def _large_clusters(gemm: Gemm, count: int) -> list[Plan]:
    """The `count` plans with the shortest predicted times and more than two CTAs in a cluster.

    At most `SAME_TILE` plans have the same tile and cluster.
    """
    found: list[Plan] = []
    alike: dict[object, int] = {}
    for choice in choices(gemm, large_clusters=True):
        plan = choice.plan
        key = plan.tile, plan.cluster
        if plan.cluster[0] * plan.cluster[1] <= 2 or alike.get(key, 0) == SAME_TILE:
            continue
        alike[key] = alike.get(key, 0) + 1
        found.append(plan)
        if len(found) == count:
            break
    return found


def _of_each_shape(gemm: Gemm, count: int) -> Iterator[Plan]:
    """Yield at most `count` plans with each shape of cluster, those with the best predicted times.

    At most half of them, rounded up, divide tiles along k, and at most half do not.
    """
    known, shapes = set[object](), Counter[object]()
    for plan in _near(gemm, SHAPES_FACTOR, large_clusters=True):
        divides = "stream-k" in plan.family
        part = tuple(a // b for a, b in zip(plan.tile, plan.cluster, strict=True))
        key, kind = (plan.cluster, part, divides), (plan.cluster, divides)
        if key in known or shapes[plan.cluster] == count or shapes[kind] == -(-count // 2):
            continue
        known.add(key)
        shapes.update((plan.cluster, kind))
        yield plan


def _allows_tma(gemm: Gemm) -> bool:
    """Whether TMA can load A and B: each row's length in bytes must be a multiple of 16."""
    m, n, k = sizes(gemm)
    rows = (m if gemm.transpose_a else k, k if gemm.transpose_b else n)
    return all(row % STEP == 0 for row in rows)
