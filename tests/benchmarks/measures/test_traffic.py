"""`benchmarks traffic` simulates tile orders without a GPU, and makes rows of measured traffic."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.counting import ncu
from benchmarks.counting.ncu import Counters, NoCounters
from benchmarks.measures import traffic
from benchmarks.measures.traffic import (
    ORDERS,
    SCHEDULES,
    TILE,
    columns,
    legend,
    model,
    plan_of,
    read_options,
)
from benchmarks.peers.plans import gemm_of_layout
from benchmarks.problems.shapes import parse_shape
from benchmarks.reports.record import load
from passes.choosing import constants_of
from tests.support.sampling import quick_cases

SMALL = ["--tile", "16x16x16", "--shapes", "64x96x64"]
FEW = ["--orders", "none", "rasterize{width=4}", "grouped"]


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(traffic.os, "cpu_count", lambda: 1)


@quick_cases(3)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_can_be_lowered(order: str, schedule: str):
    plan = plan_of(TILE, order, schedule, 66)
    assert (plan.tile, plan.cluster, plan.workgroups) == ((256, 256, 64), (2, 1, 1), 66)
    assert plan.why_not(gemm_of_layout("bf16", "nt")) is None
    assert plan.graph(gemm_of_layout("bf16", "nt")).level == "scheduled"


def test_a_row_is_of_the_device():
    row = model(parse_shape("2048x2048x256"), TILE, "none", SCHEDULES[0])
    h200 = constants_of("NVIDIA H200")
    assert (row["slots"], row["cache_bytes"]) == (h200.pairs, h200.kept_bytes)
    assert (row["order"], row["name"]) == ("row by row", f"{TILE} {SCHEDULES[0]} on 66")
    assert row["compulsory_bytes"] == 2 * 2 * 2048 * 256
    # 64 output tiles, times 4 k tiles, times the bytes of the block of A and the block of B (512 x
    # 64 elements of 2 bytes together) that each k tile requests.
    assert row["asked_bytes"] == 64 * 4 * 2 * 512 * 64
    assert row["modelled_bytes"] == row["modelled_a_bytes"] + row["modelled_b_bytes"]
    nothing = model(parse_shape("2048x2048x256"), TILE, "none", SCHEDULES[0], cache_bytes=0)
    assert nothing["modelled_bytes"] == row["asked_bytes"]
    alone = model(parse_shape("2048x2048x256"), "256x128x64", "none", SCHEDULES[0])
    assert alone["slots"] == h200.processors


CACHE = 10e6
"""Size in bytes of the simulated L2 cache; matrix B is larger."""


@pytest.mark.slow
def test_bands_save_traffic_where_workgroups_keep_step():
    """Visiting tiles in bands 8 tiles wide saves DRAM traffic, but not with plain Stream-K.

    Workgroups of Stream-K begin at different k, so they do not read the same blocks of A and B at
    the same time.
    """
    size = parse_shape("8192x8192x2048")
    whole, streamed = (
        [
            model(size, TILE, order, s, cache_bytes=CACHE)["modelled_bytes"]
            for order in ("none", "rasterize{width=8}")
        ]
        for s in SCHEDULES
    )
    assert whole[1] < 0.6 * whole[0]
    assert min(streamed) > 2 * whole[0]
    assert abs(streamed[1] / streamed[0] - 1) < 0.1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--orders", "rasterise"], "unknown pass"),
        (["--orders", "rasterize{order=hilbert,width=5}"], "power of two"),
        (["--schedules", "steam-k"], "unknown pass"),
        (["--tile", "16x16"], "is no plan"),
        (["--shapes", "64x64"], "should be three positive integers"),
        (["--time-limit", "0"], "must be positive"),
        (["--cache-mb", "-1"], "must not be negative"),
    ],
)
def test_mistakes_are_explained(words: list[str], why: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        read_options(words)
    assert why in capsys.readouterr().err.replace("\n", " ")


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "traffic", *words])
    main()


def test_simulating_needs_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    run(monkeypatch, *SMALL, *FEW, "--model-only", "--cache-mb", "0", "--results", str(tmp_path))
    printed = capsys.readouterr().out
    assert "a: 64x96x64 data-parallel{persistent=true}, 0.00 GB once" in printed
    assert "nothing is measured" not in printed
    (path,) = tmp_path.glob("traffic-*.json")
    record = load(path)
    assert (record["kind"], record["tile"], record["layout"]) == ("traffic", "16x16x16", "nt")
    rows = record["rows"]
    assert [(row["schedule"], row["order"]) for row in rows[:4]] == [
        *((SCHEDULES[0], order) for order in ("row by row", "rasterize{width=4}", "grouped")),
        (SCHEDULES[1], "row by row"),
    ]
    assert {row["modelled_bytes"] for row in rows} == {4 * 6 * 4 * 2 * 2 * 16 * 16}
    pytest.importorskip("matplotlib")
    pictures = sorted(tmp_path.glob("*.svg"))
    assert len(pictures) == 2
    text = pictures[0].read_text(encoding="utf-8")
    for word in ("row by row", "grouped", "A and B once", "simulated", "64x96x64"):
        assert word in text
    assert "measured" not in text


def test_what_is_not_measured_is_not_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(traffic, "unavailable", lambda: "no driver")
    monkeypatch.setattr(traffic, "write", lambda *_: pytest.fail("written"))
    run(monkeypatch, *SMALL, *FEW)
    assert "nothing is measured: no driver" in capsys.readouterr().out


def test_a_schedule_that_cannot_be_simulated_says_why(monkeypatch: pytest.MonkeyPatch):
    words = ["--tile", "32x32x16", "--shapes", "160x96x64", "--schedules", "heterogeneous-tiles"]
    with pytest.raises(SystemExit, match="tiles of several shapes"):
        run(monkeypatch, *words, "--orders", "none", "--model-only")


def test_a_figure_is_a_line_for_each_order():
    rows = [
        {"m": 1, "n": 2, "k": 3, "schedule": schedule, "order": order, "x": 10**9 * number,
         "compulsory_bytes": 10**9, "asked_bytes": 5 * 10**9}
        for number, (schedule, order) in enumerate([("s", "row by row"), ("s", "b"), ("t", "b")])
    ]  # fmt: skip
    assert columns(rows, "x", ".1f").splitlines() == [
        "order         a    b",
        "row by row  0.0",
        "b           1.0  2.0",
    ]
    assert legend(rows).splitlines()[1] == "b: 1x2x3 t, 1.00 GB once, 5.00 GB asked of the cache"


class Cuda:
    """A simulated GPU on which a plan's tile order determines its time and its hardware
    counters.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.jobs: dict[str, Any] = {}
        monkeypatch.setattr(traffic, "unavailable", lambda: None)
        monkeypatch.setattr(traffic, "environment", self.environment)
        monkeypatch.setattr(traffic, "compile_plans", self.compile_plans)
        monkeypatch.setattr(traffic, "Problem", lambda *what: what)
        monkeypatch.setattr(traffic, "compete", self.compete)
        monkeypatch.setattr(traffic, "Monitor", lambda: nullcontext(self))
        monkeypatch.setattr(traffic, "PlanKernel", lambda plan, kernel: (plan, kernel))
        monkeypatch.setattr(ncu, "count", self.count)

    def environment(self, kind: str) -> dict[str, Any]:
        return {"kind": kind, "date": "2026-01-31T12:00:00+00:00", "device": "NVIDIA H200"}

    def since(self, start: float) -> dict[str, float]:
        return {}

    def compile_plans(
        self, plans: Any, dtype: str, layout: str, target: str, step: Callable[[], None]
    ) -> Iterator[tuple[Any, str]]:
        assert (dtype, layout, target) == ("bf16", "nt", "native")
        assert len(plans) == len(set(plans))
        for plan in plans:
            yield plan, f"kernel of {plan}"
            step()

    def count(self, jobs: dict[str, Any], seconds: float) -> dict[tuple[str, str], Counters]:
        self.jobs = jobs
        assert 0 < seconds < 60
        return {
            (one["size"], plan): Counters(10**9 * (1 + place), 5, 7 * 10**9)
            for one in jobs["problems"]
            for place, plan in enumerate(one["plans"])
            if "grouped" not in plan
        }

    def compete(
        self, contenders: Any, problem: Any, options: Any, **given: Any
    ) -> Iterator[dict[str, Any]]:
        size, layout, _ = problem
        assert given["regimes"] == ["sustained"]
        head = {"shape": size.name, "m": size.m, "n": size.n, "k": size.k, "layout": layout}
        for plan, _ in contenders:
            row = {**head, "name": str(plan), "ours": True}
            if "grouped" in row["name"]:
                yield {**row, "problem": "WRONG: 1 of 4 elements"}
                continue
            median = 2e-3 if "rasterize" not in row["name"] else 1.5e-3
            yield {**row, "seconds": {"median": median}, "tflops": 5.0}


@pytest.mark.slow
def test_what_is_measured_goes_with_what_is_modelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    gpu = Cuda(monkeypatch)
    words = [*SMALL, "32x32x64", *FEW, "--results", str(tmp_path)]
    with pytest.raises(SystemExit, match="some results are wrong"):
        run(monkeypatch, *words)
    assert [one["size"] for one in gpu.jobs["problems"]] == ["64x96x64", "32x32x64"]
    assert {len(one["plans"]) for one in gpu.jobs["problems"]} == {2 * 3}
    (path,) = tmp_path.glob("*.json")
    rows = load(path)["rows"]
    assert len(rows) == 2 * 2 * 3
    assert [row.get("relative_time") for row in rows] == [1.0, 0.75, None] * 4
    assert [row.get("dram_read_bytes", 0) // 10**9 for row in rows] == [1, 2, 0, 4, 5, 0] * 2
    assert all(row["modelled_bytes"] >= row["compulsory_bytes"] for row in rows)
    printed = capsys.readouterr().out
    assert "counters of 8 launches; 4 are left out" in printed
    for word in ("GB read from the L2 cache, measured", "7.00", "0.750", "grouped: WRONG"):
        assert word in printed
    pytest.importorskip("matplotlib")
    text = next(tmp_path.glob("*data-parallel*.svg")).read_text(encoding="utf-8")
    for word in ("measured", "simulated", "time by that of the first order", "NVIDIA H200"):
        assert word in text


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--no-counters"]])
def test_times_are_taken_where_nothing_can_be_counted(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    Cuda(monkeypatch)

    def refuse(jobs: Any, seconds: float) -> Any:
        raise NoCounters("the driver keeps them [to itself]")

    monkeypatch.setattr(ncu, "count", refuse)
    run(monkeypatch, *SMALL, *FEW[:3], "--results", str(tmp_path), *words)
    printed = capsys.readouterr().out
    assert ("no counters: the driver keeps them [to itself]" in printed) == (not words)
    (path,) = tmp_path.glob("*.json")
    rows = load(path)["rows"]
    assert [row["relative_time"] for row in rows] == [1.0, 0.75] * 2
    assert not [row for row in rows if "dram_read_bytes" in row]
