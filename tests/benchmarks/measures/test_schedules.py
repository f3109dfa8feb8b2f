"""`benchmarks schedules` counts iterations and waves correctly; its measurements are simulated."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.__main__ import main
from benchmarks.counting.counts import plane
from benchmarks.measures import schedules
from benchmarks.measures.schedules import (
    COUNTS,
    SCHEDULES,
    columns,
    read_options,
    rows_of,
)
from benchmarks.reports.record import load

TILE = (128, 128, 64)


def test_the_scale_has_whole_waves_and_nearly_square_products():
    assert {132, 264, 396} <= set(COUNTS)
    assert list(COUNTS) == sorted(set(COUNTS))
    for tiles in COUNTS:
        rows, width = plane(tiles)
        assert rows * width == tiles
        assert width <= 3 * rows


@pytest.mark.slow
def test_iterations_of_streamed_schedules_are_shared_equally():
    """Stream-K gives no workgroup more iterations than the average per workgroup, rounded up.

    `least_segment=8` may move both ends of a workgroup's range of iterations, by at most 7 each.
    """
    for tiles in COUNTS:
        rows = {row["schedule"]: row for row in rows_of(TILE, tiles, 4096, SCHEDULES, 132)}
        even = math.ceil(tiles * 64 / 132)
        assert rows["stream-k{owner=last}"]["busiest"] == even
        assert rows["two-tile-stream-k{owner=last}"]["busiest"] == even
        slivers = rows["stream-k{owner=last,least_segment=8}"]
        assert slivers["busiest"] <= even + 14
        assert slivers["fix_ups"] <= rows["stream-k{owner=last}"]["fix_ups"]


def test_columns_line_up():
    rows = [row for t in (5, 132) for row in rows_of(TILE, t, 512, SCHEDULES[:2], 132)]
    assert columns(rows, "busiest", "d").splitlines() == [
        "  T   T/W  a  b",
        "  5  0.04  8  8",
        "132  1.00  8  8",
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--counts", "0"], "must be positive"),
        (["--time-limit", "0"], "must be positive"),
        (["--schedules", "steam-k"], "unknown pass"),
        (["--schedules", "stream-k{least_segment=0}"], "least_segment=0 is outside"),
        (["--tiles", "128x128"], "should be three positive integers"),
    ],
)
def test_mistakes_are_explained(words: list[str], why: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        read_options(words)
    assert why in capsys.readouterr().err


@pytest.mark.slow
def test_counting_needs_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    words = "--count-only --counts 133 --tiles 16x16x16 --k 64 --results"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "schedules", *words.split(), str(tmp_path)])
    main()
    printed = capsys.readouterr().out
    assert "133  1.01  0.504  0.504" in printed
    assert not list(tmp_path.iterdir())


class Cuda:
    """A simulated GPU: cuBLAS takes 1 ms, a plan 1 ms divided by the schedule's utilisation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.targets: list[tuple[str, str, str]] = []
        monkeypatch.setattr(schedules, "compile_plans", self.compile_plans)
        monkeypatch.setattr(schedules, "Problem", lambda *what: what)
        monkeypatch.setattr(schedules, "compete", self.compete)
        monkeypatch.setattr(schedules, "Monitor", lambda: nullcontext(self))
        monkeypatch.setattr(schedules, "CuBlas", lambda: "cuBLAS")
        monkeypatch.setattr(schedules, "PlanKernel", lambda plan, kernel: (plan, kernel))

    def since(self, start: float) -> dict[str, float]:
        return {}

    def compile_plans(
        self, plans: Any, dtype: str, layout: str, target: str, step: Callable[[], None]
    ) -> Iterator[tuple[Any, str]]:
        self.targets.append((dtype, layout, target))
        for plan in plans:
            yield plan, f"kernel of {plan}"
            step()

    def compete(
        self, contenders: Any, problem: Any, options: Any, **given: Any
    ) -> Iterator[dict[str, Any]]:
        shape, layout, _ = problem
        assert given["regimes"] == ["burst"]
        assert given["deadline"] > 0
        head, *ours = contenders
        row = {"shape": shape.name, "m": shape.m, "n": shape.n, "k": shape.k, "layout": layout}
        for name in (head, *(str(plan) for plan, _ in ours)):
            if "hybrid" in name:
                yield {**row, "name": name, "ours": True, "problem": "WRONG: 1 of 4 elements"}
                continue
            spread = {"median": 1e-3, "low": 1e-3, "high": 1e-3}
            yield {**row, "name": name, "ours": name != head, "seconds": spread, "tflops": 5.0}


def test_what_is_measured_goes_with_what_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gpu = Cuda(monkeypatch)
    words = ["--counts", "4", "6", "--tiles", "16x16x16", "--k", "64", "--results", str(tmp_path)]
    options = read_options([*words, "--schedules", "data-parallel", "stream-k", "hybrid-stream-k"])
    date = "2026-01-31T12:00:00+00:00"
    record: dict[str, Any] = {"kind": "schedules", "date": date, "dtype": "bf16", "rows": []}
    path = schedules.measure(options, record, 5, Console(quiet=True))
    assert gpu.targets == [("bf16", "nt", "native")]
    rows = load(path)["rows"]
    assert rows == record["rows"]
    assert [row["name"] for row in rows[:4]] == [
        "cuBLAS",
        "16x16x16 data-parallel",
        "16x16x16 stream-k on 5",
        "16x16x16 hybrid-stream-k on 5",
    ]
    assert [row["tiles"] for row in rows] == [4] * 4 + [6] * 4
    assert "utilisation" not in rows[0]
    assert rows[5]["utilisation"] == pytest.approx(0.6)
    assert rows[6]["busiest"] == 5
    console = Console(record=True, width=160)
    schedules.show_times(rows, console)
    printed = console.export_text()
    assert "WRONG" in printed
    assert "0.600" in printed
    draw = pytest.importorskip("benchmarks.reports.plots").draw
    (drawn,) = draw(record, path)
    assert drawn.name == f"{path.stem}-16x16x16-nt.svg"
    text = drawn.read_text()
    for word in ("stream-k", "cuBLAS", "utilisation, counted", "TFLOP/s, measured"):
        assert word in text


def test_a_plan_has_a_grid_where_it_can_be_chosen():
    plan = schedules.plan_of("split-k{splits=3}", TILE, "bf16", 132)
    assert (plan.pipeline, plan.workgroups) == ("split-k{splits=3}", None)
    assert schedules.plan_of("stream-k", TILE, "bf16", 114).workgroups == 114
