"""Tests of `python -m benchmarks epilogue`, which measures how much time a fused epilogue costs.

The tests cover how the cost is computed from times, the goal (at most 2 % of the time of the plain
kernel for large k), checks of the contenders' results, and a run with simulated times.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from benchmarks.measures import epilogue
from benchmarks.measures.epilogue import check_of, costs, parser, show, summary
from benchmarks.peers.epilogue_peers import EAGER, FUSED, LIBRARY, PLAIN, TORCH_COMPILE
from benchmarks.problems.shapes import Shape
from benchmarks.reports.record import load

PLAN = "128x256x64 stream-k on 132"


def rows_of(k: int, **times: float | None) -> list[Any]:
    """Result rows of one problem; times are in microseconds, None means that a contender failed."""
    names = {"plain": PLAIN, "fused": FUSED, "library": LIBRARY, "eager": EAGER,
             "compiled": TORCH_COMPILE}  # fmt: skip
    head = {"shape": f"k{k}", "m": 256, "n": 512, "k": k, "layout": "nt", "plan": PLAN}
    return [
        {**head, "name": names[name]}
        | ({"problem": "refused"} if t is None else {"seconds": {"median": 1e-6 * t}})
        for name, t in times.items()
    ]


def test_costs_are_of_the_same_plan_in_the_same_run():
    (found,) = costs(rows_of(4096, plain=100, fused=101, library=98, eager=150, compiled=None))
    assert found.cost == pytest.approx(0.01)
    assert found.speedup(EAGER) == pytest.approx(150 / 101)
    assert found.speedup(TORCH_COMPILE) is None
    assert (found.problem, found.plan) == ("256x512x4096 nt", PLAN)


@pytest.mark.parametrize("missing", ["plain", "fused"])
def test_a_problem_without_one_of_both_kernels_has_no_cost(missing: str):
    times: dict[str, float | None] = {"plain": 100, "fused": 101, "eager": 150}
    assert costs(rows_of(4096, **{**times, missing: None})) == []


def test_the_goal_is_for_deep_problems():
    shallow, deep = rows_of(1024, plain=10, fused=12), rows_of(4096, plain=100, fused=101.5)
    means = summary(costs([*shallow, *deep]))
    assert means["largest_deep_cost"] == pytest.approx(0.015)
    assert means["within_goal"] is True
    assert means["cost"] == pytest.approx((1.2 * 1.015) ** 0.5 - 1)
    assert means["speedup"] == {}
    deeper = rows_of(8192, plain=100, fused=103)
    missed = summary(costs([*shallow, *deep, *deeper]))
    assert (missed["within_goal"], missed["largest_deep_cost"]) == (False, pytest.approx(0.03))
    assert summary(costs(shallow))["largest_deep_cost"] is None
    assert summary([]) == {}


def test_the_verdict_is_printed():
    console = Console(record=True, width=160)
    show(rows_of(4096, plain=100, fused=103, eager=150, compiled=None), console)
    printed = console.export_text()
    for text in ("+3.0%", "the goal of 2% is MISSED", "torch eager 1.456", "refused"):
        assert text in printed


def test_the_plain_kernel_is_checked_as_a_product():
    calls: list[Any] = []
    problem: Any = SimpleNamespace(
        fault=lambda compute: calls.append("product"),
        epilogue_fault=lambda compute, *, rounded_steps: calls.append(rounded_steps),
    )
    check = check_of(problem)
    for name, ours in ((PLAIN, True), (FUSED, True), (EAGER, False)):
        contender: Any = SimpleNamespace(name=name, ours=ours)
        check(contender, lambda: None)
    assert calls == ["product", False, True]


def test_a_run_times_both_kernels_by_the_same_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    chosen: list[Any] = []

    def plan_for(shape: Shape, layout: str, dtype: str, function: Any) -> str:
        chosen.append((shape.k, layout, dtype, function))
        return PLAN

    def kernels(plan: Any, dtype: str, layout: str, target: str, function: Any) -> list[str]:
        assert (plan, function) == (PLAN, "traced")
        return [PLAIN, FUSED]

    def compete(contenders: Any, problem: Any, options: Any, **given: Any) -> Iterator[Any]:
        shape, layout, _ = problem
        assert callable(given["check"])
        assert contenders == [PLAIN, FUSED, LIBRARY, EAGER]
        times = dict(zip(("plain", "fused", "library", "eager"), (100, 101, 99, 120), strict=True))
        for row in rows_of(shape.k, **times):
            yield {**row, "layout": layout, "shape": shape.name}

    for name, fake in {
        "parse_for_gpu": lambda made: made.parse_args(),
        "environment": lambda kind: {"kind": kind, "date": "2026-01-31T12:00:00+00:00"},
        "trace_epilogue": lambda: "traced",
        "plan_for": plan_for,
        "kernels": kernels,
        "FusedLibrary": lambda function: LIBRARY,
        "torch_peers": lambda mode: [EAGER],
        "EpilogueProblem": lambda *what: what,
        "compete": compete,
        "Monitor": lambda: nullcontext(SimpleNamespace(since=None)),
    }.items():
        monkeypatch.setattr(epilogue, name, fake)
    words = ["epilogue", "--shapes", "256x512x1024", "256x512x8192", "--layouts", "nt,nn"]
    monkeypatch.setattr(sys, "argv", [*words, "--results", str(tmp_path)])
    epilogue.main()
    assert chosen == [
        (k, layout, "bf16", "traced") for layout in ("nt", "nn") for k in (1024, 8192)
    ]
    (path,) = tmp_path.glob("epilogue-*.json")
    record = load(path)
    assert len(record["rows"]) == 4 * 4
    assert record["means"]["within_goal"] is True
    assert record["means"]["speedup"][EAGER] == pytest.approx(120 / 101, rel=1e-5)
    assert "largest cost with k >= 4096: +1.0%" in capsys.readouterr().out


def test_options():
    options = parser().parse_args(["--plan", PLAN, "--no-torch"])
    assert (str(options.plan), options.torch, options.layouts) == (PLAN, False, ["nt"])
