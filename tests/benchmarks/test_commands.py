"""Command lines, and what measures compute apart from measuring."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gemm, waves
from benchmarks.__main__ import MEASURES, main
from benchmarks.calls import host_microseconds, parser
from benchmarks.shapes import GIVEN, Shape


def test_defaults_are_all_groups_in_two_layouts_and_no_plans():
    options = gemm.read([])
    assert len({group for group, _ in options.problems}) == 6
    assert (options.layouts, options.regimes) == (["nn", "nt"], ["sustained"])
    assert (options.plans, options.peers) == ([], ["cublas", "cublaslt", "triton"])
    assert options.coordgraph


def test_plans_and_schedules_by_tiles_add_up_once():
    words = ["--plans", "64x64x64@c2x1 stream-k", "128x64x64 stream-k"]
    words += ["--schedules", "stream-k", "data-parallel", "--tiles", "128x64x64"]
    assert [str(plan) for plan in gemm.read(words).plans] == [
        "64x64x64@c2x1 stream-k",
        "128x64x64 stream-k",
        "128x64x64 data-parallel",
    ]


def test_schedules_alone_take_the_usual_tiles():
    found = {plan.tile for plan in gemm.read(["--schedules", "stream-k"]).plans}
    assert found == {(128, 256, 64), (128, 128, 64)}


def test_quick_both_and_shapes():
    options = gemm.read(["--quick", "--regime", "both", "--peers"])
    assert (len(options.problems), options.rounds, options.peers) == (6, 5, [])
    assert options.regimes == ["burst", "sustained"]
    assert gemm.read(["--shapes", "1x2x3"]).problems == [(GIVEN, Shape("1x2x3", 1, 2, 3))]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--groups", "Z"], "invalid choice"),
        (["--shapes", "4096"], "is not like"),
        (["--plans", "128x128x64 steam-k"], "unknown pass"),
        (["--schedules", "steam-k"], "unknown pass"),
        (["--rounds", "0"], "must be positive"),
        (["--time-limit", "0"], "must be positive"),
    ],
)
def test_mistakes_are_explained(words: list[str], why: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        gemm.read(words)
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_has_help(
    measure: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    if measure == "plot":
        pytest.importorskip("matplotlib")
    monkeypatch.setattr(sys, "argv", ["benchmarks", measure, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "python -m benchmarks" in capsys.readouterr().out


def examples() -> list[str]:
    files = sorted(Path(gemm.__file__).parent.glob("*.py"))
    return [path.stem for path in files if ">>>" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", examples())
def test_examples_in_docstrings(name: str):
    found = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
    assert found.attempted
    assert not found.failed


def test_an_unknown_measure_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "gem"])
    with pytest.raises(SystemExit, match="no measure 'gem'; there are gemm, waves"):
        main()


def test_what_whole_tiles_can_use():
    tile = (128, 256, 64)
    assert waves.tiles_of(Shape("", 129, 256, 1), tile) == 2
    assert waves.ideal(132, 132) == 1.0
    assert waves.ideal(133, 132) == pytest.approx(133 / 264)
    assert waves.ideal(66, 132) == 0.5


@pytest.mark.parametrize(("tiles", "workgroups"), [(133, 132), (5, 132), (300, 132), (7, 3)])
def test_whole_waves_are_whole(tiles: int, workgroups: int):
    tile = (128, 256, 64)
    shape = waves.whole_waves(tiles, workgroups, tile, 4096)
    assert waves.tiles_of(shape, tile) == -(-tiles // workgroups) * workgroups
    assert (shape.m % 128, shape.n % 256, shape.k) == (0, 0, 4096)


def test_utilisation_is_by_the_rate_of_the_same_kernel():
    rows: list[dict[str, Any]] = [
        {"name": "a", "ours": True, "tflops": 300.0},
        {"name": "b", "ours": True, "problem": "no"},
        {"name": "cuBLAS", "ours": False, "tflops": 500.0},
    ]
    whole = [{**row, "tflops": 600.0} for row in rows]
    waves.add_utilisation(rows, whole, workgroups=132, tiles=133)
    assert rows[0]["utilisation"] == 0.5
    assert rows[0]["ideal"] == pytest.approx(133 / 264)
    assert "utilisation" not in rows[1]
    assert "utilisation" not in rows[2]


def test_waves_have_one_tile_and_cluster():
    options = waves.parser().parse_args(["--tile", "256x256x64", "--cluster", "2x1"])
    assert {str(plan).partition(" ")[0] for plan in waves.plans_of(options)} == {"256x256x64@c2x1"}


def test_host_time_is_per_call_with_a_short_queue():
    now, queued, longest = [0], [0], [0]

    def call(cost: int) -> None:
        now[0] += cost
        queued[0] += 1
        longest[0] = max(longest[0], queued[0])

    def synchronize() -> None:
        queued[0] = 0
        now[0] += 10**9  # waiting is not part of a call

    found = host_microseconds(
        {"slow": lambda: call(9000), "fast": lambda: call(2000)},
        synchronize,
        rounds=3,
        queue=4,
        clock=lambda: now[0],
    )
    assert [(cost.name, cost.median, cost.calls) for cost in found] == [
        ("slow", 9.0, 12),
        ("fast", 2.0, 12),
    ]
    assert longest[0] <= 4


def test_calls_take_a_plan():
    options = parser().parse_args(["--plan", "64x64x64 stream-k", "--results", "x"])
    assert (str(options.plan), options.results) == ("64x64x64 stream-k", Path("x"))
