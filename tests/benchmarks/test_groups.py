"""The measure of groups, apart from measuring."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import codegen
from benchmarks.groups import PLANS, ours, parser, table, uneven
from benchmarks.plans import parse_plan
from coordgraph import Gemm, KernelGraph
from passes import Pipeline
from passes.lowering import LowerToHopper


@pytest.mark.parametrize("groups", [1, 2, 7, 8, 16, 64])
@pytest.mark.parametrize("skew", [0.0, 0.8, 3.0])
def test_sizes_add_up_and_differ(groups: int, skew: float):
    sizes = uneven(8192, groups, skew)
    assert (len(sizes), sum(sizes)) == (groups, 8192)
    assert min(sizes) >= 0
    assert sizes.count(0) >= groups // 8
    assert sizes == uneven(8192, groups, skew)
    if skew == 0.0:
        assert max(sizes) - min(x for x in sizes if x) <= 1


def test_defaults():
    options = parser().parse_args([])
    assert (options.counts, options.regime, options.dtype) == ([8, 16, 32, 64], "sustained", "bf16")
    assert [str(plan) for plan in options.plans] == list(PLANS)
    assert not parser().parse_args(["--plans"]).plans


@pytest.mark.parametrize("text", PLANS)
def test_plans_are_for_hopper(text: str):
    plan = parse_plan(text)
    problem = Gemm("bf16", transpose_b=True, grouped=True).graph(plan.tile)
    assert LowerToHopper().why_not(Pipeline.parse(plan.pipeline)(problem)) is None


def test_a_plan_is_built_once_and_launched_on_its_grid(monkeypatch: pytest.MonkeyPatch):
    """The compiler is a fake; what reaches it, and the kernel, is not."""
    compiled: list[KernelGraph] = []
    launched: list[dict[str, object]] = []

    class Kernel:
        resident = 132

        def __call__(self, a: object, b: object, **given: object) -> None:
            launched.append({"a": a, "b": b, **given})

    def compile(graph: KernelGraph, target: str, lowering: object = None) -> Kernel:
        assert (target, lowering) == ("sm_90a", None)
        compiled.append(graph)
        return Kernel()

    monkeypatch.setattr(codegen, "compile", compile)
    problem: Any = SimpleNamespace(dtype="bf16", sets=[("a", "b", "d")], on_device="offsets")
    prepare = ours(parse_plan("128x128x64 stream-k on 60"), "sm_90a")
    for _ in range(2):
        prepare(problem)(0)
    (graph,) = compiled
    assert graph.gemm == Gemm("bf16", transpose_b=True, grouped=True)
    wanted = {"a": "a", "b": "b", "out": "d", "offsets": "offsets", "workgroups": 60}
    assert launched == [wanted, wanted]


def test_rows_are_shown():
    row = {"shape": "8x8x8", "groups": 2, "name": "cuBLAS"}
    times = {"seconds": {"median": 1e-5}, "tflops": 3.0, "of_cublas": 1.0}
    assert table([{**row, **times}, {**row, "problem": "WRONG: 3 of 64 elements"}]).row_count == 2
