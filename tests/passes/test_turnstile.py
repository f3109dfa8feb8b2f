"""The `turnstile` reduction: workgroups add partial sums of a tile to one slot in a fixed order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import Gemm, KernelGraph
from coordgraph.control.operations import Assign, Operation
from coordgraph.interpreter import SCHEDULERS, Deadlock, Trace, interpret, trace
from coordgraph.interpreter.schedulers import Shuffled
from coordgraph.progress import wait_direction
from passes import SplitK, StreamK
from tests.passes.schedules import TILE, Problem, in_tiles, numeric, parameters, symbolic
from tests.passes.test_invariants import waits_for_lower
from tests.passes.test_results import one_number_a_piece, run
from tests.passes.test_tree import deep
from tests.support.sampling import quick_cases

STREAMS = (
    "stream-k{reduction=turnstile}",
    "stream-k{owner=last,reduction=turnstile}",
    "two-tile-stream-k{reduction=turnstile}",
    "two-tile-stream-k{owner=last,first=dp,waves=contiguous,reduction=turnstile}",
    "hybrid-stream-k{reduction=turnstile}",
    "hybrid-stream-k{owner=last,first=dp,reduction=turnstile}",
)
SPLITS = ("split-k{splits=5}", "split-k{splits=5,owner=first}", "split-k{splits=64}")
EVERY = (*STREAMS, *SPLITS)


def in_order(name: str, found: Trace) -> None:
    """Check the order in which the partial sums of each tile are added.

    The workgroup with the k range farthest from the owner's k range sends first. Each next
    workgroup receives the sum so far, adds its own sum and sends the result.
    """
    assert found.problems() == ()
    lower = waits_for_lower(name)
    for tile in {s.tile for s in found.sends}:
        pieces = sorted(
            (s.k_first, s.workgroup) for s in found.segments if s.tile == tile and not s.padding
        )
        workgroups = [w for _, w in (pieces if lower else pieces[::-1])]
        (slot,) = {s.slot for s in found.sends if s.tile == tile}
        turns = {s.workgroup: s.turn for s in found.sends if s.tile == tile}
        assert list(turns) == sorted(workgroups[:-1])
        # The turn of a partial sum is its number, from 0, in the order of the segments' k ranges,
        # even with owner=first, where the segment with the largest k is added first.
        numbers = {w: number for number, (_, w) in enumerate(pieces)}
        assert turns == {w: numbers[w] for w in turns}
        got = [(r.workgroup, r.slot, r.turn) for r in found.receives if r.tile == tile]
        pairs = pairwise(workgroups)
        assert sorted(got) == sorted((w, slot, numbers[before]) for before, w in pairs)


@quick_cases(1)
@pytest.mark.parametrize("name", EVERY)
@given(deep())
@settings(max_examples=60)
def test_pieces_pass_one_accumulator_on(name: str, problem: Problem):
    graph = symbolic(name)
    in_order(name, trace(graph, parameters(graph, problem)))


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


@pytest.mark.parametrize("name", [*STREAMS[:2], *SPLITS[:2]])
@pytest.mark.parametrize("pieces", [2, 3, 5])
def test_sums_are_rounded_in_order(name: str, pieces: int):
    """Partial sums of a tile are added in the order of their k ranges, and the owner's is the last.

    The matrices are made so that each workgroup's part of k sums to one known number.
    """
    numbers, a, b = one_number_a_piece(pieces)
    graph = symbolic(name)
    given = {"workgroups": pieces} if "workgroups" in graph.parameters else {}
    result = interpret(graph, a, b, parameters=given).d
    first, *others = numbers if waits_for_lower(name) else numbers[::-1]
    for number in others:
        first = np.float32(number + first)
    assert result[0, 0] == first


@pytest.mark.parametrize(
    ("depth", "shares"),
    [(8, (3, 3, 2)), (7, (3, 3, 1)), (4, (2, 2, 0)), (2, (1, 1, 0)), (1, (1, 0, 0))],
)
@pytest.mark.parametrize("options", [{}, {"owner": "first"}, {"reduction": "peers"}])
def test_split_k_in_three(depth: int, shares: tuple[int, ...], options: dict[str, Any]):
    """With split-k, the workgroups of a tile have consecutive numbers.

    If a tile has fewer k tiles than workgroups, the workgroups without iterations do nothing.
    """
    graph = SplitK(splits=3, **options)(Gemm("f32").graph(TILE))
    found = trace(graph, {"m": 8, "n": 12, "k": 4 * depth})
    assert found.problems() == ()
    assert found.iterations == 6 * shares
    assert found.idle == tuple(w for w in range(18) if shares[w % 3] == 0)
    busy = 3 - shares.count(0)
    assert len(found.receives) == 6 * (busy - 1)
    assert found.slots == (18 if options.get("reduction") == "peers" else 6)
    for tile in range(6):
        assert {s.tile for w in range(3) for s in found.of(3 * tile + w)} == {divmod(tile, 3)}


def test_a_stream_needs_one_slot_for_a_workgroup():
    graph = StreamK(reduction="turnstile")(Gemm("f32").graph(TILE))
    found = trace(graph, parameters(graph, in_tiles(3, 3, 40, 30)))
    assert found.slots == 30
    assert len(found.slots_used) == 9
    assert max(send.turn for send in found.sends) == 3


def bent(graph: KernelGraph, name: str, by: int) -> KernelGraph:
    """The graph with `by` added to the value that an `Assign` gives to the symbol `name`."""

    def change(op: Operation) -> Operation:
        wrong = isinstance(op, Assign) and op.name == name
        return replace(op, value=op.value + by) if wrong else op  # type: ignore[call-arg]

    with graph.edit("bent") as e:
        e.control = e.control.rewrite(change)
    return e.graph


@pytest.mark.parametrize("name", ["stream-k{owner=last,reduction=turnstile}", "split-k{splits=5}"])
def test_a_wrong_turn_is_noticed(name: str):
    """A deadlock is reported if each workgroup waits for its own partial sum, not the previous one.

    `wait_direction` of such a graph is `mixed`: in no order is a launch proved to end.
    """
    graph = symbolic(name)
    wrong = bent(graph, "turn_before", 1)
    assert (wait_direction(graph), wait_direction(wrong)) == ("lower", "mixed")
    assert wait_direction(bent(graph, "turn", 1)) == "mixed"
    problem = in_tiles(1, 1, 10, 5)
    found = trace(wrong, parameters(wrong, problem))
    assert any("at turn" in told for told in found.problems())
    with pytest.raises(Deadlock, match="1 for slot 0"):
        run(wrong, problem, Shuffled(0))
