"""`benchmarks simulated` reports how far predicted times are from measured ones: a few percent."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.measures import simulated as command
from benchmarks.measures.simulated import (
    MODEL,
    SIMULATION,
    accuracy,
    fastest,
    halves,
    modelled,
    simulated,
)
from benchmarks.reports.console import make_console
from benchmarks.reports.record import RESULTS, load
from passes.choosing.measurements import is_plan, known_plans
from passes.simulation.machine import fitted_machine

CORPUS = RESULTS / "sweep-corpus-h200-2026-11-23.json.gz"
SIZES = 20
"""Number of problem sizes on which the accuracy is tested; `benchmarks simulated` takes all 150."""


def row(m: int, plan: str, t: float) -> dict[str, Any]:
    return {"m": m, "n": 512, "k": 1024, "layout": "nt", "plan": plan, "t": t}


A, B, C = "128x128x64 data-parallel", "64x128x64 data-parallel", "128x64x64 data-parallel"


def test_accuracy_counts_errors_losses_and_pairs():
    rows = [row(1, A, 1.0), row(1, B, 2.0), row(1, C, 1.005), row(2, A, 4.0)]
    found = accuracy(rows, np.array([1.1, 1.0, 1.2, 4.0]))
    assert (found.rows, found.problems) == (4, 2)
    # Plan B is predicted to be the fastest, but takes twice as long as plan A. Plans A and C are
    # about equally fast, so these two plans are not compared by rank.
    assert found.worst == pytest.approx(1.0)
    assert found.loss == pytest.approx(1.0)
    assert (found.ranked, found.pairs) == (0.0, 2)
    assert found.median == pytest.approx(
        np.median([np.log(1.1), np.log(2), np.log(1.2 / 1.005), 0])
    )
    right = accuracy(rows, np.array([1.0, 2.0, 1.005, 4.0]))
    assert (right.median, right.loss, right.ranked) == (0.0, 0.0, 1.0)


def test_halves_divide_sizes_and_the_fastest_plans_are_kept():
    rows = [row(m, plan, t) for m in range(10) for plan, t in ((A, 3.0), (B, 1.0), (C, 2.0))]
    first, second = halves(rows)
    assert len(first) == len(second) == 15
    assert {r["m"] for r in first}.isdisjoint(r["m"] for r in second)
    assert halves(rows[::-1])[0][0]["m"] in {r["m"] for r in first}
    kept = fastest(first, 2)
    assert len(kept) == 10
    assert {r["plan"] for r in kept} == {B, C}


@pytest.mark.slow
def test_the_simulated_h200_is_near_measurements_and_ranks_like_the_cost_model():
    """The simulation is accurate on sizes to which its constants were not fitted.

    Its median error is below 5 %, and the plans that it ranks first are at most half a percentage
    point slower than those that the cost model ranks first.
    """
    rows = [r for r in load(CORPUS)["rows"] if is_plan(r)]
    plans = known_plans(rows)
    _, judged = halves([r for r in rows if r["plan"] in plans])
    sizes = [*dict.fromkeys((r["m"], r["n"], r["k"]) for r in judged)][:SIZES]
    judged = fastest([r for r in judged if (r["m"], r["n"], r["k"]) in sizes], 3)
    machine = fitted_machine("NVIDIA H200")
    ours = accuracy(judged, simulated(judged, plans, machine, make_console()))
    model = accuracy(judged, modelled(judged, plans, machine)[MODEL])
    assert ours.problems == SIZES
    assert ours.median < 0.05
    assert ours.most < 0.12
    assert ours.loss < model.loss + 0.005


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["simulated", *words])
        command.main()
        return capsys.readouterr().out

    path, out = tmp_path / "sweep.json", tmp_path / "out.json"
    rows = [row(m, plan, 1e-5) for m in range(256, 2049, 256) for plan in (A, B)]
    path.write_text(json.dumps({"rows": [*rows, row(256, "cublas", 1e-5)]}))
    said = run(str(path), "--all", "--json", str(out))
    assert "3 fastest plans of 8 problems" in said
    assert "by schedule" in said
    assert "is better by a tenth" in said
    record = json.loads(out.read_text())
    assert record["all"][SIMULATION]["rows"] == len(record["rows"]) == 16
    assert record["rows"][0]["predicted"][SIMULATION] > 0
    assert run(str(path), "--plans", "1").count("of 4 problems") == 1
    with pytest.raises(SystemExit):
        run(str(path), "--plans", "0")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(SystemExit, match="cannot be read as a record"):
        run(str(tmp_path / "other.json"))
    path.write_text(json.dumps({"rows": [row(256, "cublas", 1e-5)]}))
    with pytest.raises(SystemExit, match="no file has a row of a plan"):
        run(str(path))
