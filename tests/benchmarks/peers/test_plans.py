"""Plans are parsed from the command line and compiled in parallel."""

from __future__ import annotations

import argparse

import pytest

import codegen
from benchmarks.peers import plans
from benchmarks.peers.plans import Plan, compile_plans, gemm_of_layout, loaded, parse_plan, products
from coordgraph import CodegenError, Gemm, KernelGraph
from passes.lowering import LowerToHopper


def test_a_plan_is_read():
    assert parse_plan("256x128x64@c2x1 stream-k on 60") == Plan(
        (256, 128, 64), (2, 1, 1), "stream-k", 60
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [("128x256x64", "is no plan"), ("128x256x64 steam-k", "stream-k")],
)
def test_malformed_plans_say_why(text: str, why: str):
    with pytest.raises(argparse.ArgumentTypeError, match=why):
        parse_plan(text)


def test_products():
    found = products(["stream-k", "data-parallel"], [(64, 64, 64), (128, 64, 64)])
    assert [str(plan) for plan in found] == [
        "64x64x64 stream-k",
        "128x64x64 stream-k",
        "64x64x64 data-parallel",
        "128x64x64 data-parallel",
    ]


@pytest.mark.parametrize(
    ("layout", "a", "b"), [("nn", False, False), ("nt", False, True), ("tn", True, False)]
)
def test_the_problem_has_the_layout(layout: str, a: bool, b: bool):
    gemm = gemm_of_layout("bf16", layout)
    assert (gemm.transpose_a, gemm.transpose_b) == (a, b)


class Loaded:
    resident = 132


def test_the_lowering_is_the_plans(monkeypatch: pytest.MonkeyPatch):
    """The compiler gets a plan's options as a lowering pass; None if the plan has no options."""
    asked: dict[str, object] = {}

    def compile(
        graph: KernelGraph, target: str, lowering: object = None, timeline: bool = False
    ) -> Loaded:
        assert not timeline
        asked[target] = lowering
        return Loaded()

    monkeypatch.setattr(codegen, "compile", compile)
    for text, target in (("64x64x64 stream-k", "sm_80"), ("64x256x64@pingpong stream-k", "sm_90a")):
        plan = parse_plan(text)
        loaded(plan, plan.graph(gemm_of_layout("bf16", "nt")), target)
    assert asked == {"sm_80": None, "sm_90a": LowerToHopper(consumers="pingpong", reads_c=False)}


def test_errors_come_with_their_plan_and_grids_share_a_kernel(monkeypatch: pytest.MonkeyPatch):
    built: list[str] = []

    def build(plan: Plan, gemm: Gemm, target: str) -> Loaded:
        built.append(plan.kernel)
        if plan.tile[0] == 64:
            raise CodegenError(f"too small on {target}")
        return Loaded()

    monkeypatch.setattr(plans, "build", build)
    asked = [parse_plan(f"{m}x64x64 stream-k on {grid}") for m in (64, 128) for grid in (5, 6)]
    steps: list[int] = []
    found = list(compile_plans(asked, "bf16", "nt", "sm_90a", lambda: steps.append(1)))
    assert [plan for plan, _ in found] == asked
    assert [str(kernel) for _, kernel in found[:2]] == ["too small on sm_90a"] * 2
    assert found[2][1] is found[3][1]
    assert isinstance(found[3][1], Loaded)
    assert len(steps) == len(asked)
    assert sorted(built) == ["128x64x64 stream-k", "64x64x64 stream-k"]
