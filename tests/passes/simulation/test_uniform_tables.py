"""Tests of what the simulator `UniformEngine` computes in advance, and of its L2 cache model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordgraph.interpreter.lockstep import StepKind, Steps
from coordgraph.interpreter.recorded_steps import COLUMNS
from passes.simulation import Kernel, main_loops, uniform_tables
from passes.simulation.main_loops import MainLoops, Ranges
from passes.simulation.memory import Pieces
from passes.simulation.range_cache import RangeCache
from passes.simulation.uniform_tables import (
    MOST_KINDS,
    NOT_PLAIN,
    UniformTables,
    kinds_of,
    send_numbers,
)
from passes.simulation.work import tile_works
from tests.passes.simulation.runs import H200, scheduled

WORK = tile_works(scheduled("split-k"), {"m": 128, "n": 128, "k": 512}, H200, Kernel())[0]
MULTIPLY, SEND, RECEIVE, STORE = (
    *(StepKind.MULTIPLY, StepKind.SEND, StepKind.RECEIVE, StepKind.STORE),
)


def steps_of(*rows: tuple[int, StepKind, dict[str, int]]) -> Steps:
    """Steps of one output tile, from their workgroups, kinds and other columns."""
    default = dict.fromkeys(COLUMNS, 0) | {"count": 1, "slot": -1}
    full = [default | {"workgroup": w, "kind": int(kind), **more} for w, kind, more in rows]
    columns = {name: np.array([row[name] for row in full]) for name in COLUMNS}
    return Steps(max(w for w, _, _ in rows) + 1, (2, 2, 8), 1, (), **columns)


def sends(workgroup: int, **more: int) -> tuple[int, StepKind, dict[str, int]]:
    return workgroup, SEND, {"slot": 0, "readers": 1, **more}


def receives(workgroup: int, **more: int) -> tuple[int, StepKind, dict[str, int]]:
    return workgroup, RECEIVE, {"slot": 0, **more}


def multiplies(workgroup: int, **more: int) -> tuple[int, StepKind, dict[str, int]]:
    return workgroup, MULTIPLY, {"first": 2 * workgroup, "count": 2, **more}


def tables_of(steps: Steps) -> UniformTables | None:
    loops = MainLoops(steps, [WORK], [(1, 1)], np.array([[128, 128, 512]]), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uniform_tables, "LEAST_LOOPS", 1)
        return UniformTables.of(steps, loops, WORK, merged=0.0, later=1e-6)


def test_a_plain_tail_waits_first_and_sends_last():
    found = tables_of(
        steps_of(
            *(multiplies(0), sends(0)),
            *(multiplies(1), receives(1), sends(1, first=1)),
            *(multiplies(2), sends(2, first=2), (2, STORE, {})),
            *(multiplies(3), receives(3, first=1, count=2), (3, STORE, {})),
            *(multiplies(4), (4, STORE, {})),
        )
    )
    assert found is not None
    tails = found.tails
    assert tails.plain.tolist() == [True, True, False, False, True]
    assert tails.receives.tolist() == [tails.nothing, 0, NOT_PLAIN, NOT_PLAIN, tails.nothing]
    assert tails.sends[tails.plain].tolist() == [0, 1, tails.nothing + 1]


def test_a_workgroup_must_begin_with_a_main_loop():
    assert tables_of(steps_of(multiplies(0), sends(0), multiplies(1), receives(1))) is not None
    assert tables_of(steps_of(multiplies(0), sends(0), receives(1), multiplies(1))) is None


def test_partial_sums_are_sent_once_and_received_by_their_readers():
    sent = sends(0, first=1, readers=2), sends(1, first=2)
    found = send_numbers(steps_of(*sent, receives(2, first=1, count=2), receives(3, first=1)))
    assert found is not None
    assert found.tolist() == [1, 2, 1, 1]
    assert send_numbers(steps_of(sent[0], receives(2, first=1, count=2))) is None
    assert send_numbers(steps_of(sends(0), receives(1))) is not None
    assert send_numbers(steps_of(sends(0), sends(1), receives(2))) is None
    assert send_numbers(steps_of(sends(0), receives(1), receives(2))) is None
    assert send_numbers(steps_of(sends(0, slot=1 << 40))) is None


def ranges_of(*loops: tuple[int, int], **more: Any) -> Ranges | None:
    """`MainLoops.ranges` of main loops on one tile, given as (first k tile, number of k tiles).

    None if two of the ranges overlap but differ. `span`: the tile's extents in m and n, divided by
    those of the graph's smallest tile shape; if it is not (1, 1), the result is None, too.
    """
    steps = steps_of(*(multiplies(0, first=first, count=count) for first, count in loops))
    made = MainLoops(steps, [WORK], [more.get("span", (1, 1))], np.array([[128, 128, 512]]), 2)
    return made.ranges


@pytest.mark.parametrize("sparse", [0, 1 << 20])
def test_equal_and_disjoint_ranges_have_numbers(sparse: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(main_loops, "SPARSE", sparse)
    found = ranges_of((4, 4), (0, 4), (4, 4))
    assert found is not None
    assert found.of_a.tolist() == [1, 0, 1]
    assert found.of_b.tolist() == [3, 2, 3]
    assert found.panels.tolist() == [0, 0, 1, 1]


def test_other_ranges_have_none():
    assert ranges_of((0, 4), (0, 3)) is None
    assert ranges_of((0, 4), (3, 4)) is None
    assert ranges_of((0, 4), span=(2, 1)) is None
    assert ranges_of((0, 4), span=(1, 2)) is None


PIECES = ((0, 4), (4, 8), (8, 11))
REQUESTS = st.lists(
    st.tuples(*(st.integers(0, 5) for _ in "ab"), st.integers(0, 25), st.integers(0, 40)),
    min_size=1,
)


@given(REQUESTS, st.integers(0, 3))
@example([(0, 0, 0, 0), (0, 0, 0, 0), (0, 1, 60, 20), (0, 0, 6, 20)], 3)
def test_ranges_are_found_as_by_the_model_of_panels(
    requests: list[tuple[int, int, int, int]], pace: int
):
    """Two models of the L2 cache, `RangeCache` and `Pieces`, find the same misses.

    The keys of `Pieces` are pairs of a panel and a range of k tiles.
    Every panel (rows of A or columns of B) has three ranges, numbered 3·panel to 3·panel + 2.
    """
    of_a, of_b = (np.array([r[i] for r in requests]) for i in (0, 1))
    ranges = Ranges(of_a, of_b + 6, np.arange(12) // 3)
    cache, pieces = RangeCache(ranges, bytes(len(requests)), 60.0), Pieces(60.0)
    volume = 0.0
    for loop, (a, b, bytes_read, slot) in enumerate(requests):
        volume += bytes_read
        expected = 0
        for weight, number in ((1, a), (3, b + 6)):
            first, stop = PIECES[number % 3]
            given = number // 3, first, stop, volume, float(pace), slot
            missing, near = pieces.request(*given)
            expected += weight * (1 if missing else 2 if near else 0)
        assert cache.request(loop, slot, volume, float(pace)) == expected


def test_kinds_are_different_rows():
    a, b = np.array([1.0, 2.0, 1.0, 2.0, 1.0]), np.array([3, 3, 4, 3, 3])
    found = kinds_of([a, b])
    assert found is not None
    assert found[0].tolist() == [0, 1, 2, 1, 0]
    assert found[1].tolist() == [0, 1, 2]
    assert kinds_of([np.arange(MOST_KINDS)]) is not None
    assert kinds_of([np.arange(MOST_KINDS + 1)]) is None
