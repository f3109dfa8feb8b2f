"""The check `vectors` proves that all lowered graphs of the library access consecutive elements."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from coordgraph import CodegenError, Gemm, KernelGraph, PassError
from coordgraph import epilogue as ep
from coordgraph.verification import Outcome
from coordgraph.verification.vectors import NAME
from passes import Pass, Pipeline, SplitK, StreamK
from passes.lowering import LowerToHopper, LowerToTensorCores
from tests.codegen.nvptx.configurations import (
    SCHEDULES,
    Configuration,
    hopper,
    sweep,
    taking_turns,
    traits,
    two_shapes,
)
from tests.support.epilogues import EPILOGUES
from tests.support.gated import geglu, swiglu
from tests.support.outputs import FUNCTIONS
from tests.support.sampling import cover, kinds, quick_cases

REDUCTIONS: tuple[tuple[Pass, ...], ...] = (
    (StreamK(reduction="scatter"),),
    (StreamK(reduction="tree"),),
    (SplitK(splits=3, reduction="scatter"),),
)
LOWERINGS: tuple[tuple[Pass, tuple[int, int, int]], ...] = (
    (LowerToHopper(), (128, 128, 64)),
    (LowerToHopper(vector=2), (128, 128, 64)),
    (LowerToHopper(vector=1), (128, 64, 64)),
    (LowerToHopper(cluster_k=2), (64, 64, 128)),
    (LowerToHopper(), (32, 128, 64)),
    (LowerToTensorCores(), (64, 64, 32)),
    (LowerToTensorCores(stages=2, vector_a=2, vector_b=4, vector_d=1), (64, 32, 32)),
)


@ep.epilogue(residual="mn", bias="n")
def with_residual(acc: Any, residual: Any, bias: Any) -> Any:
    return acc + residual + bias


PROBLEMS: tuple[dict[str, Any], ...] = (
    {"transpose_b": True},
    {"transpose_a": True, "out_dtype": "f32"},
    {"dtype": "i8", "transpose_b": True},
    {"dtype": "f16", "batched": True},
    {"leading_dimensions": ("A", "B", "C", "D")},
    {"batched": True, "transpose_b": True, "leading_dimensions": ("A", "B", "C", "D")},
    {"grouped": True, "transpose_b": True},
    {"grouped": True, "group_axis": "k", "transpose_a": True},
    {"grouped": True, "group_axis": "mnk", "transpose_a": True},
    {"gathered_rows": True},
    {"scattered_rows": True, "grouped": True},
    *({"epilogue": case.function} for case in EPILOGUES),
    *({"epilogue": function} for function in FUNCTIONS),
    {"epilogue": with_residual, "transposed_operands": ("residual",)},
    *(
        {"epilogue": function, "parts": parts, "transpose_b": transposed}
        for function in (swiglu, geglu)
        for parts in ("interleaved", "stacked")
        for transposed in (False, True)
    ),
)


def assert_proved(graph: KernelGraph) -> None:
    verdict = graph.check(checks=[NAME])[NAME]
    assert verdict.outcome is Outcome.PROVED, "\n".join(map(str, verdict.counterexamples))


def features(case: tuple[tuple[Pass, ...], object, object]) -> tuple[object, ...]:
    """Properties of a case, each of which at least one quick test has."""
    schedule, lowering, problem = case
    return (*kinds(schedule), str(lowering), str(problem))


@quick_cases(1)
@pytest.mark.parametrize(
    ("schedule", "lowering", "problem"),
    cover(0, product((*SCHEDULES, *REDUCTIONS), LOWERINGS, PROBLEMS), features),
    ids=str,
)
def test_problems(
    schedule: tuple[Pass, ...],
    lowering: tuple[Pass, tuple[int, int, int]],
    problem: dict[str, Any],
):
    lower, tile = lowering
    try:
        graph = lower(Pipeline(schedule)(Gemm(**problem).graph(tile)))
    except PassError as refused:
        pytest.skip(str(refused))
    assert_proved(graph)


@quick_cases(2)
@pytest.mark.parametrize(
    "made",
    cover(0, (*sweep(), *two_shapes(), *hopper(), *taking_turns()), traits),
    ids=str,
)
def test_configurations(made: Configuration):
    try:
        graph = made.program.lowered
    except CodegenError as refused:
        pytest.skip(str(refused))
    assert_proved(graph)


def test_widths_that_extents_do_not_allow():
    """If rows begin at odd elements, accesses to pairs are refuted, accesses to elements proved."""
    scheduled = StreamK()(Gemm(n=101).graph((64, 64, 32)))
    narrow = LowerToTensorCores(vector_b=1, vector_d=1)(scheduled)
    assert_proved(narrow)
    for wide in (LowerToTensorCores(vector_b=1), LowerToTensorCores(vector_d=1, vector_b=2)):
        verdict = wide(scheduled).check(checks=[NAME])[NAME]
        assert "is no multiple of 2" in str(verdict.counterexamples[0])
