"""The `atomic` reduction: partial sums of a shared tile are added to one slot, in any order."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import EvaluationError, Gemm, KernelGraph, from_json, parse
from coordgraph.control.graph import Rewrite
from coordgraph.control.operations import (
    AccumulatePartial,
    Assign,
    CollectPartial,
    Operation,
    SendPartial,
    SetCoordinate,
)
from coordgraph.coordinates.edges import Join
from coordgraph.interpreter import SCHEDULERS, Deadlock, interpret, trace
from coordgraph.interpreter.schedulers import InOrder, Reversed, Scheduler, Shuffled
from coordgraph.progress import wait_direction
from coordgraph.tensors import Role
from passes import StreamK
from passes.kit import Owner
from passes.kit.fixup import SLOT, TURN
from tests.passes.schedules import TILE, Problem, in_tiles, numeric, parameters, symbolic
from tests.passes.test_invariants import waits_for_lower
from tests.passes.test_results import one_number_a_piece, run
from tests.passes.test_tree import deep
from tests.support.sampling import quick_cases

STREAMS = (
    "stream-k{reduction=atomic}",
    "stream-k{owner=last,reduction=atomic}",
    "stream-k{owner=last,least_segment=3,reduction=atomic}",
    "two-tile-stream-k{reduction=atomic}",
    "two-tile-stream-k{owner=last,first=dp,waves=contiguous,reduction=atomic}",
    "hybrid-stream-k{reduction=atomic}",
    "hybrid-stream-k{owner=last,first=dp,reduction=atomic}",
)
SPLITS = (
    "split-k{splits=5,reduction=atomic}",
    "split-k{splits=5,owner=first,reduction=atomic}",
    "split-k{splits=64,reduction=atomic}",
)
EVERY = (*STREAMS, *SPLITS)
FIRST, LAST, SPLIT = STREAMS[0], STREAMS[1], SPLITS[0]


@quick_cases(1)
@pytest.mark.parametrize("name", EVERY)
@given(deep())
@settings(max_examples=60)
def test_all_but_the_owner_add_to_the_slot_of_the_tile(name: str, problem: Problem):
    graph = symbolic(name)
    found = trace(graph, parameters(graph, problem))
    assert found.problems() == ()
    pieces: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for segment in sorted(found.segments, key=lambda s: s.k_first):
        if not segment.padding:
            pieces[segment.tile].append(segment.workgroup)
    slots: set[int] = set()
    for tile, workgroups in pieces.items():
        sent = [s for s in found.sends if s.tile == tile]
        got = [r for r in found.receives if r.tile == tile]
        owner = workgroups[-1 if waits_for_lower(name) else 0]
        assert sorted(s.workgroup for s in sent) == sorted({*workgroups} - {owner})
        assert all(workgroups[s.turn] == s.workgroup for s in sent)
        assert sorted(r.turn for r in got) == sorted(s.turn for s in sent)
        assert {r.workgroup for r in got} <= {owner}
        # If several workgroups compute the tile, the tile has a workspace slot of its own.
        if sent:
            (slot,) = {s.slot for s in sent} | {r.slot for r in got}
            assert slot not in slots
            slots.add(slot)


@quick_cases(1)
@pytest.mark.parametrize("name", EVERY)
@given(deep(), st.integers(0, 99), st.sampled_from(sorted(SCHEDULERS)))
@settings(max_examples=20)
def test_the_result_whoever_runs_first(name: str, problem: Problem, seed: int, kind: str):
    schedule = Shuffled(seed) if kind == "shuffled" else SCHEDULERS[kind]()
    resident = {"resident": 1 + seed % 5} if waits_for_lower(name) else {}
    run(symbolic(name), problem, schedule, **resident)


@pytest.mark.slow
@given(st.sampled_from(EVERY), deep())
@settings(max_examples=10)
def test_graphs_of_numbers(name: str, problem: Problem):
    run(numeric(name, problem), problem, Shuffled(0))


def test_a_stream_needs_one_slot_for_a_workgroup():
    graph = StreamK(reduction="atomic")(Gemm("f32").graph(TILE))
    found = trace(graph, parameters(graph, in_tiles(3, 3, 40, 30)))
    assert found.slots == 30
    assert len(found.slots_used) == 9
    assert trace(symbolic(SPLIT), {"m": 8, "n": 12, "k": 80}).slots == 6


def test_the_sums_are_zero_before_and_after():
    roles = {t.name: t.role for t in symbolic(LAST).tensors if t.role.workspace}
    assert roles == {"partials": Role.SUMS, "flags": Role.FLAGS}
    assert all(role.zeroed for role in roles.values())
    peers = {t.name: t.role for t in symbolic("stream-k").tensors if t.role.workspace}
    assert peers == {"partials": Role.PARTIALS, "flags": Role.FLAGS}
    assert [role for role in Role if role.zeroed] == [Role.FLAGS, Role.SUMS, Role.COUNTERS]


@pytest.mark.parametrize("name", [LAST, SPLIT])
@pytest.mark.parametrize(("schedule", "back"), [(InOrder(), False), (Reversed(), True)])
def test_sums_are_rounded_as_they_come(name: str, schedule: Scheduler, back: bool):
    """Atomic sums are rounded as if numbers are added in the order in which the workgroups run.

    The operands are chosen so that each workgroup's partial sum is a known number.
    """
    pieces = 6
    numbers, a, b = one_number_a_piece(pieces)
    graph = symbolic(name) if name == LAST else symbolic("split-k{splits=6,reduction=atomic}")
    given = {"workgroups": pieces} if "workgroups" in graph.parameters else {}
    result = interpret(graph, a, b, parameters=given, schedule=schedule).d
    *others, own = numbers
    total = np.float32(0)
    for number in others[::-1] if back else others:
        total = np.float32(total + number)
    assert result[0, 0] == np.float32(own + total)


@quick_cases(2)
@pytest.mark.parametrize("kind", ["batch", "groups", "groups of k"])
@pytest.mark.parametrize("owner", ["first", "last"])
def test_batches_and_groups(kind: str, owner: Owner):
    random = np.random.default_rng(0)
    offsets = np.array([0, 5, 5, 17], np.int32)
    batch = random.integers(-4, 5, (3, 9, 21)).astype("f4")
    b = random.integers(-4, 5, (3, 21, 6)).astype("f4")
    gemm, tables, a = Gemm("f32", batched=True), {}, batch
    wanted = a @ b
    if kind == "groups":
        gemm, tables, a = (
            Gemm("f32", grouped=True),
            {"offsets": offsets},
            batch.reshape(27, 21)[:17],
        )
        parts = zip(pairwise(offsets), b, strict=True)
        wanted = np.concatenate([a[i:j] @ x for (i, j), x in parts])
    if kind == "groups of k":
        gemm = Gemm("f32", transpose_a=True, grouped=True, group_axis="k")
        tables, a, b = {"offsets": offsets}, batch[0, :, :17].T.copy(), b[0, :17]
        wanted = np.stack([a[i:j].T @ b[i:j] for i, j in pairwise(offsets)])
    graph = StreamK(owner=owner, reduction="atomic")(gemm.graph(TILE))
    given = {"workgroups": 7}
    d = interpret(graph, a, b, parameters=given, tables=tables, schedule=Shuffled(2)).d
    assert np.array_equal(d, wanted)
    assert wait_direction(graph) == {"first": "higher", "last": "lower"}[owner]


def test_text_and_json_bring_it_back():
    graph = symbolic(FIRST)
    assert parse(graph.text()) == graph
    assert from_json(graph.json()) == graph
    assert "AccumulatePartial" in graph.control.mermaid()


def test_how_it_reads():
    lines = symbolic(LAST).pseudocode().splitlines()
    told = [line.strip() for line in lines if "flags" in line or "workspace" in line]
    assert told == [
        "// add acc to workspace slot slot, element by element",
        "flags[slot]++;  // atomic, like the additions above",
        "while (flags[partial_slot] != turn);",
        "// load sums from workspace slot partial_slot, add them to acc",
        "// store zeros to workspace slot partial_slot",
        "flags[partial_slot] = 0;",
    ]


def changed(graph: KernelGraph, change: Rewrite) -> KernelGraph:
    with graph.edit("changed") as e:
        e.control = e.control.rewrite(change)
    return e.graph


def one_sender_less(op: Operation) -> Operation:
    return replace(op, senders=op.senders - 1) if isinstance(op, CollectPartial) else op


def one_sender_more(op: Operation) -> Operation:
    return replace(op, senders=op.senders + 1) if isinstance(op, CollectPartial) else op


def not_collected(op: Operation) -> Operation | tuple[Operation, ...]:
    return () if isinstance(op, CollectPartial) else op


def added_twice(op: Operation) -> Operation | tuple[Operation, ...]:
    return (op, op) if isinstance(op, AccumulatePartial) else op


def not_added(op: Operation) -> Operation | tuple[Operation, ...]:
    return () if isinstance(op, AccumulatePartial) else op


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (one_sender_less, "not zero at the end|still set|waits? for|waited until"),
        (one_sender_more, "wait"),
        (not_collected, "still set.*not zero at the end|not zero at the end.*still set"),
        (added_twice, "wait|still set"),
        (not_added, "wait"),
    ],
)
@pytest.mark.parametrize("name", [FIRST, LAST, SPLIT])
def test_what_is_broken_is_noticed(name: str, change: Rewrite, told: str):
    graph, problem = changed(symbolic(name), change), in_tiles(1, 1, 16, 5)
    assert trace(graph, parameters(graph, problem)).problems()
    with pytest.raises((EvaluationError, Deadlock), match=told):
        run(graph, problem, Shuffled(0))


def test_partials_that_are_sent_are_not_added_to():
    """`SendPartial` cannot use slots of the `atomic` reduction.

    Slots for atomic additions must be zero before a launch, so they are a tensor with another role
    than slots for partial sums that are stored.
    """

    def sent(op: Operation) -> Operation:
        return SendPartial(op.slot, turn=op.turn) if isinstance(op, AccumulatePartial) else op

    graph = changed(symbolic(LAST), sent)
    with pytest.raises(EvaluationError, match=r"a tensor with the role .partials"):
        run(graph, in_tiles(1, 1, 16, 5), Shuffled(0))


@pytest.mark.parametrize(("name", "by"), [("turn", 1), ("turn_first", 1)])
@pytest.mark.parametrize("schedule", [LAST, SPLIT])
def test_a_wrong_turn_proves_nothing(schedule: str, name: str, by: int):
    """`wait_direction` is `mixed` if an operation computes a sender's position (`turn`) wrongly.

    A wrong position denotes another workgroup than the one that sends.
    """

    def bent(op: Operation) -> Operation:
        wrong = isinstance(op, Assign) and op.name == name
        return replace(op, value=op.value + by) if wrong else op  # type: ignore[call-arg]

    assert wait_direction(symbolic(schedule)) == "lower"
    assert wait_direction(changed(symbolic(schedule), bent)) == "mixed"


def test_turns_in_no_order_prove_nothing():
    """`wait_direction` is `mixed` if senders are not numbered in the order of workgroups.

    The number of the last sender's workgroup then is no bound for the other senders' workgroups.
    """
    graph = symbolic(LAST)
    (edge,) = (e for e in graph.coordinates.edges if isinstance(e, Join) and TURN in e.upstream)
    with graph.edit("elsewhere") as e:
        e.coordinates.disconnect(edge)
        e.coordinates.connect(replace(edge, strides=(edge.strides[0], 0 * edge.strides[1])))
    assert wait_direction(e.graph) == "mixed"


def test_a_slot_that_two_tiles_have_is_noticed():
    """The interpreter finds that two tiles use one slot: sender counts differ, or D is wrong."""

    def one_slot(op: Operation) -> Operation:
        both = isinstance(op, SetCoordinate) and op.dim == SLOT
        return replace(op, value=op.value * 0) if both else op  # type: ignore[call-arg]

    graph, problem = changed(symbolic(FIRST), one_slot), in_tiles(1, 3, 8, 7)
    assert trace(graph, parameters(graph, problem)).problems()
    with pytest.raises((EvaluationError, Deadlock, AssertionError)):
        run(graph, problem, Shuffled(0))


def test_every_piece_counts_once():
    """The owner of a tile waits for 15 partial sums, but reads only the slot that has their sum."""
    graph = symbolic(LAST)
    found = trace(graph, parameters(graph, in_tiles(1, 1, 16, 16)))
    assert Counter(r.workgroup for r in found.receives) == {15: 15}
    assert {r.slot for r in found.receives} == {0}
