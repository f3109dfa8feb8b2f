"""`Selection`: which plans `benchmarks sweep` measures on a problem."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.peers.plans import Plan
from benchmarks.peers.swept_plans import Selection
from benchmarks.problems.shapes import Shape
from coordgraph import Gemm
from passes.choosing import choices
from passes.choosing.fixed_rules import instructions_plan


def selected(shape: Shape, layout: str, **options: Any) -> list[Plan]:
    return Selection(**options).plans(shape, layout, "bf16")


def test_plans_are_those_of_the_best_predictions():
    found = selected(Shape("", 4096, 4096, 4096), "nt", likely=9)
    assert len(found) == len(set(found)) >= 9
    assert found[0].tile[0] >= 128


@pytest.mark.slow
def test_the_best_of_every_family_is_measured_too():
    found = Shape("", 2048, 2304, 8192)
    problem = Gemm("bf16", m=2048, n=2304, k=8192, transpose_b=True)
    every = list(choices(problem, all_kinds=True))
    near = [choice.plan for choice in every if choice.seconds <= 1.3 * every[0].seconds]
    likely = selected(found, "nt", likely=6)
    plans = selected(found, "nt", likely=6, families=1.3)
    assert plans[: len(likely)] == likely
    assert {plan.family for plan in plans} == {plan.family for plan in near}
    for plan in plans[len(likely) :]:
        assert plan == next(one for one in near if one.family == plan.family)
    assert len(plans) > len(likely) + 3
    assert len(selected(found, "nt", likely=6, families=1.02)) < len(plans)


def test_large_clusters_are_measured_too():
    shape = Shape("", 736, 672, 24896)
    likely = selected(shape, "nt", likely=6)
    plans = selected(shape, "nt", likely=6, clusters=10)
    added = plans[len(likely) :]
    assert plans[: len(likely)] == likely
    assert len(added) == len({*added}) == 10
    assert all(plan.cluster[0] * plan.cluster[1] > 2 for plan in added)
    assert len({(plan.tile, plan.cluster) for plan in added}) >= 5


def test_plans_of_each_shape_of_cluster_are_measured_too():
    """At most four plans have the same shape of cluster; at most two of them divide k.

    Plans of a shape differ in a CTA's part of the tile, or in whether they divide k.
    """
    shape = Shape("", 976, 704, 5472)
    likely = selected(shape, "nt", likely=1)
    added = selected(shape, "nt", likely=1, shapes=4)[len(likely) :]
    assert likely[0] in added
    counts = Counter(plan.cluster for plan in added)
    assert max(counts.values()) == 4
    assert {(1, 1, 1), (2, 1, 1), (1, 4, 1), (4, 1, 1), (2, 2, 1), (1, 8, 1)} <= counts.keys()
    kinds = Counter((plan.cluster, "stream-k" in plan.family) for plan in added)
    assert max(kinds.values()) == 2
    parts = {(plan.tile, plan.cluster, "stream-k" in plan.family) for plan in added}
    assert len(parts) == len(added)


@pytest.mark.parametrize(
    ("size", "layout", "tma"),
    [
        ((1001, 808, 640), "nt", True),
        ((1001, 808, 640), "tt", False),
        ((1000, 801, 640), "nt", True),
        ((1000, 801, 640), "nn", False),
        ((1000, 808, 641), "nt", False),
        ((1000, 808, 641), "tn", True),
    ],
)
def test_problems_whose_rows_tma_refuses(size: tuple[int, int, int], layout: str, tma: bool):
    plans = selected(Shape("", *size), layout, likely=5, families=1.3)
    assert (len(plans) > 5) == tma
    assert tma or plans == [instructions_plan(*size, 132)]
