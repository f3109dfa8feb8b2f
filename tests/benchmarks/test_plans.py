"""Plans as text."""

from __future__ import annotations

import argparse

import pytest

import codegen
from benchmarks.plans import Plan, compile_plans, parse_plan, products
from coordgraph import CodegenError, KernelGraph
from passes.lowering import LowerToHopper


@pytest.mark.parametrize(
    "text",
    [
        "128x256x64 data-parallel",
        "256x256x64@c2x1 two-tile-stream-k{owner=last}",
        "64x64x64@c1x2 reorder{group=8},stream-k{workgroups=132}",
        "256x128x64@c2x1@pingpong data-parallel{persistent=true}",
        "64x256x64@pingpong stream-k",
    ],
)
def test_text_round_trips(text: str):
    assert str(parse_plan(text)) == text


def test_parts():
    plan = parse_plan(" 256x128x64@c2x1   stream-k ")
    assert plan == Plan((256, 128, 64), "stream-k", (2, 1))
    assert parse_plan("256x128x64@c1x1 stream-k") == parse_plan("256x128x64 stream-k")
    turns = parse_plan("64x256x64@pingpong stream-k")
    assert turns == Plan((64, 256, 64), "stream-k", consumers="pingpong")
    assert parse_plan("64x64x64@cooperative stream-k") == parse_plan("64x64x64 stream-k")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("128x256x64", "is not like"),
        ("data-parallel", "is not like"),
        ("128x256 stream-k", "is not like 4096"),
        ("128x256x64@2x1 stream-k", "is not like"),
        ("128x256x64@c0x1 stream-k", "at least one"),
        ("128x256x64@tennis stream-k", "is not like"),
        ("128x256x64@pingpong@c2x1 stream-k", "is not like"),
        ("128x256x64 steam-k", "stream-k"),
        ("128x256x64 stream-k{owner=}", "stream-k"),
    ],
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
def test_the_graph_has_the_layout(layout: str, a: bool, b: bool):
    graph = parse_plan("64x64x64 stream-k").graph("bf16", layout)
    assert (graph.gemm.transpose_a, graph.gemm.transpose_b) == (a, b)
    assert graph.level == "scheduled"


def test_the_lowering_is_the_plans(monkeypatch: pytest.MonkeyPatch):
    """What a plan asks for reaches the compiler; without a wish the default is left alone."""
    asked: dict[str, object] = {}

    def compile(graph: KernelGraph, target: str, lowering: object = None) -> None:
        asked[target] = lowering

    monkeypatch.setattr(codegen, "compile", compile)
    for text, target in (("64x64x64 stream-k", "sm_80"), ("64x256x64@pingpong stream-k", "sm_90a")):
        parse_plan(text).compile("bf16", "nt", target)
    assert asked == {"sm_80": None, "sm_90a": LowerToHopper(consumers="pingpong")}


def test_errors_come_with_their_plan(monkeypatch: pytest.MonkeyPatch):
    class Loaded:
        resident = 132

    def compile(plan: Plan, dtype: str, layout: str, target: str) -> Loaded:
        if plan.tile[0] == 64:
            raise CodegenError(f"too small for {dtype} {layout} on {target}")
        return Loaded()

    monkeypatch.setattr(Plan, "compile", compile)
    plans = products(["stream-k"], [(64, 64, 64), (128, 64, 64)])
    steps: list[int] = []
    found = list(compile_plans(plans, "bf16", "nt", "sm_90a", lambda: steps.append(1)))
    assert [plan for plan, _ in found] == plans
    assert str(found[0][1]) == "too small for bf16 nt on sm_90a"
    assert isinstance(found[1][1], Loaded)
    assert len(steps) == 2
