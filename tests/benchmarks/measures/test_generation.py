"""Tests of `benchmarks generation`, which times the choice of a plan and each stage of a build."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

from benchmarks.measures import generation
from passes.choosing import Plan

SMALL = Plan.parse("64x64x32 data-parallel{persistent=true}")


def test_stages_are_timed_in_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    ticks = count()
    found = generation.stages_of(SMALL, "sm_80", clock=lambda: float(next(ticks) ** 2))
    assert found == [1.0, 3.0, 5.0, 7.0]
    assert len(generation.STAGES) == len(found)


def test_calls_of_python_functions_are_counted():
    def inner() -> None: ...

    def step() -> None:
        for _ in range(3):
            inner()

    assert generation.python_calls(step) == 4


def test_the_least_of_several_runs_is_taken(monkeypatch: pytest.MonkeyPatch):
    runs = iter(([1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 3.0, 3.0]))

    class Pool:
        def __init__(self, *_: object, max_tasks_per_child: int, **__: object) -> None:
            assert max_tasks_per_child == 1

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...

        def map(self, function: object, plans: list[Plan], _: object) -> list[object]:
            if function is generation.count_in_process:
                return [123]
            return [next(runs) for _ in plans]

    monkeypatch.setattr(generation, "ProcessPoolExecutor", Pool)
    found = generation.measure(SMALL, "sm_80", runs=2)
    times = {"schedule": 1.0, "lower": 1.0, "emit": 3.0, "llvm": 3.0}
    assert found == {**times, "total": 9.0, "calls": 123}


@pytest.mark.slow
def test_choosing_among_few_kernels_calls_fewer_functions():
    # With this seed, the sizes are ones for which no other test has chosen (and cached) plans.
    found = generation.choosing_times(4, seed=1)
    assert {*found} == {"all plans", "a family"}
    assert found["a family"]["calls"] < found["all plans"]["calls"]
    assert all(0 < each["low"] <= each["median"] <= each["high"] for each in found.values())


def test_figures_are_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    figures = {**dict.fromkeys(generation.STAGES, 0.011), "total": 0.044, "calls": 5000}
    chosen = {"all plans": {"median": 0.0025, "low": 0.002, "high": 0.003, "calls": 77}}
    monkeypatch.setattr(generation, "measure", lambda plan, target, runs: figures)
    monkeypatch.setattr(generation, "choosing_times", lambda sizes: chosen)
    path = tmp_path / "generation.json"
    argv = ["generation", "--targets", "sm_80", "--plans", str(SMALL), "--json", str(path)]
    monkeypatch.setattr("sys.argv", argv)
    generation.main()
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("sm_80", "11", "44", "5k", "2.50", "2.00–3.00", "77"))
    written = json.loads(path.read_text())
    assert written["choosing"] == chosen
    assert written["rows"] == [{"target": "sm_80", "plan": str(SMALL), **figures}]
