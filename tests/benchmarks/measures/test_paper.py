"""`benchmarks paper` chooses grids, simulates or measures times, and summarises speedups."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.measures import paper
from benchmarks.measures.paper import costs_of, read_options, simulated
from benchmarks.problems.log_uniform import log_uniform_shapes
from benchmarks.problems.paper import COUNT, WAYS, Costs, best_grid
from benchmarks.problems.shapes import Shape
from benchmarks.reports.record import load, write
from benchmarks.reports.speedups import speedups, summaries, table
from coordgraph import LaunchError

TILE = (128, 256, 64)
COSTS = Costs(iteration=1.0, send=4.0, receive=2.0)
SCHEDULES = [str(way) for way in WAYS]


def record(times: list[list[float | None]], **more: Any) -> dict[str, Any]:
    """A results record for the first sizes drawn with seed 0.

    `times` has a row for each size: microseconds of each schedule, None for an error. `more` adds
    or replaces fields of the record.
    """
    head = {"kind": "paper", "tile": list(TILE), "processors": 132, "seed": 0}
    return {**head, "rows": [{"us": row} for row in times], **more}


@pytest.mark.parametrize(
    ("m", "n", "k", "grid"),
    [
        (128, 256, 64, 1),  # the problem has one output tile of one k tile
        (128, 256, 512, 1),  # a 2nd workgroup saves 4 iterations (4 s), but adds a fix-up (6 s)
        (128, 256, 8192, 8),  # g workgroups take 128/g + 4 + 2 (g - 1) s, which is least for g = 8
        (2048, 2048, 8192, 128),  # 128 tiles: one workgroup for each tile
        (2176, 2048, 64, 132),  # 136 tiles: one workgroup for each of the 132 SMs
    ],
)
def test_the_grid_is_the_fastest_by_the_model_of_the_paper(m: int, n: int, k: int, grid: int):
    assert best_grid(Shape("", m, n, k), TILE, 132, COSTS) == grid


def test_costs_are_those_of_the_simulated_machine():
    costs = costs_of(TILE, "bf16", "nt", "H200")
    assert 0.3e-6 < costs.iteration < 1e-6 < costs.receive < costs.send < 5e-6
    with pytest.raises(LaunchError, match="B300"):
        costs_of(TILE, "bf16", "nt", "B300")


def test_equal_plans_have_equal_simulated_times_and_streams_fill_the_machine():
    options = read_options(["--simulate"])
    assert options.count == COUNT
    shapes = [Shape("", 128, 256, 8192), Shape("", 2304, 2304, 4096)]
    tall, several = simulated(shapes, options)
    times = dict(zip(SCHEDULES, tall["us"], strict=True))
    assert times["data-parallel on T"] > 2 * times["stream-k on g"]
    # one tile divided among 128 workgroups: adding 127 partial sums takes longest
    assert times["stream-k on W"] > times["data-parallel on T"]
    times = dict(zip(SCHEDULES, several["us"], strict=True))
    assert times["stream-k on W"] == times["stream-k on g"]
    assert times["stream-k on W"] < 0.9 * times["data-parallel on T"]


def test_speedups_are_those_over_data_parallel():
    found = summaries(record([[10, 5, 4, 10, 20], [10, 20, 10, 10, 5], [1, None, 1, 1, 1]]))
    # The sizes have T = 408 and T = 15 output tiles; W = 132 SMs.
    assert list(found) == ["all", "T < W", "2W <= T < 8W"]
    stream_k = found["all"]["stream-k on W"]
    assert (stream_k.sizes, stream_k.average, stream_k.least, stream_k.peak) == (2, 1.25, 0.5, 2)
    assert (stream_k.geometric, stream_k.faster) == (pytest.approx(1), 0.5)
    assert stream_k.deviation == pytest.approx(0.75)
    assert found["2W <= T < 8W"]["two-tile-stream-k on g"].average == 0.5
    waves, values = speedups(record([[3, 2, 2, 2, 1]]))
    np.testing.assert_allclose(waves, [408 / 132])
    np.testing.assert_allclose(values, [[1.5, 1.5, 1.5, 3]])


def test_the_table_names_each_class_once():
    lines = table(record([[10, 5, 4, 10, 20], [10, 20, 10, 10, 5]])).splitlines()
    assert lines[1].split() == "all stream-k on W 2 1.25 0.75 0.50 2.00 1.00 50%".split()
    assert sum(line.startswith("T < W") for line in lines) == 1


def test_a_run_takes_the_first_sizes_and_reports_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Clock:
        def since(self, _: float) -> dict[str, float]:
            return {"sm_mhz": 1980}

    def compete(contenders: Any, problem: Any, *_: Any, **__: Any) -> Any:
        for place, one in enumerate(contenders):
            row = {"name": one.name, "seconds": {"median": 1e-6 * (place + 1)}}
            broken = problem.m == 3336 and place == 1
            yield {"name": one.name, "problem": "WRONG: 3"} if broken else row

    def kernels(plans: Any, *_: Any) -> Any:
        assert [p.kernel.split()[1] for p in plans] == [
            "data-parallel", "stream-k", "two-tile-stream-k",
        ]  # fmt: skip
        return [(plan, paper.CoordGraphError("not loaded")) for plan in plans]

    monkeypatch.setattr(paper, "unavailable", lambda: None)
    monkeypatch.setattr(paper, "environment", lambda kind: {"kind": kind, "processors": 132})
    monkeypatch.setattr(paper, "Monitor", lambda: nullcontext(Clock()))
    monkeypatch.setattr(paper, "Problem", lambda shape, *_: shape)
    monkeypatch.setattr(paper, "compete", compete)
    monkeypatch.setattr(paper, "compile_plans", kernels)
    path = tmp_path / "made.json"
    monkeypatch.setattr(sys, "argv", ["paper", "--count", "3", "--json", str(path)])
    with pytest.raises(SystemExit, match=r"3336x448x928 .*stream-k on 132: WRONG: 3"):
        paper.main()
    found = load(path)
    shapes = log_uniform_shapes(3)
    assert [(r["m"], r["n"], r["k"]) for r in found["rows"]] == [(s.m, s.n, s.k) for s in shapes]
    # "Stream-K on W" has W = 132 workgroups, "Stream-K on g" as many as the paper's model chooses.
    # With at least as many tiles as SMs, g = W, so the two plans are equal.
    assert found["rows"][0] == {"m": 4288, "n": 2992, "k": 736, "g": 132, "us": [1, 2, 3, 2, 3]}
    assert found["rows"][1]["us"] == [1, 2, 3, 4, 5]
    assert found["rows"][2]["us"][1] is None
    assert found["means"]["all"]["stream-k on W"]["sizes"] == 2
    assert found["device_state"] == {"sm_mhz": 1980}
    assert "T output tiles, W SMs" in capsys.readouterr().out


def test_simulated_records_are_written_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "made.json.gz"
    words = ["paper", "--simulate", "--count", "2", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", words)
    paper.main()
    assert len(load(path)["rows"]) == 2
    monkeypatch.setattr(sys, "argv", ["paper", "--show", str(path)])
    capsys.readouterr()
    paper.main()
    printed = capsys.readouterr().out
    assert printed.startswith("NVIDIA H200, simulated, 2")
    assert "two-tile-stream-k on g" in printed


def test_bands_are_quantiles_of_bins_with_enough_problems():
    pytest.importorskip("matplotlib")
    from benchmarks.reports.speedup_plot import bands

    waves = np.array([0.51] * 21 + [1.01] * 3)
    middle, lines = bands(waves, np.r_[np.arange(21) / 10, 5, 5, 5])
    np.testing.assert_allclose(middle, [0.5 * 2 ** (1 / 6)])
    np.testing.assert_allclose(lines, [[0.1, 1, 1.9]])


def test_records_are_drawn_one_above_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("matplotlib")
    head = {"device": "NVIDIA H200", "date": "2026-11-23", "dtype": "bf16", "command": "c"}
    paths = [tmp_path / "simulated.json", tmp_path / "measured.json"]
    for path, how in zip(paths, ({"simulated": True}, {"driver": "580"}), strict=True):
        write(path, record([[10, 5, 4, 10, 20]] * 200, **head, **how))
    figure = tmp_path / "paper.svg"
    words = ["paper", "--show", *map(str, paths), "--figure", str(figure)]
    monkeypatch.setattr(sys, "argv", words)
    paper.main()
    text = figure.read_text()
    assert text.index("simulated, NVIDIA H200") < text.index("measured, NVIDIA H200")
    assert "200 sizes, bf16, tiles of 128x256x64" in text
    assert "measured, driver 580, 2026-11-23: c" in capsys.readouterr().out


def test_other_records_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "other.json"
    write(path, {"kind": "sweep", "rows": []})
    monkeypatch.setattr(sys, "argv", ["paper", "--show", str(path)])
    with pytest.raises(SystemExit, match="no record of"):
        paper.main()


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]):
    for words, text in (
        (["--count", "0"], "--count and --jobs"),
        (["--layouts", "nn", "nt"], "--layouts must be one"),
    ):
        with pytest.raises(SystemExit):
            read_options(words)
        assert text in capsys.readouterr().err
