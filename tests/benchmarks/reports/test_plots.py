"""Tests of `benchmarks.reports.plots`, which draws charts of recorded benchmark results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.benchmarks.reports.made_up import record, row


@pytest.mark.slow
def test_plots_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("matplotlib")
    from benchmarks.measures.plot import main

    path = tmp_path / "gemm-x.json"
    path.write_text(json.dumps(record()))
    monkeypatch.setattr(sys, "argv", ["plot", str(path)])
    main()
    drawn = [tmp_path / f"gemm-x-{letter}.svg" for letter in "ED"]
    assert capsys.readouterr().out.split() == [str(one) for one in drawn]
    text = drawn[0].read_text()
    for word in (
        "E: tiny – a GPU, bf16, 2026-01-31",
        "layout nt",
        "ours b",
        "the roofline",
        "Triton",
    ):
        assert word in text
    before = drawn[0].read_bytes()
    main()
    assert drawn[0].read_bytes() == before  # drawing the same record again changes no file


def test_a_plot_of_waves(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from benchmarks.reports.plots import draw

    more = {"tiles": 133, "workgroups": 132, "utilisation": 0.51, "ideal": 0.504}
    rows = [row("cuBLAS", 1.0), row("ours stream-k", 0.9, **more)]
    made = record() | {"kind": "waves", "tile": "128x256x64", "rows": rows}
    (path,) = draw(made, tmp_path / "waves-x.json")
    assert "ours stream-k" in path.read_text()
    assert "128x256x64" in path.read_text()
