"""Tests of `trace`: events, main loops recorded as a range of k tiles, errors of schedules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sympy import Integer

from coordgraph import EvaluationError, Gemm, KernelGraph, LaunchError, VerifyError
from coordgraph.control.operations import (
    Epilogue,
    For,
    InitAccumulator,
    LoadTile,
    MultiplyAccumulate,
    StoreTile,
)
from coordgraph.coordinates.dimensions import ForLoop
from coordgraph.coordinates.edges import Tile
from coordgraph.integers import ceil_div
from coordgraph.interpreter import Segment, Trace, interpret, trace
from coordgraph.interpreter.program import program
from coordgraph.interpreter.steps import Loop
from coordgraph.interpreter.tracing import Finish, Receive, Send, Store
from passes import DataParallel, Pipeline, Reorder, StreamK, TwoTileStreamK
from tests.support.sampling import quick_cases

SIZES = {"m": 4, "n": 8, "k": 20}


def streamed(workgroups: int = 3, **options: str) -> KernelGraph:
    return StreamK(workgroups=workgroups, **options)(Gemm("f32").graph((4, 4, 4)))


def test_a_workgroup_that_is_not_launched():
    found = trace(StreamK(workgroups=3)(Gemm("f32").graph((4, 4, 4))), SIZES)
    assert found.of(2)
    for wrong in (3, -1, "0"):
        with pytest.raises(
            VerifyError, match=r"workgroup = .* (must be|is not a whole)|there is no workgroup 3"
        ):
            found.of(wrong)  # type: ignore[arg-type]


def test_what_is_recorded():
    found = trace(streamed(), SIZES)
    assert found.tiles == (1, 2, 5)
    assert found.slots == 3
    assert found.workgroups == (
        (
            Segment(0, (0, 0), 0, 4, 5),
            Receive(0, 1, (0, 0)),
            Finish(0, (0, 0)),
            Store(0, (0, 0)),
        ),
        (
            Segment(1, (0, 0), 4, 1, 5),
            Send(1, 1, (0, 0)),
            Segment(1, (0, 1), 0, 3, 5),
            Receive(1, 2, (0, 1)),
            Finish(1, (0, 1)),
            Store(1, (0, 1)),
        ),
        (Segment(2, (0, 1), 3, 2, 5), Send(2, 2, (0, 1))),
    )
    assert found.wait_edges() == {(0, 1), (1, 2)}
    assert found.slots_used == {1, 2}
    assert found.iterations == (4, 4, 2)
    assert found.utilisation == 10 / 12
    assert found.idle == ()


@pytest.mark.parametrize(
    ("first", "count", "role"),
    [(0, 5, "whole"), (0, 4, "first"), (4, 1, "final"), (1, 3, "middle")],
)
def test_roles(first: int, count: int, role: str):
    assert Segment(0, (0, 0), first, count, 5).role == role


def accumulations(graph: KernelGraph) -> list[bool]:
    """For each main loop, whether it is recorded as one range of k tiles, not tile by tile."""
    found: list[bool] = []
    stack = list(program(graph).steps)
    while stack:
        step = stack.pop()
        if isinstance(step, Loop) and any(
            isinstance(node.op, MultiplyAccumulate) for node in step.node.body
        ):
            found.append(step.accumulation is not None)
        stack += [*getattr(step, "body", ()), *getattr(step, "orelse", ())]
    return found


@quick_cases(4)
@pytest.mark.parametrize(
    "pipeline",
    [
        Pipeline([DataParallel()]),
        Pipeline([DataParallel(persistent=True)]),
        Pipeline([StreamK()]),
        Pipeline([StreamK(owner="last")]),
        Pipeline([Reorder(group=3), StreamK()]),
        Pipeline([TwoTileStreamK()]),
        Pipeline([Reorder(swap=True, group=2), TwoTileStreamK(owner="last", first="dp")]),
    ],
    ids=str,
)
def test_accumulation_loops_are_taken_at_once(pipeline: Pipeline):
    assert all(accumulations(pipeline(Gemm("f32").graph())))


def skipping(graph: KernelGraph) -> KernelGraph:
    """The graph with a main loop that leaves out every second k tile."""
    (loop,) = (
        op
        for op in graph.control.of_kind(For)
        if any(isinstance(child, MultiplyAccumulate) for child in op.body)
    )
    stepped = For(loop.dim, loop.start, loop.stop, loop.step + 1, loop.body)
    with graph.edit("broken") as e:
        e.control = e.control.rewrite(lambda op: stepped if op == loop else op)
    return e.graph


def test_other_loops_are_walked():
    """A main loop with a step of 2 is traced k tile by k tile, since its k tiles are no range."""
    graph = skipping(DataParallel()(Gemm("f32").graph((4, 4, 4))))
    assert accumulations(graph) == [False]
    found = trace(graph, SIZES)
    assert [(s.k_first, s.k_count) for s in found.of(0)] == [(0, 1), (2, 1), (4, 1)]
    assert "k tiles 1..1 of output tile (0, 0) are left out" in found.problems()


def test_walking_and_taking_at_once_agree(monkeypatch: pytest.MonkeyPatch):
    graph, sizes = streamed(5, owner="last"), {"m": 9, "n": 13, "k": 23}
    at_once = trace(graph, sizes)
    monkeypatch.setattr(Loop, "accumulation", None)
    assert trace(graph, sizes) == at_once


def test_padding_of_the_visiting_order_is_told_apart():
    graph = Pipeline([Reorder(group=4), DataParallel()])(Gemm("f32").graph((4, 4, 4)))
    found = trace(graph, {"m": 12, "n": 8, "k": 8})
    assert found.problems() == ()
    assert sum(s.padding for s in found.segments) == 2
    assert len(found.workgroups) == 8
    assert found.utilisation == 6 / 8


def grouped(graph: KernelGraph) -> KernelGraph:
    """The graph with its k loop divided into groups of three k tiles; the last has padding."""
    (loop,) = graph.control.of_kind(For)
    groups = ceil_div(graph.coordinates["k_tile"].size, Integer(3))
    inner = For("inner", Integer(0), Integer(3), body=loop.body)
    outer = For("outer", Integer(0), groups, body=(inner,))
    with graph.edit("grouped") as e:
        e.coordinates.add(ForLoop("outer", groups))
        e.coordinates.add(ForLoop("inner", Integer(3)))
        e.coordinates.connect(Tile("k_tile", ("outer", "inner")))
        e.control = e.control.rewrite(lambda op: outer if op == loop else op)
    return e.graph


def test_padding_of_k_is_told_apart():
    graph = grouped(DataParallel()(Gemm("f32").graph((4, 4, 4))))
    assert accumulations(graph) == [True]
    found = trace(graph, SIZES)
    assert found.problems() == ()
    assert found.of(1) == (
        Segment(1, (0, 1), 0, 5, 5),
        Segment(1, (0, 1), 5, 1, 5, padding=True),
    )
    a, b = np.ones((4, 20), np.float32), np.ones((20, 8), np.float32)
    assert np.array_equal(interpret(graph, a, b).d, a @ b)


def test_two_tiles_in_one_accumulator():
    graph = DataParallel(persistent=True, workgroups=1)(Gemm("f32").graph((4, 4, 4)))
    with graph.edit("broken") as e:
        e.control = e.control.rewrite(
            lambda op: () if isinstance(op, InitAccumulator | Epilogue | StoreTile) else op
        )
    with pytest.raises(
        EvaluationError, match=r"of output tile \(0, 1\) to .*holds output tile \(0, 0\)"
    ):
        trace(e.graph, SIZES)


GOOD = trace(streamed(), SIZES)


def without(*events: object) -> Trace:
    return replace(
        GOOD, workgroups=tuple(tuple(e for e in w if e not in events) for w in GOOD.workgroups)
    )


def beside(event: object) -> Trace:
    return replace(GOOD, workgroups=(*GOOD.workgroups, (event,)))


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (without(Segment(0, (0, 0), 0, 4, 5)), "k tiles 0..3 of output tile (0, 0) are left out"),
        (without(Segment(2, (0, 1), 3, 2, 5)), "k tiles 3..4 of output tile (0, 1) are left out"),
        (beside(Segment(3, (0, 1), 2, 1, 5)), "k tiles 2..2 of output tile (0, 1) are done twice"),
        (
            beside(Segment(3, (1, 1), 0, 5, 5)),
            "a segment sums output tile (1, 1), which does not exist",
        ),
        (without(Finish(1, (0, 1))), "output tile (0, 1) has 0 epilogues"),
        (beside(Finish(1, (0, 1))), "output tile (0, 1) has 2 epilogues"),
        (beside(Store(1, (0, 1))), "output tile (0, 1) has 2 stores"),
        (beside(Store(1, (7, 1))), "stores of output tile (7, 1), which does not exist"),
        (
            without(Send(1, 1, (0, 0))),
            "workgroup 0 receives from workspace slot 1, which no workgroup writes",
        ),
        (
            beside(Send(3, 1, (0, 0))),
            "workspace slot 1 is written 2 times by workgroups 1, 3, with partial sums of output ",
        ),
        (
            without(Receive(1, 2, (0, 1))),
            "workgroup 2 writes workspace slot 2, from which no workgroup receives",
        ),
        (
            beside(
                Send(3, 1, (0, 0), readers=10**12)
            ),  # the check must not allocate 10^12 entries, one per reader of a workspace slot
            "workspace slot 1 is written 2 times by workgroups 1, 3, with partial sums of output ",
        ),
        (replace(GOOD, slots=2), "workspace slot 2 is outside 0..1"),
    ],
)
def test_problems_are_seen(found: Trace, problem: str):
    assert GOOD.problems() == ()
    assert any(problem in text for text in found.problems()), found.problems()


def test_tiles_of_a_and_b_that_do_not_match():
    graph = DataParallel()(Gemm("f32").graph((4, 4, 4)))
    crossed = LoadTile("B", ("A.tile.0", "B.tile.1"))
    with graph.edit("broken") as e:
        e.control = e.control.rewrite(
            lambda op: crossed if isinstance(op, LoadTile) and op.tensor == "B" else op
        )
    with pytest.raises(EvaluationError, match="multiplies k tile 1 of A and 0 of B"):
        trace(e.graph, SIZES)


def test_launch_arguments_are_checked():
    with pytest.raises(LaunchError, match="'m' needs a value"):
        trace(streamed())
    with pytest.raises(LaunchError, match="not a parameter of this kernel: workgroups"):
        trace(streamed(), {**SIZES, "workgroups": 3})
    with pytest.raises(VerifyError, match="no schedule"):
        trace(Gemm("f32").graph(), SIZES)
