"""Dynamic loops in the interpreter: each index is taken once, in whatever order workgroups run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import EvaluationError, Gemm, KernelGraph, parse
from coordgraph.interpreter import interpret, trace
from coordgraph.interpreter.arguments import Array
from coordgraph.interpreter.events import Event, Point
from coordgraph.interpreter.lockstep import StepKind, record_steps
from coordgraph.interpreter.schedulers import SCHEDULERS, Shuffled
from passes import DataParallel, Pipeline
from tests.support.sampling import quick_cases

DYNAMIC = DataParallel(persistent=True, scheduler="dynamic")
PROBLEM = Gemm("f32").graph((4, 4, 4))
GRAPH = DYNAMIC(PROBLEM)


def integers(*shape: int) -> Array:
    """Random integers of type f32, whose products and sums are exact."""
    return np.random.default_rng(7).integers(-3, 4, shape).astype(np.float32)


def operands(m: int, n: int, k: int) -> tuple[Array, Array]:
    return integers(m, k), integers(k, n)


@settings(max_examples=8)
@given(st.integers(1, 18), st.integers(1, 18), st.integers(1, 9), st.integers(1, 30), st.data())
def test_d_is_the_same_in_every_order(m: int, n: int, k: int, workgroups: int, data: st.DataObject):
    """D is right if workgroups take tiles in a random order, also if few of them are resident."""
    a, b = operands(m, n, k)
    seed, resident = data.draw(st.integers(0, 99)), data.draw(st.integers(1, workgroups))
    given = {"workgroups": workgroups}
    found = interpret(
        GRAPH, a, b, parameters=given, schedule=Shuffled(seed), resident=resident, trace=True
    )
    assert (found.d == a @ b).all()
    assert found.trace is not None
    assert not found.trace.faults


@quick_cases(2)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler(scheduler: str):
    a, b = operands(19, 10, 6)
    for workgroups in (1, 4, 16):
        given = {"workgroups": workgroups}
        found = interpret(GRAPH, a, b, parameters=given, schedule=scheduler)
        assert (found.d == a @ b).all()


def test_a_workgroup_that_runs_alone_takes_all_tickets():
    """The workgroup that runs first takes all tiles, except the first tile of each other one."""
    segments = Counter[int]()

    class Watched(Shuffled):
        def choose(self, ready: Mapping[int, Event]) -> int:
            ((number, event),) = ready.items()
            segments[number] += event.point is Point.SEGMENT
            return number

    a, b = operands(16, 12, 4)
    interpret(GRAPH, a, b, parameters={"workgroups": 3}, schedule=Watched(), resident=1)
    assert segments == {0: 10, 1: 1, 2: 1}


def test_a_trace_shows_tickets_taken_in_turn():
    """The trace of a dynamic schedule has the same events as that of the static schedule."""
    static = DataParallel(persistent=True)(PROBLEM)
    given = {"m": 17, "n": 9, "k": 5, "workgroups": 4}
    dynamic = trace(GRAPH, given)
    assert dynamic.workgroups == trace(static, given).workgroups
    assert dynamic.faults == ()


@pytest.mark.parametrize("workgroups", [1, 4, 40])
def test_recorded_steps_are_those_of_the_trace(workgroups: int):
    given = {"m": 17, "n": 9, "k": 5, "workgroups": workgroups}
    steps, events = record_steps(GRAPH, given), trace(GRAPH, given)
    stored = steps.kind == StepKind.STORE
    rows = zip(steps.workgroup[stored], steps.m[stored], steps.n[stored], strict=True)
    assert [*rows] == [(e.workgroup, *e.tile) for e in events.stores]


def faulty(old: str, new: str) -> KernelGraph:
    text = GRAPH.text()
    assert old in text
    return parse(text.replace(old, new))


def test_a_counter_that_is_not_reset_is_an_error():
    a, b = operands(16, 12, 4)
    graph = faulty("count=tiles_m*tiles_n", "count=tiles_m*tiles_n + 1")
    with pytest.raises(EvaluationError, match=r"counter counter\[0\] is 12 at the end"):
        interpret(graph, a, b, parameters={"workgroups": 3})


@quick_cases(1)
@pytest.mark.parametrize(
    "pipeline",
    ["rasterize{width=2}", "rasterize{order=hilbert}", "rasterize{width=3,snake=true}"],
)
def test_tiles_in_another_order(pipeline: str):
    graph = Pipeline.parse(f"{pipeline},{DYNAMIC}")(PROBLEM)
    a, b = operands(22, 17, 7)
    found = interpret(graph, a, b, parameters={"workgroups": 3}, schedule="shuffled")
    assert (found.d == a @ b).all()


def test_batches_and_groups():
    graph = DYNAMIC(Gemm("f32", grouped=True).graph((4, 4, 4)))
    a, b = integers(14, 5), integers(3, 5, 9)
    tables = {"offsets": np.array([0, 6, 6, 14], np.int32)}
    found = interpret(graph, a, b, parameters={"workgroups": 3}, tables=tables, schedule="shuffled")
    parts = [a[i:j] @ b[g] for g, (i, j) in enumerate(((0, 6), (6, 6), (6, 14)))]
    assert (found.d == np.concatenate(parts)).all()
