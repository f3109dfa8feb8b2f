"""The `tree` reduction adds the partial sums of a tile in pairs, and does not deadlock."""

from __future__ import annotations

from collections import Counter
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph.interpreter import SCHEDULERS, interpret, trace
from coordgraph.interpreter.schedulers import Shuffled
from tests.passes.schedules import TILE, Problem, in_tiles, numeric, parameters, symbolic
from tests.passes.test_results import run
from tests.support.sampling import quick_cases

FIRST, LAST = "stream-k{reduction=tree}", "stream-k{owner=last,reduction=tree}"
TWO_TILE = "two-tile-stream-k{reduction=tree}"
TWO_TILE_LAST = "two-tile-stream-k{owner=last,first=dp,waves=contiguous,reduction=tree}"
EVERY = (FIRST, LAST, TWO_TILE, TWO_TILE_LAST)
PIECES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 31, 33, 64, 100, 257)


def paired(pieces: int) -> dict[int, list[int]]:
    """By the number of each of `pieces` partial sums: the partial sums added to it, in order.

    Neighbours are paired, then the receivers of these pairs, until one partial sum is left.
    """
    added: dict[int, list[int]] = {}
    left = list(range(pieces))
    while len(left) > 1:
        for receiver, sender in zip(left[::2], left[1::2], strict=False):
            added.setdefault(receiver, []).append(sender)
        left = left[::2]
    return added


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("name", EVERY)
def test_one_tile_is_added_up_in_pairs(name: str, pieces: int):
    """Partial sums of one tile are added in pairs; number 0 is the partial sum of the tile's owner.

    Partial sums are numbered in the order of the workgroups with owner=first, in reverse with
    owner=last.
    """
    graph = symbolic(name)
    found = trace(graph, parameters(graph, in_tiles(1, 1, pieces, pieces)))
    assert found.problems() == ()
    piece = {w: w if "owner=last" not in name else pieces - 1 - w for w in range(pieces)}
    added: dict[int, list[int]] = {}
    for receive in found.receives:
        added.setdefault(piece[receive.workgroup], []).append(piece[receive.slot])
    assert added == paired(pieces)
    most = max((len(slots) for slots in added.values()), default=0)
    assert most == (ceil(log2(pieces)) if pieces > 1 else 0)


@st.composite
def deep(draw: st.DrawFn) -> Problem:
    """Random problems with few output tiles, many k tiles and up to 45 workgroups."""
    tiles = draw(st.sampled_from([(1, 1), (1, 2), (2, 2), (1, 3)]))
    m, n = (draw(st.integers(4 * count - 3, 4 * count)) for count in tiles)
    return m, n, draw(st.integers(1, 160)), draw(st.integers(1, 45))


@quick_cases(2)
@pytest.mark.parametrize("name", EVERY)
@given(deep())
@settings(max_examples=60)
def test_every_slot_is_sent_once_and_received_once(name: str, problem: Problem):
    graph = symbolic(name)
    found = trace(graph, parameters(graph, problem))
    assert found.problems() == ()
    sent = Counter(send.slot for send in found.sends)
    assert sent == Counter(receive.slot for receive in found.receives)
    assert set(sent.values()) <= {1}
    assert all(send.slot == send.workgroup for send in found.sends)
    lower = "owner=last" in name
    assert all((signaller < waiter) == lower for waiter, signaller in found.wait_edges())
    # A workgroup receives partial sums of one tile at most, and receives all of them before it
    # sends.
    pieces = Counter(s.tile for s in found.segments if not s.padding)
    for workgroup, events in enumerate(found.workgroups):
        got = Counter(r.tile for r in found.receives if r.workgroup == workgroup)
        assert len(got) <= 1
        for tile, count in got.items():
            assert count <= ceil(log2(pieces[tile]))
        kinds = [type(event).__name__ for event in events]
        if "Send" in kinds and "Receive" in kinds and len(found.of(workgroup)) == 1:
            assert kinds == ["Segment", *["Receive"] * sum(got.values()), "Send"]


@pytest.mark.parametrize("name", [LAST, TWO_TILE_LAST])
@given(deep(), st.integers(1, 45), st.integers(0, 99), st.sampled_from(sorted(SCHEDULERS)))
@settings(max_examples=25)
def test_waiting_for_lower_numbers_needs_no_residency(
    name: str, problem: Problem, resident: int, seed: int, kind: str
):
    schedule = Shuffled(seed) if kind == "shuffled" else SCHEDULERS[kind]()
    run(symbolic(name), problem, schedule, resident=resident)


@quick_cases(1)
@pytest.mark.parametrize("name", [FIRST, TWO_TILE])
@given(deep(), st.integers(0, 99), st.sampled_from(sorted(SCHEDULERS)))
@settings(max_examples=25)
def test_waiting_for_higher_numbers(name: str, problem: Problem, seed: int, kind: str):
    run(symbolic(name), problem, Shuffled(seed) if kind == "shuffled" else SCHEDULERS[kind]())


@pytest.mark.slow
@given(st.sampled_from(EVERY), deep())
@settings(max_examples=10)
def test_graphs_of_numbers(name: str, problem: Problem):
    run(numeric(name, problem), problem, Shuffled(0))


def rounded(sums: list[np.float32]) -> np.float32:
    """The f32 sum of numbers that are added in pairs, pairs of pairs and so on."""
    while len(sums) > 1:
        pairs = [sums[i : i + 2] for i in range(0, len(sums), 2)]
        sums = [np.float32(sum(pair[1:], pair[0])) for pair in pairs]
    return sums[0]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("pieces", [2, 3, 5, 8, 13, 32, 45])
def test_sums_are_rounded_as_the_tree_says(name: str, pieces: int):
    """Sums have the bits of an addition in pairs.

    Each workgroup's part of k contributes one number, so only the order of additions decides the
    bits.
    """
    random = np.random.default_rng(pieces)
    numbers = random.standard_normal(pieces).astype(np.float32) * 1000
    a, b = np.zeros((1, pieces * TILE[2]), np.float32), np.ones((pieces * TILE[2], 1), np.float32)
    a[0, :: TILE[2]] = numbers
    parts = list(numbers if "owner=last" not in name else numbers[::-1])
    result = interpret(symbolic(name), a, b, parameters={"workgroups": pieces}).d
    assert result[0, 0] == rounded(parts)
