"""`record_steps` records the same steps as `trace`, for every schedule and kind of problem."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordgraph import Gemm, KernelGraph
from coordgraph.errors import LaunchError
from coordgraph.interpreter import trace
from coordgraph.interpreter.formulas import Formula
from coordgraph.interpreter.lockstep import StepKind, Steps, record_steps
from coordgraph.interpreter.tracing import Receive, Segment, Send, Trace
from passes import Pipeline
from passes.work_check import small_launches
from tests.passes.schedules import ORDERED, symbolic
from tests.support.sampling import quick_cases

TILE = (4, 4, 4)
Row = tuple[object, ...]
PROBLEMS = {
    "one": Gemm("f32"),
    "batch": Gemm("f32", batched=True),
    "m": Gemm("f32", grouped=True),
    "k": Gemm("f32", grouped=True, group_axis="k"),
    "mnk": Gemm("f32", grouped=True, group_axis="mnk"),
}


def rows_of_trace(found: Trace) -> list[Row]:
    rows: list[Row] = []
    for event in (event for events in found.workgroups for event in events):
        name, tile = type(event).__name__, event.tile
        match event:
            case Segment():
                rest = (event.k_first, event.k_count, event.padding)
            case Send():
                rest = (event.slot, event.turn, event.readers)
            case Receive():
                rest = (event.slot, event.turn)
            case _:
                rest = (event.share, event.shares)
        rows.append((event.workgroup, name, tile, *rest))
    return rows


def rows_of_steps(graph: KernelGraph, s: Steps, batched: bool) -> Iterator[Row]:
    tilings = list(graph.tilings)
    for i in range(len(s)):
        kind = StepKind(s.kind[i])
        span = graph.tilings.span(tilings[s.tiling[i]]) if len(tilings) > 1 else (1, 1)
        m, n = int(s.m[i]) * span[0], int(s.n[i]) * span[1]
        tile = (int(s.product[i]), m, n) if batched else (m, n)
        first, count, slot = int(s.first[i]), int(s.count[i]), int(s.slot[i])
        at = int(s.workgroup[i])
        match kind:
            case StepKind.MULTIPLY:
                yield at, "Segment", tile, first, count, bool(s.padding[i])
            case StepKind.SEND:
                yield at, "Send", tile, slot, first, int(s.readers[i])
            case StepKind.RECEIVE | StepKind.AWAIT:
                for turn in range(first, first + count):
                    yield at, "Receive", tile, slot, turn
            case StepKind.FINISH | StepKind.STORE:
                yield at, kind.name.capitalize(), tile, first, count
            case StepKind.ADD:
                pass


def assert_same(graph: KernelGraph, batched: bool) -> int:
    launches = 0
    for launch in small_launches(graph):
        try:
            wanted = trace(graph, launch.values, launch.tables)
        except LaunchError:
            continue
        found = record_steps(graph, launch.values, launch.tables)
        assert list(rows_of_steps(graph, found, batched)) == rows_of_trace(wanted), str(launch)
        assert (found.tiles, found.slots, found.shapes) == (
            wanted.tiles,
            wanted.slots,
            wanted.shapes,
        )
        launches += 1
    return launches


@quick_cases(3)
@pytest.mark.parametrize(("name", "order"), ORDERED, ids=str)
def test_steps_are_those_of_the_trace(name: str, order: str):
    assert assert_same(symbolic(name, order), batched=False)


@quick_cases(2)
@pytest.mark.parametrize(
    "schedule", ["data-parallel{persistent=true}", "stream-k", "grouped,stream-k"]
)
@pytest.mark.parametrize("kind", [kind for kind in PROBLEMS if kind != "one"])
def test_steps_of_several_products_are_those_of_the_trace(kind: str, schedule: str):
    graph = PROBLEMS[kind].graph(TILE)
    pipeline = Pipeline.parse(schedule)
    if refusal := pipeline.passes[0].why_not(graph):
        pytest.skip(refusal)
    assert assert_same(pipeline(graph), batched=kind != "m")


def test_iterations_that_are_not_consecutive_are_evaluated_together(
    monkeypatch: pytest.MonkeyPatch,
):
    graph = Pipeline.parse("stream-k{k_order=interleaved}")(Gemm("f32").graph((4, 4, 4)))
    problem = {"m": 40, "n": 40, "workgroups": 7}
    evaluated: list[int] = []
    columns = Formula.columns
    monkeypatch.setattr(
        Formula, "columns", lambda f, value: (evaluated.append(1), columns(f, value))[1]
    )

    def count(k: int) -> int:
        evaluated.clear()
        record_steps(graph, {**problem, "k": k})
        return len(evaluated)

    # 16 times as many iterations need no more evaluations of index formulas.
    assert count(16 * 64) <= count(64)
