"""The check `memory order` refutes no correct graph: it holds for all schedules and lowerings."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from coordgraph import Gemm, PassError
from coordgraph.verification import Outcome
from coordgraph.verification.memory_order.check import NAME
from passes import DataParallel, Pass, Pipeline, SplitK, StreamK
from passes.lowering import LowerToHopper, LowerToTensorCores
from tests.codegen.nvptx.configurations import SCHEDULES
from tests.support.sampling import cover, kinds, quick_cases

REDUCTIONS: tuple[tuple[Pass, ...], ...] = (
    (StreamK(reduction="scatter"),),
    (StreamK(reduction="tree"),),
    (StreamK(owner="last", reduction="tree"),),
    (SplitK(splits=3, reduction="scatter"),),
)
LOWERINGS: tuple[tuple[Pass, tuple[int, int, int]], ...] = (
    (LowerToHopper(), (128, 128, 64)),
    (LowerToHopper(consumers="pingpong"), (64, 128, 64)),
    (LowerToHopper(cluster_m=2), (256, 128, 64)),
    (LowerToHopper(cluster_n=2, consumers="pingpong"), (64, 128, 64)),
    (LowerToHopper(cluster_m=2, cluster_n=2), (128, 128, 64)),
    (LowerToHopper(cluster_m=4, cluster_n=2), (256, 128, 64)),
    (LowerToHopper(cluster_k=2), (64, 64, 128)),
    (LowerToHopper(vector=2), (256, 64, 64)),
    (LowerToTensorCores(), (64, 64, 32)),
    (LowerToTensorCores(stages=2, vector_a=1), (32, 64, 32)),
)
PROBLEMS: tuple[dict[str, Any], ...] = (
    {"transpose_b": True},
    {"transpose_a": True, "out_dtype": "f32"},
    {"batched": True},
    {"grouped": True, "transpose_b": True},
    {"grouped": True, "group_axis": "k", "transpose_a": True},
    {"grouped": True, "group_axis": "mnk", "transpose_a": True},
)


def traits(case: tuple[tuple[Pass, ...], object, object]) -> tuple[object, ...]:
    """The properties of a case: its kinds of pass, lowering and problem.

    Each property occurs in at least one quick test.
    """
    schedule, lowering, problem = case
    return (*kinds(schedule), str(lowering), str(problem))


@quick_cases(1)
@pytest.mark.parametrize(
    ("schedule", "lowering", "problem"),
    cover(0, product((*SCHEDULES, *REDUCTIONS), LOWERINGS, PROBLEMS), traits),
    ids=str,
)
def test_no_schedule_is_refuted(
    schedule: tuple[Pass, ...],
    lowering: tuple[Pass, tuple[int, int, int]],
    problem: dict[str, Any],
):
    lower, tile = lowering
    try:
        graph = lower(Pipeline(schedule)(Gemm("bf16", **problem).graph(tile)))
    except PassError as refused:
        pytest.skip(str(refused))
    verdict = graph.check()[NAME]
    assert verdict.outcome is Outcome.HOLDS, "\n".join(map(str, verdict.counterexamples))


@quick_cases(1)
@pytest.mark.parametrize(
    "schedule",
    [
        "stream-k{least_segment=3}",
        "hybrid-stream-k{workgroups=5,reduction=turnstile,least_segment=4}",
    ],
)
@pytest.mark.parametrize("lower", [LowerToHopper(), LowerToTensorCores()], ids=str)
def test_numbers_that_all_threads_share_may_be_selected(schedule: str, lower: Pass):
    """The check `memory order` evaluates a select whose condition is equal for all threads.

    NumPy gives that value as an array without axes, not as an array by thread.
    """
    graph = lower(Pipeline.parse(schedule)(Gemm("bf16").graph((64, 64, 64))))
    assert graph.check()[NAME].outcome is Outcome.HOLDS


@pytest.mark.slow
@pytest.mark.parametrize("tile", [(128, 88, 64), (256, 176, 64), (40, 128, 64)])
def test_threads_that_a_guard_excludes_access_nothing(tile: tuple[int, int, int]):
    """`memory order` is not refuted if chunks of 16 bytes do not divide evenly among threads."""
    for axis in ("k", "m"):
        gemm = Gemm("bf16", grouped=True, group_axis=axis, transpose_a=axis == "k")
        graph = LowerToHopper()(DataParallel(persistent=True)(gemm.graph(tile)))
        assert not graph.check(checks=[NAME]).refuted
