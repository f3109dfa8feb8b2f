"""Contenders for grouped problems pass the right arguments to kernels, and refuse some problems."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import codegen
from benchmarks.peers import grouped_peers
from benchmarks.peers.contender import Unavailable
from benchmarks.peers.grouped_peers import plan_kernel
from benchmarks.peers.plans import compile_for, parse_plan
from benchmarks.problems.grouped import AXES
from coordgraph import CoordGraphError, Gemm, KernelGraph


def test_a_plan_is_built_for_groups_and_launched_on_its_grid(monkeypatch: pytest.MonkeyPatch):
    """A contender builds a plan's kernel for groups, and launches it on the plan's grid."""
    compiled: list[KernelGraph] = []
    launched: list[dict[str, object]] = []

    class Kernel:
        resident = 132

        def __call__(self, a: object, b: object, **given: object) -> None:
            launched.append({"a": a, "b": b, **given})

    def compile(
        graph: KernelGraph, target: str, lowering: object = None, timeline: bool = False
    ) -> Kernel:
        assert not timeline
        assert (target, lowering) == ("sm_90a", None)
        compiled.append(graph)
        return Kernel()

    monkeypatch.setattr(codegen, "compile", compile)
    problem: Any = SimpleNamespace(sets=[("a", "b", "d")], device_offsets="offsets")
    plans = [parse_plan(f"128x128x64 stream-k on {grid}") for grid in (60, 64)]
    gemm = Gemm("bf16", transpose_b=True, grouped=True)
    steps: list[int] = []
    built = list(compile_for(plans, gemm, "sm_90a", lambda: steps.append(1)))
    for plan, kernel in built:
        assert plan_kernel(plan, kernel)(problem)(0) == "d"
    (graph,) = compiled
    assert graph.gemm == gemm
    assert len(steps) == 2
    wanted = {"a": "a", "b": "b", "out": "d", "offsets": "offsets"}
    assert launched == [{**wanted, "workgroups": grid} for grid in (60, 64)]


@pytest.mark.parametrize("axis", ["m", "k"])
def test_the_chosen_plan_is_called_as_the_problem_is_stored(
    axis: str, monkeypatch: pytest.MonkeyPatch
):
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        grouped_peers, "chosen", lambda *_, **options: calls.append((options,)) or "plan"
    )
    monkeypatch.setattr(
        grouped_peers, "grouped_matmul", lambda *arrays, **options: calls.append((arrays, options))
    )
    gemm = AXES[axis].gemm
    problem: Any = SimpleNamespace(
        dtype="bf16", gemm=gemm, sets=[("A", "B", "D")], device_offsets="o"
    )
    contender = grouped_peers.Library()
    assert contender(problem)(0) == "D"
    options = {"group_axis": axis, "transpose_a": axis == "k", "transpose_b": axis == "m"}
    asked = {"out": "D", "offsets": "o", **options}
    assert calls == [(asked,), (("A", "B", "o"), {"out": "D", **options})]
    assert contender.details == {"plan": "plan"}


def test_a_plan_that_was_not_built_says_why():
    problem: Any = None
    with pytest.raises(CoordGraphError, match="no such tile"):
        plan_kernel(parse_plan("128x128x64 stream-k"), CoordGraphError("no such tile"))(problem)


def test_grouped_mm_is_for_bf16():
    with pytest.raises(Unavailable, match="bf16 only"):
        grouped_peers.grouped_mm(SimpleNamespace(dtype="f16"))  # pyright: ignore[reportArgumentType]


def test_grouped_mm_refuses_lists():
    problem: Any = SimpleNamespace(dtype="bf16", grouped_mm_operands=lambda number: None)
    with pytest.raises(Unavailable, match="share two of their extents"):
        grouped_peers.grouped_mm(problem)
