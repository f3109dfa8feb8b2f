"""`benchmarks.measures.residuals`: the cost model's mean error for each kind of plan, such as each
schedule.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.measures import residuals as command
from benchmarks.measures.residuals import KEYS, residuals
from passes.choosing import Plan, constants_of
from passes.choosing.measurements import Measurements, problem_of
from passes.choosing.model import cost
from passes.choosing.plan_table import Table

H200 = constants_of()
PLANS = (
    "128x256x64 data-parallel{persistent=true} on 132",
    "128x256x64 rasterize{width=4},data-parallel{persistent=true} on 132",
    "256x256x64@c2x1 two-tile-stream-k{owner=last} on 66",
    "128x192x64@pingpong data-parallel{persistent=true} on 132",
)


def sweep(path: Path, slower: dict[str, float], depths: tuple[int, ...] = (2048, 4096)) -> Path:
    """Write a results file with a row for each plan in `PLANS` and each k in `depths`.

    A row's time is the plan's predicted time, times the plan's factor in `slower` (default 1).
    """
    rows: list[dict[str, object]] = []
    for k in depths:
        for plan in PLANS:
            row: dict[str, object] = dict(m=4096, n=4608, k=k, group="B", layout="nt", plan=plan)
            table = Table.of([(problem_of(row), Plan.parse(plan))])
            seconds = float(cost(table, H200).total[0]) * slower.get(plan, 1.0)
            rows.append({**row, "t": seconds})
    path.write_text(json.dumps({"rows": rows}))
    return path


def by(path: Path, key: str, **options: float) -> dict[str, tuple[float, int, int]]:
    measured = Measurements.read([path], H200)
    found = residuals(measured, H200, key, least=1, near=options.get("near", 10.0))
    assert [one.mean for one in found] == sorted(one.mean for one in found)
    return {one.name: (one.mean, one.plans, one.problems) for one in found}


def test_what_is_as_predicted_has_no_residuals(tmp_path: Path):
    path = sweep(tmp_path / "a.json", {})
    for key in KEYS:
        assert all(mean == pytest.approx(0, abs=1e-9) for mean, *_ in by(path, key).values())


def test_a_kind_of_plan_that_takes_longer_is_seen(tmp_path: Path):
    """A plan that takes 10 % longer than predicted raises the residual of the plan's schedule."""
    path = sweep(tmp_path / "a.json", {PLANS[2]: 1.1})
    found = by(path, "schedule")
    mean = 1.1**0.25
    assert found["two-tile-stream-k"] == (pytest.approx(1.1 / mean - 1), 2, 2)
    assert found["data-parallel"] == (pytest.approx(1 / mean - 1), 6, 2)
    assert set(by(path, "part")) == {"128x256", "128x192 in turns"}
    assert set(by(path, "band")) == {"1", "4"}
    assert set(by(path, "depth")) == {"up to 32", "up to 64"}


def test_plans_that_nobody_would_choose_are_left_out(tmp_path: Path):
    path = sweep(tmp_path / "a.json", {PLANS[3]: 100.0})
    assert "128x192 in turns" in by(path, "part", near=1000.0)
    assert "128x192 in turns" not in by(path, "part", near=2.0)


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = sweep(tmp_path / "a.json", {PLANS[2]: 1.1})

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["residuals", *words])
        command.main()
        return capsys.readouterr().out

    said = run(str(path), "--by", "schedule", "cluster", "--near", "10", "--least", "1")
    assert "two-tile-stream-k" in said
    assert "2x1x1" in said
    with pytest.raises(SystemExit, match="no candidate plan of the cost model"):
        run(str(path), "--from", "1e9")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(SystemExit, match="has no rows with m, n, k"):
        run(str(tmp_path / "other.json"))
    with pytest.raises(SystemExit, match=r"none\.json"):
        run(str(tmp_path / "none.json"))
