"""Checks trace small launches of a graph until a limit on the traced events is reached.

Verdicts of checks say how many launches were left out, and how many output tiles lie outside D.
"""

from __future__ import annotations

import pytest

from coordgraph import Gemm, parse
from coordgraph.interpreter.walking import Budget, BudgetExceeded, EndlessLoop, Fuel
from coordgraph.kernel import KernelGraph
from coordgraph.verification import Outcome
from coordgraph.verification.evidence import LIMITS, Evidence
from passes import HeterogeneousTiles
from passes.work_check import MOST_COST, small_launches
from tests.passes.schedules import SCHEDULES, symbolic
from tests.support.sampling import chosen


def with_rows(value: str) -> KernelGraph:
    """A graph whose number of tiles in m is `value`; its tiles have 4 rows."""
    text = symbolic("data-parallel{persistent=true}").text()
    old = "= (m + 3) // 4"
    assert old in text
    return parse(text.replace("1..536869888 " + old, f"1..2147483647 = {value}", 1))


def evidence(graph: KernelGraph) -> Evidence:
    return Evidence(graph, LIMITS["default"])


@pytest.mark.slow
def test_launches_with_too_many_tiles_are_left_out():
    graph = with_rows("300*m")
    found = evidence(graph)
    assert 0 < found.left_out < len(found.launches)
    tiles = sum(t.tiles[0] * t.tiles[1] for _, t in found.traces)
    assert tiles <= LIMITS["default"].work
    verdict = graph.check()["cover"]
    assert verdict.outcome is Outcome.HOLDS
    assert f"; {found.left_out} launches left out" in verdict.detail


@pytest.mark.timeout(30)
def test_a_share_of_very_many_is_refuted_without_listing_them():
    text = symbolic("stream-k{reduction=scatter}").text()
    (line,) = (line for line in text.splitlines() if line.startswith("dim fixup.share:"))
    wrong = parse(text.replace(line, line.replace("size=4 ", "size=4294967296 ")))
    assert wrong.text() != text
    assert wrong.check().refuted


def test_a_large_tile_costs_as_much_as_the_unit_tiles_that_it_spans():
    """The cost of a launch counts tiles of the smaller shape (4 x 8), also where tiles are larger.

    A tile of 2^40 rows spans 2^38 such tiles. So launches with whole large tiles are left out, and
    the launches that are traced have few rows of D.
    """
    graph = HeterogeneousTiles(small_m=4)(Gemm("bf16").graph((2**40, 8, 4)))
    for launch in small_launches(graph):
        assert -(-launch.values["m"] // 4) * -(-launch.values["n"] // 8) <= MOST_COST


@pytest.mark.slow
def test_an_endless_loop_is_walked_in_one_launch():
    text = symbolic("data-parallel{persistent=true}").text()
    (line,) = (x for x in text.splitlines() if "For dim=" in x and "dim=k_tile" not in x)
    stop = line.partition("stop=")[2].removesuffix(" {")
    wrong = parse(text.replace(line, line.replace(f"stop={stop}", f"stop=({stop})*100000000")))
    found = evidence(wrong)
    (fault,) = (fault for _, fault in found.failures)
    assert "run for more than 65536 iterations" in fault.message
    assert found.left_out
    assert wrong.check()["cover"].outcome is Outcome.REFUTED


def test_tiles_outside_the_output_are_counted():
    verdict = with_rows("m").check({"m": 16, "n": 8, "k": 8, "workgroups": 3})["cover"]
    assert verdict.outcome is Outcome.HOLDS
    assert verdict.detail.endswith("; 24 of 32 output tiles lie outside D")


@pytest.mark.parametrize("name", chosen(("stream-k{owner=last}",), SCHEDULES))
def test_schedules_leave_nothing_out_and_waste_no_tiles(name: str):
    detail = symbolic(name).check()["cover"].detail
    assert "left out" not in detail
    assert "outside D" not in detail


def test_a_budget_is_shared_by_workgroups():
    budget = Budget(5)
    first, second = (Fuel(number, 4, budget) for number in range(2))
    for fuel in (first, first, first, second, second):
        fuel.burn()
    with pytest.raises(BudgetExceeded, match="more than 5 iterations"):
        second.burn()
    with pytest.raises(EndlessLoop, match="workgroup 2 run for more than 0 iterations"):
        Fuel(2, 0).burn()
