"""`benchmarks chosen`, for each problem, compares the plan that the cost model prefers with the
plan that was measured to be the fastest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.measures import chosen
from benchmarks.reports.record import RESULTS, load

FIT = RESULTS / "fit"


def row(plan: str, seconds: float) -> dict[str, object]:
    return {
        "m": 4096,
        "n": 4096,
        "k": 4096,
        "group": "C",
        "layout": "nt",
        "plan": plan,
        "t": seconds,
    }


def test_the_best_and_the_preferred_plan_are_told_apart() -> None:
    slow_but_large = row("128x256x64 data-parallel{persistent=true} on 132", 200e-6)
    fast_but_small = row("64x64x64 data-parallel{persistent=true} on 132", 100e-6)
    (found,) = chosen.judge([row("cublas", 150e-6), slow_but_large, fast_but_small], "NVIDIA H200")
    assert found.best == pytest.approx(1.5)
    assert found.best_plan == fast_but_small["plan"]
    assert found.chosen == pytest.approx(0.75)
    assert found.chosen_plan == slow_but_large["plan"]


def test_problems_without_cublas_are_left_out() -> None:
    assert not chosen.judge([row("128x256x64 data-parallel on 132", 1e-3)], "NVIDIA H200")


def test_schedules_that_no_model_knows_are_left_out() -> None:
    known = row("128x256x64 data-parallel{persistent=true} on 132", 200e-6)
    other = row("128x256x64 grouped,data-parallel", 100e-6)
    assert not chosen.judge([row("cublas", 150e-6), other], "NVIDIA H200")
    (found,) = chosen.judge([row("cublas", 150e-6), other, known], "NVIDIA H200")
    assert found.best_plan == known["plan"]


@pytest.mark.slow
def test_the_kept_measurements_hold_every_group() -> None:
    paths = [*FIT.glob("sweep-h200-2*.json.gz")]
    assert len(paths) == 2
    for path in paths:
        found = chosen.judge(load(path)["rows"], "NVIDIA H200")
        assert {one.group for one in found} >= set("ABCDEF")
        assert all(one.chosen <= one.best for one in found)


def judged(group: str, best: float, preferred: float) -> chosen.Choice:
    return chosen.Choice(group, f"{group} {best}", 1.0, 1 / best, "a", 1 / preferred, "b")


def test_means_are_geometric_and_of_groups_and_of_all() -> None:
    found = [judged("A", 2.0, 1.0), judged("A", 0.5, 0.5), judged("B", 1.0, 0.8)]
    means = chosen.summary(found)
    assert list(means) == ["A", "B", "all"]
    assert means["A"]["best"] == (pytest.approx(1.0), 0.5)
    assert means["A"]["of_best"] == (pytest.approx(2**-0.5), 0.5)
    assert means["B"]["chosen"] == (pytest.approx(0.8), 0.8)
    assert means["all"]["of_best"] == (pytest.approx(0.4 ** (1 / 3)), 0.5)


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["chosen", *map(str, words)])
    chosen.main()


def test_the_command_lists_what_is_lost_most_and_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = row("128x256x64 data-parallel{persistent=true} on 132", 200e-6)
    fast = row("64x64x64 data-parallel{persistent=true} on 132", 100e-6)
    path, out = tmp_path / "sweep.json", tmp_path / "chosen.json"
    path.write_text(json.dumps({"rows": [row("cublas", 150e-6), slow, fast]}))
    command(monkeypatch, path, "--json", out)
    printed = capsys.readouterr().out
    assert "4096x4096x4096 nt: 0.500 of the best; chosen 0.750 128x256x64" in printed
    record = load(out)
    assert (record["kind"], record["of"]) == ("chosen", "sweep.json")
    assert record["means"]["all"]["of_best"]["mean"] == pytest.approx(0.5)
    (found,) = record["rows"]
    assert found["of_best"] == pytest.approx(0.5)
    assert (found["best_plan"], found["best_seconds"]) == (fast["plan"], 100e-6)
    assert (found["chosen_plan"], found["chosen_seconds"]) == (slow["plan"], 200e-6)
    assert found["cublas_seconds"] == 150e-6
    command(monkeypatch, path, "--worst", 0)
    assert "of the best" not in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{}", '{"rows": []}'])
def test_files_that_say_nothing_are_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match=r"has no rows with m, n, k|has no problem"):
        command(monkeypatch, path)


def test_one_summary_is_of_one_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command(monkeypatch, "a.json", "b.json", "--json", "c.json")
    assert "of one file" in capsys.readouterr().err
