"""Checks refute no correct graph, tested with random schedules, orders, epilogues and products."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from coordgraph import Gemm
from coordgraph.verification import Outcome
from passes import Pipeline
from tests.faults.catalogue import FAULTS
from tests.support import random_graphs
from tests.support.random_graphs import (
    EPILOGUES,
    FIRST_WORDS,
    REDUCTIONS,
    Drawn,
    choose,
    graphs,
)


@pytest.mark.parametrize(
    ("seed", "count"),
    [(20, 3), *(pytest.param(seed, 20, marks=pytest.mark.slow) for seed in range(100, 110))],
)
def test_random_correct_graphs_are_not_refuted(seed: int, count: int):
    for drawn in islice(graphs(seed), count):
        report = drawn.graph.check()
        assert not report.refuted, f"{drawn}\n{report}"
        assert Outcome.UNKNOWN not in {verdict.outcome for verdict in report}, str(drawn)


@pytest.mark.slow
def test_proofs_about_deeply_nested_bounds_end():
    """A check ends on a Hilbert order, whose proofs of index bounds nest 51 levels deep."""
    order = "rasterize{width=8,snake=true,along=m,order=hilbert},longest-first"
    problem = Gemm("f32", grouped=True, group_axis="k", epilogue=random_graphs.scaled)
    schedule = Pipeline.parse(f"{order},data-parallel{{persistent=true}}")
    report = schedule(problem.graph((3, 5, 7)), verify="structure").check()
    assert not report.refuted, report


def test_proofs_about_nested_quotients_and_remainders_end():
    """The check `bounds` ends on a small Hilbert order: its indices sum quotients and remainders.

    A search for bounds of the dividends and divisors inside each proof would overflow Python's
    stack.
    """
    order = "rasterize{width=2,snake=true,along=m,order=hilbert},longest-first,data-parallel"
    problem = Gemm("f32", grouped=True, group_axis="k")
    graph = Pipeline.parse(order)(problem.graph((3, 5, 7)), verify="structure")
    report = graph.check(checks=["bounds"])
    assert not report.refuted, report


def test_all_schedules_orders_products_reductions_and_epilogues_are_drawn():
    rng = Random(3)
    gemms, _, pipelines = zip(*(choose(rng) for _ in range(400)), strict=True)
    orders = ("rasterize", "order=hilbert", "order=morton", "grouped", "reorder", "longest-first")
    reductions = (f"reduction={name}" for name in REDUCTIONS)
    words = (*FIRST_WORDS, *orders, *reductions, "workgroups=", "least=", "least_segment=")
    assert [word for word in words if not any(word in text for text in pipelines)] == []
    axes = {gemm.get("group_axis", "m" if "grouped" in gemm else "") for gemm in gemms}
    assert axes == {"", "m", "k", "mnk"}
    assert any("batched" in gemm for gemm in gemms)
    assert {gemm.get("epilogue") for gemm in gemms} == {*EPILOGUES}


def test_equal_seeds_draw_equal_graphs():
    first, second = (next(graphs(5)) for _ in range(2))
    assert (first.graph, str(first)) == (second.graph, str(second))


def test_false_alarms_are_counted_and_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A refuted graph is counted and printed as a false alarm; the test uses a wrong graph."""
    fault = next(fault for fault in FAULTS if fault.name == "no store")
    wrong = Drawn(fault.graph(), {"dtype": "f32"}, (4, 4, 4), fault.schedule)
    monkeypatch.setattr(random_graphs, "graphs", lambda seed, drawer: iter([wrong]))
    monkeypatch.setattr("sys.argv", ["random_graphs", "--count", "1", "--seed", "9"])
    assert random_graphs.main() == 1
    printed = capsys.readouterr().out
    assert "seed 9: 1 graphs, 1 false alarms" in printed
    assert "Gemm(dtype='f32').graph((4, 4, 4)), stream-k" in printed
