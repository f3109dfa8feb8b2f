"""Tests of `benchmarks.reports.tables`, which prints the results of a benchmark."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.reports.summary import BEST
from benchmarks.reports.tables import print_report
from tests.benchmarks.reports.made_up import record, row


def test_the_report_has_means_faults_and_slow_shapes(capsys: pytest.CaptureFixture[str]):
    print_report(record()["rows"], Console(width=132))
    text = capsys.readouterr().out
    assert "ours b: WRONG: 3 of 9 sampled elements (512x512x512 nt)" in text
    assert f"{BEST}: 1 problems under 0.90 of cuBLAS, 2 under 0.95" in text
    assert "0.920  E 512x512x512 nn  512^3" in text


def test_the_report_of_times_alone(capsys: pytest.CaptureFixture[str]):
    alone = row("ours a", 0.5)
    del alone["of_cublas"]
    print_report([alone], Console(width=132))
    assert "20.0 µs" in capsys.readouterr().out
