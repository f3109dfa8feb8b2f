"""Schedules side by side: what is counted, against other ways to count it; no GPU."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import schedules
from benchmarks.__main__ import main
from benchmarks.counts import busiest, count, plane
from benchmarks.record import load
from benchmarks.schedules import COUNTS, SCHEDULES, columns, read, rows_of, shape_of
from benchmarks.waves import ideal
from coordgraph import Gemm
from coordgraph.integers import evaluate
from passes import Pipeline
from passes.lowering import LowerToHopper

TILE = (128, 128, 64)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(1, 8))
def test_who_is_free_first_takes_the_next(lengths: list[int], processors: int):
    ends = [0] * processors
    for length in lengths:
        ends[ends.index(min(ends))] += length
    assert busiest(lengths, processors) == max(ends)
    assert busiest(lengths, len(lengths)) == max(lengths)


@pytest.mark.parametrize("tiles", [1, 66, 131, 132, 133, 300])
def test_counts_of_closed_forms(tiles: int):
    found = shape_of(tiles, TILE, 4096)

    def counted(schedule: str) -> Any:
        return count(schedule, TILE, (found.m, found.n, found.k), 132)

    for whole in ("data-parallel", "data-parallel{persistent=true}"):
        assert counted(whole).utilisation == pytest.approx(ideal(tiles, 132))
        assert (counted(whole).fix_ups, counted(whole).workspace_bytes) == (0, 0)
    # Quarters of the macro tiles that are left, as evenly dealt as may be.
    small = counted("heterogeneous-tiles")
    waves, rest = divmod(tiles, 132)
    quarters = math.ceil(4 * rest / 132)
    assert small.busiest == waves * 64 + quarters * 16
    assert (small.tiles, small.fix_ups, small.workspace_bytes) == (tiles, 0, 0)
    streamed = counted("stream-k")
    assert (streamed.tiles, streamed.grid) == (tiles, 132)
    assert streamed.busiest == math.ceil(tiles * 64 / 132)
    assert streamed.utilisation == pytest.approx(tiles * 64 / 132 / streamed.busiest)
    assert streamed.workspace_bytes == 132 * (128 * 128 * 4 + 4)
    in_two = counted("split-k{splits=2}")
    assert (in_two.fix_ups, in_two.grid) == (tiles, 2 * tiles)
    assert in_two.utilisation == pytest.approx(ideal(2 * tiles, 132))


@pytest.mark.parametrize("splits", [2, 3, 5])
def test_nobody_receives_from_himself(splits: int):
    """Every peer of a reduce-scatter adds up all pieces; its own comes from nobody else."""
    owned = count(f"split-k{{splits={splits}}}", TILE, (256, 256, 4096), 132)
    assert owned.fix_ups == 4 * (splits - 1)
    everybody = f"split-k{{splits={splits},reduction=scatter}}"
    assert count(everybody, TILE, (256, 256, 4096), 132).fix_ups == 4 * splits * (splits - 1)


def test_the_workspace_is_that_of_the_kernel():
    for schedule in SCHEDULES:
        lowered = LowerToHopper()(Pipeline.parse(schedule)(Gemm("bf16").graph((128, 256, 64))))
        values = {"m": 1408, "n": 3072, "k": 4096, "workgroups": 132, "read_c": 0}
        known = lowered.parameters.evaluate(
            {name: value for name, value in values.items() if name in lowered.parameters}
        )
        held = {
            tensor.name: int(evaluate(tensor.elements, known)) * 4
            for tensor in lowered.tensors
            if tensor.role.workspace
        }
        counted = count(schedule, (128, 256, 64), (1408, 3072, 4096), 132)
        assert sum(held.values()) == counted.workspace_bytes


def test_the_scale_has_whole_waves_and_nearly_square_products():
    assert {132, 264, 396} <= set(COUNTS)
    assert list(COUNTS) == sorted(set(COUNTS))
    for tiles in COUNTS:
        rows, width = plane(tiles)
        assert rows * width == tiles
        assert width <= 3 * rows


def test_no_schedule_has_worse_shares_than_it_is_allowed():
    """Streamed shares are even; least_segment takes back what borders move, at most."""
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
        (["--tiles", "128x128"], "is not like"),
    ],
)
def test_mistakes_are_explained(words: list[str], why: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        read(words)
    assert why in capsys.readouterr().err


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
    """What a GPU does, made up: cuBLAS takes 1 ms, a schedule 1 ms by its utilisation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.targets: list[tuple[str, str, str]] = []
        monkeypatch.setattr(schedules, "compile_plans", self.compile_plans)
        monkeypatch.setattr(schedules, "Problem", lambda *what: what)
        monkeypatch.setattr(schedules, "compete", self.compete)
        monkeypatch.setattr(schedules, "Monitor", lambda: nullcontext(self))
        monkeypatch.setattr(schedules, "CuBlas", lambda: "cuBLAS")
        monkeypatch.setattr(schedules, "Ours", lambda plan, kernel: (plan, kernel))

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
        self, everyone: Any, problem: Any, options: Any, **given: Any
    ) -> Iterator[dict[str, Any]]:
        shape, layout, _ = problem
        assert given["regimes"] == ["burst"]
        assert given["deadline"] > 0
        head, *ours = everyone
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
    options = read([*words, "--schedules", "data-parallel", "stream-k", "hybrid-stream-k"])
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
    draw = pytest.importorskip("benchmarks.plots").draw
    (drawn,) = draw(record, path)
    assert drawn.name == f"{path.stem}-16x16x16-nt.svg"
    text = drawn.read_text()
    for word in ("stream-k", "cuBLAS", "utilisation, counted", "TFLOP/s, measured"):
        assert word in text


def test_a_plan_has_a_grid_where_it_can_be_chosen():
    plan = schedules.plan_of("split-k{splits=3}", TILE, "bf16", 132)
    assert (plan.pipeline, plan.workgroups) == ("split-k{splits=3}", None)
    assert schedules.plan_of("stream-k", TILE, "bf16", 114).workgroups == 114
