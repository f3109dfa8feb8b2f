"""Tests of summaries of results: geometric means, and the slowest problems."""

from __future__ import annotations

import math

import pytest

from benchmarks.reports.summary import BEST, by_problem, geometric_mean, mean_ratios, slower_than
from tests.benchmarks.reports.made_up import record, row


def test_geometric_mean():
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([0.9]) == pytest.approx(0.9)
    assert math.isnan(geometric_mean([]))


def test_means_are_over_problems_that_have_a_time():
    found = mean_ratios(record()["rows"])
    assert found["Triton"] == (pytest.approx(0.5), 1)
    assert found["ours a"] == (pytest.approx(1.0), 2)
    assert found["ours b"] == (pytest.approx(0.92), 1)
    assert found[BEST] == (pytest.approx(math.sqrt(0.92 * 1.25)), 2)
    assert "cuBLAS" not in found


def test_one_plan_has_no_best():
    assert BEST not in mean_ratios([row("cuBLAS", 1.0), row("ours a", 0.8)])


def test_problems_are_kept_apart_by_layout_regime_and_group():
    rows = [row("x", 1.0), row("y", 1.0), row("x", 1.0, layout="nt"), row("x", 1.0, regime="burst")]
    assert [len(found) for found in by_problem(rows)] == [2, 1, 1]


def test_slower_counts_faults_and_takes_the_best_of_ours():
    rows = record()["rows"]
    assert [ratio for ratio, _ in slower_than(rows, 0.95)] == [0.0, 0.92]
    assert [ratio for ratio, _ in slower_than(rows, 0.90)] == [0.0]
    # Of coordgraph's plans, only the row `coordgraph` is compared with cuBLAS, if it exists.
    rows.append(row("coordgraph", 0.7, ours=True))
    assert [ratio for ratio, _ in slower_than(rows, 0.95)] == [0.7]
