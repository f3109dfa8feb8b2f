"""`UniformEngine` computes the same times as `Engine`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from coordgraph import Gemm, KernelGraph
from coordgraph.control.operations import ReceivePartial, SendPartial
from coordgraph.interpreter import Deadlock
from passes import Pipeline
from passes.simulation import Kernel, Machine, Simulation, simulate, uniform_tables
from passes.simulation.launching import Launch
from passes.simulation.uniform_engine import UniformEngine
from passes.simulation.uniform_tables import MOST_KINDS
from tests.passes.schedules import CORNERS, SCHEDULES, parameters, symbolic
from tests.passes.simulation.runs import A100, H200, scheduled, small
from tests.support.sampling import quick_cases

UNIFORM = (
    "data-parallel",
    "data-parallel{persistent=true}",
    "rasterize{width=3},data-parallel{persistent=true}",
    "split-k{splits=2}",
    "split-k{splits=4,owner=first}",
    "split-k{splits=4,reduction=peers}",
    "split-k{splits=5,reduction=tree}",
    "split-k{splits=8,owner=first,reduction=tree}",
    "split-k{splits=3,reduction=atomic}",
    "split-k{splits=4,reduction=scatter}",
)
"""Schedules that `UniformEngine` simulates: their main loops are of few kinds, and read equal or
disjoint ranges of k."""
GENERAL = (
    "data-parallel{persistent=true,scheduler=dynamic}",
    "heterogeneous-tiles",
    "stream-k",
    "two-tile-stream-k",
)
"""Schedules that only `Engine` simulates."""


def with_least(patch: pytest.MonkeyPatch, least: int) -> None:
    """Let `UniformEngine` simulate launches of at least `least` main loops."""
    patch.setattr(uniform_tables, "LEAST_LOOPS", least)


def both(
    graph: KernelGraph,
    problem: dict[str, int],
    machine: Machine,
    kernel: Kernel | None = None,
    tables: dict[str, list[int]] | None = None,
) -> tuple[Simulation, Simulation, bool]:
    """Simulate a launch by `UniformEngine` if it can, else `Engine`; and again by `Engine`.

    Returns (the first simulation, the second one, whether `UniformEngine` made the first).
    """
    launch = Launch.of(graph, problem, machine, tables, kernel or Kernel())
    ran: list[bool] = []
    run = UniformEngine.run

    def recorded(engine: UniformEngine) -> Any:
        events = run(engine)
        ran.append(events is not None)
        return events

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UniformEngine, "run", recorded)
        with_least(patch, 1)
        found = launch.run(machine)
        uniform = bool(ran)
        with_least(patch, 1 << 60)
        expected = launch.run(machine)
    assert ran == [True] * uniform
    return found, expected, uniform


def check_equal(found: Simulation, expected: Simulation) -> None:
    """Check that two simulations of a launch have the same events, times and bytes."""
    for field in fields(found.events):
        np.testing.assert_array_equal(
            getattr(found.events, field.name), getattr(expected.events, field.name), field.name
        )
    assert found.makespan == expected.makespan
    for name in ("asked_bytes", "read_a_bytes", "read_b_bytes"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12)


@quick_cases(6)
@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_events_are_those_of_the_general_engine(name: str, corner: str):
    graph, problem = symbolic(name), CORNERS[corner]
    # There are so many SMs that no workgroup waits for one that cannot start.
    found, expected, _ = both(graph, parameters(graph, problem), small(max(problem[3], 60)))
    check_equal(found, expected)


@pytest.mark.parametrize("schedule", UNIFORM)
def test_events_of_large_launches_are_those_of_the_general_engine(schedule: str):
    problem = {"m": 128 * 9 - 8, "n": 128 * 13, "k": 2000}
    for machine in (H200, replace(H200, l2_bytes=4e6), A100):
        found, expected, uniform = both(scheduled(schedule), problem, machine)
        assert uniform
        assert len(found.steps) > 300
        check_equal(found, expected)


@pytest.mark.parametrize(
    "kernel",
    [Kernel((2, 1, 1)), Kernel(resident=2), Kernel(reads_c=True), Kernel(consumers="pingpong")],
)
def test_clusters_and_resident_workgroups(kernel: Kernel):
    problem = {"m": 128 * 17, "n": 128 * 13, "k": 512}
    found, expected, uniform = both(scheduled(UNIFORM[1]), problem, H200, kernel)
    assert uniform == (kernel.consumers == "cooperative")
    check_equal(found, expected)


@pytest.mark.parametrize("schedule", GENERAL)
def test_other_schedules_need_the_general_engine(schedule: str):
    assert not both(scheduled(schedule), {"m": 1280, "n": 1280, "k": 2048}, H200)[2]


def test_small_launches_are_simulated_by_the_general_engine(monkeypatch: pytest.MonkeyPatch):
    ran: list[bool] = []
    run = UniformEngine.run
    monkeypatch.setattr(UniformEngine, "run", lambda e: ran.append(True) or run(e))
    for tiles in (9, 10):
        simulate(scheduled("data-parallel"), {"m": 128 * tiles, "n": 1280, "k": 512})
        assert len(ran) == tiles - 9


def test_a_workgroup_that_cannot_start_is_a_deadlock(monkeypatch: pytest.MonkeyPatch):
    with_least(monkeypatch, 1)
    graph = scheduled("split-k{splits=8,owner=first,reduction=tree}")
    problem = {"m": 128, "n": 128, "k": 512}
    with pytest.raises(Deadlock, match="workgroup 0 waits for a partial sum of output tile"):
        simulate(graph, problem, small(1))
    assert simulate(graph, problem, small(8)).makespan > 0


def test_a_partial_sum_that_is_not_sent_or_received_twice_is_a_deadlock(
    monkeypatch: pytest.MonkeyPatch,
):
    with_least(monkeypatch, 1)
    graph = scheduled("split-k{splits=4,owner=last,reduction=tree}")
    problem = {"m": 384, "n": 384, "k": 1024}
    for kind, count in ((SendPartial, 0), (ReceivePartial, 2)):

        def change(op: Any, kind: type = kind, count: int = count) -> Any:
            return (op,) * count if isinstance(op, kind) else op

        wrong = replace(graph, control=graph.control.rewrite(change))
        with pytest.raises(Deadlock, match="send every partial sum that is received"):
            simulate(wrong, problem, small(36))


@pytest.mark.parametrize("groups", [5, MOST_KINDS + 1])
def test_groups_of_few_sizes_are_uniform(groups: int):
    gemm = Gemm("bf16", grouped=True, group_axis="mnk")
    graph = Pipeline.parse(UNIFORM[1])(gemm.graph((128, 128, 64)))
    offsets = np.cumsum(128 * np.arange(groups + 1)).tolist()
    even = (256 * np.arange(groups + 1)).tolist()
    tables = {"m_offsets": even, "n_offsets": even, "k_offsets": offsets}
    given = {"groups": groups, **{f"elements_{t}": 2**30 for t in "abd"}}
    found, expected, uniform = both(graph, given, H200, tables=tables)
    assert uniform == (groups <= MOST_KINDS)
    check_equal(found, expected)
