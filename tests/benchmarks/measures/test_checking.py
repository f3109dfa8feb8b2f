"""Tests of `python -m benchmarks checking`, which times the checks of graphs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.measures import checking


def test_a_build_and_its_checks_are_timed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    found = checking.measure("data-parallel", "interpreter", thorough=False)
    assert [*found] == ["build", "check", "share", "again"]
    assert found["again"] <= found["check"]


def test_times_are_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    times = {"build": 2.0, "check": 0.5, "share": 0.25, "again": 0.0, "all": 3.0}

    def measure(schedule: str, target: str, *, thorough: bool = True) -> dict[str, float]:
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
