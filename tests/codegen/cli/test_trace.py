"""Tests of `coordgraph trace`: the Chrome trace, the events, the summary, JSON, errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from codegen.cli.options import Problem, Scheduling
from codegen.cli.products import Products
from codegen.cli.scheduled import scheduled
from codegen.cli.trace import _lines, _per_slot
from codegen.timeline import Timeline
from passes.simulation import Activity
from tests.codegen.cli.commands import coordgraph

SIZES = ("--m", "96", "--n", "128", "--k", "160", "--dtype", "f32", "--target", "cpu")
TILE = ("--tile", "32x32x32", "--threads", "2")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_summary_and_the_files(folder: Path):
    given = ("-s", "stream-k", "-w", "5", "--check", "-o", "out.json", "--events", "events.json")
    done = coordgraph("trace", *SIZES, *TILE, *given)
    assert done.code == 0, done.err
    assert "96 x 128 x 160 on cpu" in done.out
    assert "stream-k{workgroups=5}" in done.out
    assert "check        passed" in done.out
    for label in ("multiplying", "epilogue", "fix-up", "idle"):
        assert f"\n{label} " in done.out
    assert "█" in done.out
    lines = [line.split() for line in done.out.splitlines()]
    names = ["threads", "multiplying", "epilogue", "fix-up", "waiting", "idle", "tail"]
    rows = [line for line in lines[lines.index(names) + 1 :] if line]
    assert rows
    assert {row[0] for row in rows} <= {"0", "1"}
    for row in rows:
        multiplying, epilogue, fix_up, waiting, idle, tail = (
            float(cell.removesuffix("%")) for cell in row[1:]
        )
        assert waiting <= fix_up
        assert tail <= idle
        assert 90 < multiplying + epilogue + fix_up + idle < 100.5
    shown = json.loads((folder / "out.json").read_text())["traceEvents"]
    record = json.loads((folder / "events.json").read_text())
    assert record["workgroups"] == 5
    assert sum(e["ph"] == "X" for e in shown) == len(record["events"]["begin"])


def test_no_share_of_time_is_negative_zero():
    """0.1 + 0.9 + 0.1 seconds in a makespan of 1.1 seconds leave -2.2e-16 seconds of idle time."""
    times = np.array([0, 0.1, 0.2, 1.1])
    numbers = {name: np.zeros(3, np.int64) for name in ("workgroup", "slot", "role", "rank")}
    numbers |= {name: np.zeros(3, np.int64) for name in ("warpgroup", "product", "m", "n")}
    numbers |= {"first": np.zeros(3, np.int64), "count": np.ones(3, np.int64)}
    did = np.array([Activity.MULTIPLY, Activity.FINISH, Activity.MULTIPLY])
    columns = {**numbers, "begin": times[:-1], "end": times[1:], "activity": did}
    columns["stalled"] = np.zeros(3)
    found = Timeline.of(columns, target="cpu", name="data-parallel", workgroups=1, dropped=0)
    assert found.per_processor[0]["slot_seconds"]["idle"] < 0
    problem = Problem(64, 64, 64)
    made = scheduled(problem, Scheduling(target="cpu"), fixed=False)
    lines = dict(_lines(made, Products.of(problem, None, None), found))
    assert lines["idle"] == "0.0%, of which tail 0.0%"
    *_, idle, tail = (next(iter(column.cells)) for column in _per_slot(found, "threads").columns)
    assert (idle, tail) == ("0.0%", "0.0%")


def test_json_has_the_problem_and_the_results(folder: Path):
    found = coordgraph("trace", *SIZES, *TILE, "-s", "split-k", "--check", "--json").json
    assert found["products"] == [[96, 128, 160]]
    assert found["pipeline"] == "split-k"
    assert found["check"]["passed"]
    assert found["trace"] == "timeline.json"
    assert (folder / "timeline.json").exists()
    total = sum(found["slot_seconds"].values())
    assert total == pytest.approx(found["slots"] * found["makespan_seconds"])
    assert len(found["per_slot"]) == found["slots"]


@pytest.mark.slow
def test_plans_batches_and_groups():
    plan = ("--plan", "32x32x32 stream-k on 3", "--threads", "1")
    assert coordgraph("trace", *SIZES, *plan, "--json").json["plan"] == plan[1]
    assert "3 on 1 thread, 1 at a time" in coordgraph("trace", *SIZES, *plan).out
    batch = coordgraph("trace", *SIZES, *TILE, "--batches", "3", "--check", "--json")
    assert batch.json["check"]["passed"]
    sizes = ("--n", "96", "--k", "64", "--dtype", "f32", "--target", "cpu")
    groups = ("--groups", "m", "--extents", "40,0,56", "-s", "stream-k")
    assert coordgraph("trace", *sizes, *TILE, *groups, "--check", "--json").json["check"]["passed"]


def test_what_it_refuses():
    done = coordgraph("trace", *SIZES[:-2], "--target", "sm_90a", "--threads", "2")
    assert done.code in (2, 4)
    done = coordgraph("trace", *SIZES[:-2], "--target", "interpreter")
    assert done.code == 3
    assert "clock" in done.err
