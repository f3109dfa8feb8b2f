"""Means, lists and pictures of records, made up here."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.record import load, result_path, write
from benchmarks.report import BEST, geometric_mean, means, problems, report, slower

Row = dict[str, Any]


def row(name: str, ratio: float | None, group: str = "E", **more: Any) -> Row:
    """A row; a ratio of None is a fault."""
    found: Row = {
        "group": group, "shape": "512^3", "m": 512, "n": 512, "k": 512, "layout": "nn",
        "regime": "sustained", "name": name, "ours": name.startswith("ours"), **more,
    }  # fmt: skip
    if ratio is None:
        return found | {"problem": "WRONG: 3 of 9 sampled elements"}
    seconds = 1e-5 / ratio
    spread = {"median": seconds, "low": seconds, "high": seconds, "least": seconds, "rounds": 1}
    return found | {
        "seconds": spread, "tflops": 2e-12 * 512**3 / seconds, "of_cublas": ratio,
        "floor": 5e-6, "of_floor": 5e-6 / seconds,
    }  # fmt: skip


def record() -> dict[str, Any]:
    """Two groups, two plans of ours, a fault."""
    rows = [
        row("cuBLAS", 1.0), row("Triton", 0.5), row("ours a", 0.8), row("ours b", 0.92),
        row("cuBLAS", 1.0, layout="nt"), row("ours a", 1.25, layout="nt"),
        row("ours b", None, layout="nt"),
        row("cuBLAS", 1.0, group="D"), row("ours a", None, group="D"),
    ]  # fmt: skip
    date = "2026-01-31T12:00:00+00:00"
    return {"kind": "gemm", "date": date, "device": "a GPU", "dtype": "bf16", "rows": rows}


def test_geometric_mean():
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([0.9]) == pytest.approx(0.9)
    assert math.isnan(geometric_mean([]))


def test_means_are_over_problems_that_have_a_time():
    found = means(record()["rows"])
    assert found["Triton"] == (pytest.approx(0.5), 1)
    assert found["ours a"] == (pytest.approx(1.0), 2)
    assert found["ours b"] == (pytest.approx(0.92), 1)
    assert found[BEST] == (pytest.approx(math.sqrt(0.92 * 1.25)), 2)
    assert "cuBLAS" not in found


def test_one_plan_has_no_best():
    assert BEST not in means([row("cuBLAS", 1.0), row("ours a", 0.8)])


def test_problems_are_kept_apart_by_layout_regime_and_group():
    rows = [row("x", 1.0), row("y", 1.0), row("x", 1.0, layout="nt"), row("x", 1.0, regime="burst")]
    assert [len(found) for found in problems(rows)] == [2, 1, 1]


def test_slower_counts_faults_and_takes_the_best_of_ours():
    rows = record()["rows"]
    assert [ratio for ratio, _ in slower(rows, 0.95)] == [0.0, 0.92]
    assert [ratio for ratio, _ in slower(rows, 0.90)] == [0.0]
    rows.append(row("coordgraph", 0.7, ours=True))  # which is judged alone where it is there
    assert [ratio for ratio, _ in slower(rows, 0.95)] == [0.7]


def test_the_report_has_means_faults_and_slow_shapes(capsys: pytest.CaptureFixture[str]):
    report(record()["rows"], Console(width=132))
    text = capsys.readouterr().out
    assert "ours b: WRONG: 3 of 9 sampled elements (512x512x512 nt)" in text
    assert f"{BEST}: 1 problems under 0.90 of cuBLAS, 2 under 0.95" in text
    assert "0.920  E 512x512x512 nn  512^3" in text


def test_the_report_of_times_alone(capsys: pytest.CaptureFixture[str]):
    alone = row("ours a", 0.5)
    del alone["of_cublas"]
    report([alone], Console(width=132))
    assert "20.0 µs" in capsys.readouterr().out


def test_records_round_trip(tmp_path: Path):
    made = record()
    path = result_path(tmp_path / "new", made)
    assert path.name == "gemm-20260131T120000.json"
    for rows in (made["rows"], []):
        write(path, made | {"rows": rows})
        assert load(path) == made | {"rows": rows}
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_other_files_are_no_records(tmp_path: Path):
    path = tmp_path / "x.json"
    path.write_text("[]")
    with pytest.raises(ValueError, match="no record"):
        load(path)


def test_plots_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("matplotlib")
    from benchmarks.plots import main

    path = tmp_path / "gemm-x.json"
    path.write_text(json.dumps(record()))
    monkeypatch.setattr(sys, "argv", ["plot", str(path)])
    main()
    drawn = [tmp_path / f"gemm-x-{letter}.svg" for letter in "ED"]
    assert capsys.readouterr().out.split() == [str(one) for one in drawn]
    text = drawn[0].read_text()
    for word in ("E: tiny – a GPU, bf16, 2026-01-31", "layout nt", "ours b", "the roof", "Triton"):
        assert word in text
    before = drawn[0].read_bytes()
    main()
    assert drawn[0].read_bytes() == before  # the same record, the same file


def test_a_plot_of_waves(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from benchmarks.plots import draw

    more = {"tiles": 133, "workgroups": 132, "utilisation": 0.51, "ideal": 0.504}
    rows = [row("cuBLAS", 1.0), row("ours stream-k", 0.9, **more)]
    made = record() | {"kind": "waves", "tile": "128x256x64", "rows": rows}
    (path,) = draw(made, tmp_path / "waves-x.json")
    assert "ours stream-k" in path.read_text()
    assert "128x256x64" in path.read_text()
