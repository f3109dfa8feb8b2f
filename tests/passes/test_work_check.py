"""The work check refuses schedules that leave out iterations, repeat iterations, or deadlock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, cast

import pytest
from sympy import Expr, Integer

from coordgraph import Gemm, KernelGraph, PassError
from coordgraph.control.operations import (
    AddPartial,
    AwaitPartial,
    Body,
    Epilogue,
    For,
    If,
    InitAccumulator,
    Operation,
    ReceivePartial,
    Scope,
    SendPartial,
    SetCoordinate,
    StoreTile,
    accumulates,
)
from coordgraph.coordinates.dimensions import Linear
from coordgraph.integers import ceil_div, floor_div
from coordgraph.interpreter import trace
from examples.ragged_split_k import RaggedSplitK
from passes import (
    DataParallel,
    HybridStreamK,
    Pass,
    Pipeline,
    SplitK,
    StreamK,
    TwoTileStreamK,
    kit,
)
from passes.choosing import Plan
from passes.work_check import LAUNCHES, MOST_COST, small_launches, work_problems
from tests.passes.schedules import ORDERED, ORDERS, SCHEDULES, schedule, symbolic
from tests.support.sampling import chosen, quick_cases

TILE = (4, 4, 4)
PROBLEM = Gemm("f32").graph(TILE)
PERSISTENT = DataParallel(persistent=True)

Change = Callable[[Operation], Operation | Body]


@dataclass(frozen=True)
class Faulty(Pass):
    """A pass that applies the schedule `step`, then lets `change` replace operations."""

    step: Any = PERSISTENT
    change: Any = None

    name = "test-faulty"
    establishes = ("scheduled",)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        made = self.step(graph)
        wrong = replace(made, control=made.control.rewrite(self.change))
        assert wrong != made, "the fault changes nothing"
        return wrong


@dataclass(frozen=True)
class Waves(Pass):
    """A schedule in waves of whole tiles; if `faulty`, it leaves out the last, partial wave."""

    faulty: bool = True
    workgroups: int | None = None

    name = "test-waves"
    establishes = ("scheduled",)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        work, numbers = kit.TileWork.of(graph), graph.dangling
        tiles = kit.number_of(graph, numbers)
        with graph.edit(str(self)) as e:
            e.level = "scheduled"
            count = kit.workgroup_count(e, self.workgroups)
            waves = e.parameter("waves", ceil_div(tiles, count))
            e.assume(waves * count)
            e.coordinates.add(Linear("tile", tiles))
            kit.flatten_into(e, numbers, "tile")
            wave = kit.add_waves(e, "all", "tile", waves, count)
            mine = ceil_div(tiles - e.coordinates["workgroup"].symbol, count)
            walked = floor_div(tiles, count) if self.faulty else mine
            e.kernel(For(wave, Integer(0), walked, body=work.whole()), workgroup="workgroup")
        return e.graph


def without(kind: type[Operation]) -> Change:
    return lambda op: () if isinstance(op, kind) else op


def twice(kind: type[Operation]) -> Change:
    return lambda op: (op, op) if isinstance(op, kind) else op


def shorter(op: Operation) -> Operation:
    """A fault: the main loop leaves out the last k tile."""
    return replace(op, stop=op.stop - 1) if isinstance(op, For) and accumulates(op) else op


def repeated(op: Operation) -> Operation | Body:
    """A fault: the main loop adds all k tiles twice."""
    return (op, op) if isinstance(op, For) and accumulates(op) else op


def rows_for_columns(op: Operation) -> Operation:
    """A fault: the number of waves is computed with `tiles_m` in place of `tiles_n`."""
    if isinstance(op, For) and op.dim == "wave":
        known = PROBLEM.parameters
        swapped = {known["tiles_n"].symbol: known["tiles_m"].symbol}
        return replace(op, stop=cast(Expr, op.stop.xreplace(swapped)))
    return op


def without_scope(name: str) -> Change:
    return lambda op: () if isinstance(op, Scope) and op.name == name else op


def only_wave_zero(op: Operation) -> Operation | Body:
    """A fault: only wave 0 is computed, as if tiles never outnumbered workgroups."""
    if isinstance(op, For) and op.dim == "wave":
        return SetCoordinate("wave", Integer(0), op.body)
    return op


def next_slot(op: Operation) -> Operation:
    """A fault: partial sums are sent to the workspace slot of another tile."""
    sends = any(isinstance(inner, SendPartial) for inner in getattr(op, "body", ()))
    if isinstance(op, SetCoordinate) and op.dim == kit.SLOT and sends:
        return replace(op, value=op.value + 1)
    return op


def both_own(op: Operation) -> Operation | Body:
    """A fault: a workgroup that sends its partial sum runs the epilogue too, as the owner does."""
    if isinstance(op, If) and op.orelse and any(isinstance(x, Epilogue) for x in op.orelse):
        return replace(op, body=(*op.body, *op.orelse))
    return op


def first_piece_left_out(op: Operation) -> Operation:
    """A fault: the loop that adds the partial sums of a tile begins with the second one."""
    if isinstance(op, For) and any(isinstance(x, AddPartial) for x in op.walk()):
        return replace(op, start=op.start + 1) if op.dim == "partial.peer" else op
    return op


def waits_first(op: Operation) -> Operation:
    """A fault: a workgroup waits for all other workgroups' partial sums before it sends its own."""
    walks = [x for x in getattr(op, "body", ()) if isinstance(x, For) and x.dim == kit.TILE]
    if isinstance(op, If) and len(walks) == 2:
        others = tuple(x for x in op.body if x not in walks)
        return replace(op, body=(*others, *reversed(walks)))
    return op


def ordered(*order: type[Operation]) -> Change:
    """A fault: the operations on each output tile run in the order of the classes `order`."""

    def change(op: Operation) -> Operation:
        body: Body = getattr(op, "body", ())
        if not any(map(accumulates, body)):
            return op
        parts = {type(x): x for x in body}
        assert len(parts) == len(body)
        assert {*parts} == {*order}
        return replace(op, body=tuple(parts[kind] for kind in order))  # type: ignore[call-arg]

    return change


def zeroed_once(op: Operation) -> Operation | Body:
    """A fault: the accumulator is zeroed before the loop over waves, not inside it."""
    if isinstance(op, For) and op.dim == "wave":
        inits = tuple(x for x in op.body if isinstance(x, InitAccumulator))
        return (*inits, op.with_body(*(x for x in op.body if x not in inits)))
    return op


def sent_first(op: Operation) -> Operation:
    """A fault: the partial sum is sent before anything is accumulated."""
    body: Body = getattr(op, "body", ())
    loops = [at for at, x in enumerate(body) if accumulates(x)]
    if len(loops) != 1 or not any(isinstance(x, SendPartial) for x in op.walk()):
        return op
    loop, after = body[loops[0]], body[loops[0] + 1 :]
    return op.with_body(*body[: loops[0]], *after, loop)


def next_tile(op: Operation) -> Operation | Body:
    """Plant a fault in a loop over waves: epilogue and store name the tile of another wave."""
    if isinstance(op, For) and op.dim == "wave":
        at = next(i for i, x in enumerate(op.body) if accumulates(x)) + 1
        wave = If(
            op.symbol < op.stop - 1,
            (SetCoordinate("wave", op.symbol + 1, op.body[at:]),),
            (SetCoordinate("wave", op.start, op.body[at:]),),
        )
        return op.with_body(*op.body[:at], wave)
    return op


FAULTS: dict[str, tuple[Pass, str]] = {
    "ragged wave dropped": (Waves(), "k tiles 0.."),
    "ragged wave dropped, fixed grid": (Waves(workgroups=132), "k tiles 0.."),
    "one wave": (Faulty(PERSISTENT, only_wave_zero), "k tiles 0.."),
    "rows for columns": (Faulty(PERSISTENT, rows_for_columns), "output tile"),
    "split dropped": (Faulty(RaggedSplitK(), without_scope("ragged wave")), "k tiles 0.."),
    "whole tiles dropped": (Faulty(TwoTileStreamK(), without_scope("data-parallel")), "k tiles"),
    "streamed tiles dropped": (Faulty(HybridStreamK(), without_scope("stream-k")), "k tiles"),
    "last k tile dropped": (Faulty(DataParallel(), shorter), "are left out"),
    "k tiles twice": (Faulty(DataParallel(), repeated), "are done twice"),
    "no store": (Faulty(StreamK(), without(StoreTile)), "has 0 stores"),
    "doubled store": (Faulty(StreamK(), twice(StoreTile)), "has 2 stores"),
    "no epilogue": (Faulty(SplitK(), without(Epilogue)), "has 0 epilogues"),
    "doubled epilogue": (Faulty(DataParallel(), twice(Epilogue)), "has 2 epilogues"),
    "two owners": (Faulty(SplitK(), both_own), "epilogues"),
    "no signal": (
        Faulty(StreamK(), without(SendPartial)),
        ", which no workgroup writes [workgroup",
    ),
    "doubled signal": (
        Faulty(StreamK(owner="last"), twice(SendPartial)),
        "is written 2 times by workgroup",
    ),
    "no wait": (
        Faulty(SplitK(splits=3), without(ReceivePartial)),
        "from which no workgroup receives",
    ),
    "no wait for a share": (
        Faulty(StreamK(reduction="scatter"), without(AwaitPartial)),
        "from which no workgroup receives",
    ),
    "pieces not added": (
        Faulty(StreamK(reduction="scatter"), without(AddPartial)),
        "on accumulator 'acc', to which it added slots [], and it waited for slots [",
    ),
    "pieces of a split not added": (
        Faulty(SplitK(splits=3, reduction="scatter"), without(AddPartial)),
        "on accumulator 'acc', to which it added slots [], and it waited for slots [",
    ),
    "first piece not added": (
        Faulty(StreamK(reduction="scatter"), first_piece_left_out),
        "on accumulator 'acc', to which it added slots [",
    ),
    "pieces added twice": (
        Faulty(TwoTileStreamK(reduction="scatter"), twice(AddPartial)),
        "on accumulator 'acc', to which it added slots [",
    ),
    "wrong slot": (Faulty(SplitK(splits=3), next_slot), "slot"),
    "ends before the loop": (
        Faulty(PERSISTENT, ordered(InitAccumulator, Epilogue, StoreTile, For)),
        "accumulates into accumulator 'acc', which was not zeroed since it was stored",
    ),
    "ends before all else": (
        Faulty(PERSISTENT, ordered(Epilogue, StoreTile, InitAccumulator, For)),
        "runs the epilogue on accumulator 'acc', which was never zeroed",
    ),
    "stored before the epilogue": (
        Faulty(PERSISTENT, ordered(InitAccumulator, For, StoreTile, Epilogue)),
        "stores accumulator 'acc', which its epilogue has not finished",
    ),
    "never zeroed": (
        Faulty(PERSISTENT, without(InitAccumulator)),
        "accumulates into accumulator 'acc', which was never zeroed",
    ),
    "zeroed after the loop": (
        Faulty(DataParallel(), ordered(For, InitAccumulator, Epilogue, StoreTile)),
        "accumulates into accumulator 'acc', which was never zeroed",
    ),
    "zeroed once": (
        Faulty(PERSISTENT, zeroed_once),
        "accumulates into accumulator 'acc', which was not zeroed since it was stored",
    ),
    "zeroed twice": (
        Faulty(DataParallel(), lambda op: (op, InitAccumulator()) if accumulates(op) else op),
        "zeroes accumulator 'acc', whose sum of output tile (0, 0) is neither sent nor stored",
    ),
    "sent before the loop": (
        Faulty(SplitK(splits=3), sent_first),
        "accumulates into accumulator 'acc', which was not zeroed since it was",
    ),
    "another tile stored": (Faulty(PERSISTENT, next_tile), "finishes output tile"),
    "waits in a circle": (
        Faulty(StreamK(reduction="scatter"), waits_first),
        "wait for each other for ever",
    ),
}


@quick_cases(5)
@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_schedules_are_refused(fault: str):
    step, why = FAULTS[fault]
    # The check of the graph's structure alone does not find the fault.
    step(PROBLEM, verify="structure")
    with pytest.raises(PassError, match="left a broken graph: with m=") as caught:
        step(PROBLEM)
    assert why in str(caught.value)
    with pytest.raises(PassError) as caught:
        Pipeline([step])(PROBLEM)
    assert caught.value.reproducer is not None
    assert Pipeline([step])(PROBLEM, verify="structure").level == "scheduled"


@quick_cases(4)
@pytest.mark.parametrize("fault", ["ragged wave dropped", "doubled store", "no signal"])
@pytest.mark.parametrize(
    "gemm",
    [
        {"batched": True},
        {"grouped": True},
        {"grouped": True, "group_axis": "k"},
        {"grouped": True, "group_axis": "mnk"},
        {"m": 20, "n": 12},
    ],
    ids=str,
)
def test_faults_are_seen_in_batches_and_groups(gemm: dict[str, Any], fault: str):
    step, why = FAULTS[fault]
    with pytest.raises(PassError) as caught:
        step(Gemm("f32", **gemm).graph(TILE))
    assert why in str(caught.value)


def test_the_same_schedule_without_the_fault_passes():
    assert Waves(faulty=False)(PROBLEM).level == "scheduled"


@pytest.mark.parametrize(
    ("name", "order"), chosen(ORDERED[:4] + ORDERED[-4:], product(SCHEDULES, ORDERS))
)
def test_right_schedules_pass(name: str, order: str):
    assert work_problems(symbolic(name, order)) == ()


@pytest.mark.parametrize("name", ["data-parallel", "two-tile-stream-k", "split-k{splits=3}"])
def test_launches_lie_around_the_borders(name: str):
    graph = symbolic(name)
    launches = [*small_launches(graph)]
    assert len(launches) >= 5
    for launch in launches:
        assert len({launch.values[axis] for axis in "mnk"}) > 1, "no cube"
        assert trace(graph, launch.values, launch.tables).segments


def test_launches_of_a_fixed_grid_are_around_its_size():
    graph = symbolic("data-parallel{persistent=true,workgroups=132}")
    tiles = [
        -(-launch.values["m"] // 4) * -(-launch.values["n"] // 4)
        for launch in small_launches(graph)
    ]
    assert {t % 132 for t in tiles} >= {1, 131}
    assert min(tiles) < 132


def test_large_grids_are_not_followed():
    fixed = schedule("data-parallel{persistent=true,workgroups=60000}")
    assert [*small_launches(fixed(PROBLEM))] == []
    large = Gemm("f32", m=4096, n=4096, k=8).graph(TILE)
    assert [*small_launches(DataParallel()(large))] == []
    assert MOST_COST < 60000


def test_launches_are_the_first_of_those_that_checks_examine():
    graph = symbolic("stream-k")
    examined = graph.check().launches
    launches = small_launches(graph)
    assert launches == examined[: len(launches)]
    assert len(launches) == LAUNCHES < len(examined)


def test_equal_graphs_are_followed_once():
    work_problems.cache_clear()
    for _ in range(2):
        StreamK()(Gemm("f32").graph((8, 8, 8)))
    assert (work_problems.cache_info().hits, work_problems.cache_info().misses) == (1, 1)


def test_levels_of_verifying_are_checked():
    with pytest.raises(
        PassError, match="verify='never' is unknown; use one of structure, outside, work"
    ):
        StreamK()(PROBLEM, verify="never")  # type: ignore[arg-type]


def test_plans_follow_the_work_of_passes_from_outside_alone():
    work_problems.cache_clear()
    Plan((8, 8, 8), pipeline="stream-k").graph(Gemm("f32"))
    assert work_problems.cache_info().misses == 0
    with pytest.raises(PassError, match="test-waves left a broken graph: with m="):
        Plan((8, 8, 8), pipeline="test-waves").graph(Gemm("f32"))
    assert Plan((8, 8, 8), pipeline="test-waves{faulty=false}").graph(Gemm("f32")).log
