"""Tests of `benchmarks.measures.streaming`, which compares two kinds of plans.

Plans of one kind divide output tiles among workgroups (Stream-K); in plans of the other kind, one
workgroup computes each tile.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.measures import chosen
from benchmarks.measures.streaming import Compared, compared, means
from benchmarks.reports.record import RESULTS, key_of, load
from passes.choosing import Plan, constants_of
from passes.choosing.measurements import problem_of
from passes.choosing.model import cost
from passes.choosing.plan_table import Table

WHOLE = "128x256x64 data-parallel{persistent=true} on 132"
SMALL = "128x128x64 data-parallel{persistent=true} on 132"
STREAM, HYBRID = "128x256x64 stream-k{owner=last} on 132", "128x256x64 hybrid-stream-k on 132"
TWO_SHAPES = "128x256x64 heterogeneous-tiles on 132"


def row(plan: str, seconds: float, k: int = 4096, group: str = "B") -> dict[str, object]:
    return dict(m=2048, n=2304, k=k, group=group, layout="nt", plan=plan, t=seconds)


def total(plan: str) -> float:
    problem = problem_of(row(plan, 1.0))
    return float(cost(Table.of([(problem, Plan.parse(plan))]), constants_of()).total[0])


def test_the_best_of_each_kind_are_compared():
    times = {WHOLE: 90e-6, SMALL: 80e-6, STREAM: 70e-6, HYBRID: 60e-6, TWO_SHAPES: 10e-6}
    rows = [row(plan, t) for plan, t in times.items()]
    (found,) = compared(
        [*rows, row("cublas", 1e-6), row("64x64x64 grouped,stream-k", 1e-6)], "NVIDIA H200"
    )
    assert (found.whole_plan, found.whole_seconds) == (SMALL, 80e-6)
    assert (found.streaming_plan, found.streaming_seconds) == (HYBRID, 60e-6)
    assert found.measured == pytest.approx(80 / 60)
    assert found.predicted == pytest.approx(total(SMALL) / total(HYBRID))
    assert found.candidates


def test_a_crowd_is_no_candidate():
    rows = [row("128x128x64 data-parallel", 90e-6), row(STREAM, 70e-6)]
    (found,) = compared(rows, "NVIDIA H200")
    assert not found.candidates


@pytest.mark.parametrize("plans", [[WHOLE], [STREAM], [TWO_SHAPES, STREAM], ["cublas"]])
def test_problems_without_both_kinds_are_left_out(plans: list[str]):
    assert not compared([row(plan, 1e-6) for plan in plans], "NVIDIA H200")


def one(group: str, measured: float, predicted: float, *, candidates: bool = True) -> Compared:
    return Compared(group, "p", "s", 1.0, "w", measured, predicted, candidates)


def test_means_are_of_groups_of_all_and_of_candidates():
    found = [one("A", 2.0, 1.0), one("A", 0.5, 0.5), one("B", 1.0, 1.05, candidates=False)]
    found_means = means(found)
    assert list(found_means) == ["A", "B", "all", "candidates"]
    assert (found_means["A"].measured, found_means["A"].predicted) == (
        pytest.approx(1),
        pytest.approx(0.5**0.5),
    )
    assert found_means["A"].bias == pytest.approx(0.5**0.5)
    assert found_means["A"].error == pytest.approx(2 ** (0.5**0.5) - 1)
    assert (found_means["A"].near, found_means["B"].near) == (0.5, 1.0)
    assert (found_means["all"].problems, found_means["candidates"].problems) == (3, 2)
    assert found_means["candidates"].near == 0.5
    assert found[0].error() == found[0].__class__("", "", "", 1.0, "", 1.0, 2.0, True).error()


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path, out = tmp_path / "sweep.json", tmp_path / "out.json"
    good = [row(SMALL, total(SMALL)), row(STREAM, total(STREAM))]
    bad = [row(WHOLE, 90e-6, k=2048, group="C"), row(STREAM, 20e-6, k=2048, group="C")]
    path.write_text(json.dumps({"rows": [*good, *bad]}))
    words = ["chosen", str(path), "--streaming", "--worst", "1", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    chosen.main()
    printed = capsys.readouterr().out
    assert "2048x2304x2048 nt: measured 4.500" in printed
    assert "2048x2304x4096 nt" not in printed
    assert "B: wave-adverse" in printed
    record = load(out)
    assert record["kind"] == "streaming"
    assert record["means"]["B"]["error"] == pytest.approx(0)
    assert [found["measured"] for found in record["rows"]][1] == pytest.approx(4.5)
    path.write_text(json.dumps({"rows": good[:1]}))
    with pytest.raises(SystemExit, match="whole tiles and one of split tiles"):
        chosen.main()


@pytest.mark.slow
def test_of_what_was_measured_the_model_says_which_kind_is_better():
    """The cost model predicts how much faster the best Stream-K plan is than whole tiles.

    In recorded times, the geometric mean of predicted over measured speedup is within 5 % of 1.
    """
    paths = [*(RESULTS / "fit").glob("sweep-*.json.gz")]
    assert len(paths) > 5
    for path in paths:
        rows = load(path)["rows"]
        if len({key_of(row) for row in rows}) < 15:
            continue  # files with few sizes hold times for fitting one term of the cost model
        found = means(compared(rows, "NVIDIA H200"))
        assert found["candidates"].problems > 15
        assert found["candidates"].bias == pytest.approx(1, abs=0.05)
        assert found["candidates"].error < 0.15
