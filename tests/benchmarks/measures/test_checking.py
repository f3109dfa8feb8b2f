"""Tests of `python -m benchmarks checking`, which times the checks of graphs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.measures import checking


def test_a_build_and_its_checks_are_timed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    found = checking.measure("data-parallel", "interpreter", thorough=False, runs=1)
    assert [*found] == ["build", "check", "share", "again"]
    assert found["again"] <= found["check"]
    assert found["share"] == found["check"] / found["build"]


def test_the_least_of_several_runs_is_taken(monkeypatch: pytest.MonkeyPatch):
    runs = iter(
        ({"build": 2.0, "check": 0.9, "again": 0.1}, {"build": 3.0, "check": 0.5, "again": 0.2})
    )

    class Pool:
        def __init__(self, *_: object, max_tasks_per_child: int, **__: object) -> None:
            assert max_tasks_per_child == 1

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...

        def map(self, _: object, *columns: tuple[object, ...]) -> list[dict[str, float]]:
            return [next(runs) for _ in columns[0]]

    monkeypatch.setattr(checking, "ProcessPoolExecutor", Pool)
    found = checking.measure("stream-k", "cpu", thorough=False, runs=2)
    assert found == {"build": 2.0, "check": 0.5, "share": 0.25, "again": 0.1}


def test_times_are_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    times = {"build": 2.0, "check": 0.5, "share": 0.25, "again": 0.0, "all": 3.0}

    def measure(
        schedule: str, target: str, *, thorough: bool = True, runs: int = 3
    ) -> dict[str, float]:
        return {name: value for name, value in times.items() if thorough or name != "all"}

    monkeypatch.setattr(checking, "measure", measure)
    monkeypatch.setenv("COORDGRAPH_CACHE", "")
    path = tmp_path / "checking.json"
    argv = ["checking", "--targets", "cpu", "--schedules", "stream-k", "--json", str(path)]
    monkeypatch.setattr("sys.argv", argv)
    checking.main()
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("stream-k", "2.000", "25%", "3.000"))
    assert json.loads(path.read_text()) == [{"target": "cpu", "schedule": "stream-k", **times}]
    monkeypatch.setattr("sys.argv", [*argv[:-2], "--quick"])
    checking.main()
    assert "3.000" not in capsys.readouterr().out
