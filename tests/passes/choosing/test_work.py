"""Work counts of the busiest workgroup agree with traces of the graph."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace
from functools import cache
from math import ceil, log2, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import Gemm, KernelGraph, PassError
from coordgraph.interpreter import trace
from coordgraph.interpreter.tracing import Receive, Send, Store, Trace
from passes import Pipeline, StreamK
from passes.choosing import Plan
from passes.choosing.constants import constants_of
from passes.choosing.counting import COUNTED_TILE, FIXUPS, MOST_SINGLE, WorkCounter
from passes.choosing.enumeration import check, enumerated, walked
from passes.choosing.known_schedules import FILE, counter_of, derived
from passes.choosing.model import Counts
from passes.choosing.plan_table import Table
from tests.support.sampling import chosen, cover, quick_cases, words

TILE = (4, 4, 4)
SCHEDULES = (
    "data-parallel",
    "data-parallel{persistent=true}",
    "heterogeneous-tiles",
    "heterogeneous-tiles{small_m=1,small_n=4}",
    "heterogeneous-tiles{small_n=1}",
    "stream-k",
    "stream-k{owner=last}",
    "stream-k{owner=last,least=5}",
    "stream-k{least_segment=3}",
    "stream-k{owner=last,least=2,least_segment=4}",
    "stream-k{reduction=scatter}",
    "stream-k{least_segment=2,reduction=scatter}",
    "stream-k{owner=last,reduction=tree}",
    "stream-k{reduction=turnstile}",
    "two-tile-stream-k{owner=last}",
    "two-tile-stream-k{first=dp}",
    "two-tile-stream-k{owner=last,least_segment=3}",
    "two-tile-stream-k{reduction=scatter}",
    "hybrid-stream-k{owner=last}",
    "hybrid-stream-k{least=3}",
    "hybrid-stream-k{least_segment=3,reduction=tree}",
    "hybrid-stream-k{owner=last,reduction=turnstile}",
    "hybrid-stream-k{first=dp,reduction=scatter}",
    "split-k{splits=3}",
    "split-k{owner=first}",
    "split-k{splits=5,reduction=peers}",
    "split-k{splits=4,reduction=tree}",
    "split-k{splits=3,reduction=scatter}",
)


FIXED_GRID = ("data-parallel", "split-k")
"""Schedules whose number of workgroups follows from the problem: a launch cannot choose it."""


@cache
def scheduled(pipeline: str) -> KernelGraph:
    return Pipeline.parse(pipeline)(Gemm("f32").graph(TILE))


def counted(pipeline: str, m: int, n: int, depth: int, grid: int) -> tuple[Counts, Trace]:
    """(the cost model's work counts of a schedule, a trace of the schedule to compare with).

    The problem has m x n output tiles with `depth` k tiles each. A launch has `grid` workgroups,
    unless the schedule fixes the number.
    """
    schedule = Plan(TILE, pipeline=pipeline).schedule
    fixed = schedule.name in FIXED_GRID and not getattr(schedule, "persistent", False)
    sizes = {"m": 4 * m, "n": 4 * n, "k": 4 * depth}
    found = trace(scheduled(pipeline), sizes if fixed else {**sizes, "workgroups": grid})
    plan = Plan(TILE, (1, 1, 1), pipeline, None if fixed else grid)
    table = Table.of([(replace(Gemm("bf16"), **sizes), plan)])
    device = replace(constants_of(), processors=len(found.workgroups) if fixed else grid)
    return Counts(table, device), found


def each(found: Trace, kind: type) -> list[int]:
    """For each workgroup, the number of events of a kind in the trace."""
    return [sum(isinstance(e, kind) for e in events) for events in found.workgroups]


def pieces(found: Trace) -> Counter[tuple[int, ...]]:
    """For each output tile, the number of segments into which it is divided."""
    return Counter(s.tile for s in found.segments if not s.padding)


@quick_cases(2)
@pytest.mark.parametrize("pipeline", cover(0, SCHEDULES, words))
@given(m=st.integers(1, 5), n=st.integers(1, 5), depth=st.integers(1, 12), grid=st.integers(1, 9))
@settings(max_examples=5, deadline=None)
def test_work_is_that_of_the_graph(pipeline: str, m: int, n: int, depth: int, grid: int):
    found_counts, found = counted(pipeline, m, n, depth, grid)
    work, counts = found_counts.work, found_counts.work.counts
    assert not found.problems()
    small = prod(found.tiles[:2]) // (m * n)  # `small` is the number of small tiles in a macro tile
    longest = work.iterations * small + work.small * depth
    assert longest[0] == max(found.iterations)
    shape = found_counts.shape
    assert work.utilisation(found_counts.table, shape.tiles)[0] == pytest.approx(found.utilisation)
    walks = [[s for s in found.of(w) if not s.padding] for w in range(len(found.workgroups))]
    assert work.busy[0] == sum(map(bool, walks))
    # In a reduce-scatter, each workgroup with a segment of a tile stores some of the tile's rows.
    if "scatter" in pipeline:
        assert work.ends[0] == max(map(len, walks))
    else:
        assert work.ends[0] + work.small[0] == max(each(found, Store))
    assert counts.sends[0] == max(each(found, Send))
    assert counts.all_sends[0] == len(found.sends)
    peers = max(pieces(found).values()) - 1
    fixup = FIXUPS[found_counts.table.fixup[0]]
    if fixup == "turnstile":
        assert counts.chain[0] == peers
    elif fixup != "scatter":
        assert counts.receives[0] == max(each(found, Receive))
        assert counts.receives[0] == (ceil(log2(peers + 1)) if fixup == "tree" else peers)
    shared = {s.k_count for s in found.segments if s.k_count < s.depth}
    assert counts.shortest[0] == min(shared, default=0)
    assert work.apart[0] or not shared or max(shared) - min(shared) <= 1


@quick_cases(2)
@pytest.mark.parametrize("pipeline", cover(0, SCHEDULES, words))
@given(m=st.integers(1, 30), n=st.integers(1, 9), depth=st.integers(1, 70), grid=st.integers(1, 40))
@settings(max_examples=6, deadline=None)
def test_counts_are_those_of_an_enumeration(pipeline: str, m: int, n: int, depth: int, grid: int):
    """The cost model's work counts agree with a trace of the graph.

    The counts agree for workgroups with many tiles, and for tiles that many workgroups compute.
    """
    plan = Plan(TILE, pipeline=pipeline)
    schedule = plan.schedule.scaled(TILE, COUNTED_TILE)
    counter = counter_of(schedule)
    assert counter is not None
    found = walked(scheduled(pipeline), m, n, depth, grid)
    columns = (np.array([float(number)]) for number in (m * n, depth, grid))
    counts = counter.count(*columns)
    for name, number in enumerated(found, counter):
        assert getattr(counts, name)[0] == number, name


def test_a_grid_that_is_larger_than_the_device_has_rounds():
    problem = Gemm("bf16", m=1024, n=1024, k=4096)
    plans = [Plan.parse(f"128x128x64 {s}") for s in ("data-parallel", "split-k{splits=4}")]
    work = Counts(Table.of((problem, plan) for plan in plans), constants_of()).work
    assert list(work.rounds) == [1, 2]
    assert list(work.iterations) == [64, 32]
    assert list(work.busy) == [64, 132]


def test_a_counter_that_is_wrong_is_found():
    schedule = StreamK(owner="last")
    right = WorkCounter.derive(schedule)
    check(right, schedule)
    wrong = replace(right, source=right.source.replace("- 1.0", "- 2.0", 1))
    assert wrong.source != right.source
    with pytest.raises(PassError, match=r"the work of stream-k.* cannot be counted"):
        check(wrong, schedule)


@pytest.mark.slow
def test_the_file_has_the_counters_of_all_that_may_be_chosen():
    """The JSON file of known schedules has the work formulas of all schedules of automatic choice.

    `python -m passes.choosing.known_schedules` writes the file.
    """
    kept = json.loads(FILE.read_text("utf-8"))
    found = {text: WorkCounter.from_data(data) for text, data in kept.items()}
    assert found.keys() == derived().keys()
    random = np.random.default_rng(0)
    columns = [random.integers(1, most, 500).astype(float) for most in (400, 90, 133)]
    for text, counter in derived().items():
        assert replace(found[text], source=counter.source) == counter
        assert (found[text].columns(*columns) == counter.columns(*columns)).all(), text


COUNTED = sorted(json.loads(FILE.read_text("utf-8")))
QUICKLY_COUNTED = {text for text in COUNTED if "splits=" not in text}
"""Schedules in the file of known schedules whose work takes less than a second to enumerate."""


@pytest.mark.slow
@pytest.mark.parametrize("text", chosen(QUICKLY_COUNTED, COUNTED))
def test_single_precision_is_exact_up_to_its_limit(text: str):
    counter = derived()[text]
    assert counter.single
    random = np.random.default_rng(0)
    depth, grid = random.integers(1, 257, 300), random.integers(1, 133, 300)
    tiles = np.maximum((MOST_SINGLE - 1) // depth - grid - random.integers(0, 100, 300), 1)
    columns = [column.astype(np.float64) for column in (tiles, depth, grid)]
    one, other = (each.columns(*columns) for each in (counter, replace(counter, single=False)))
    assert (one == other).all()


def test_the_number_of_workgroups_is_the_plan_s():
    with pytest.raises(PassError, match="a fixed number of workgroups, 5, but a plan chooses"):
        WorkCounter.derive(StreamK(workgroups=5))


@pytest.mark.slow
def test_rows_that_are_alike_are_counted_once():
    """Counts of a plan depend neither on the plan's row in a table nor on the other plans in it."""
    problem = Gemm("bf16", m=1000, n=3000, k=640)
    texts = [f"128x128x64 {s} on {g}" for s in SCHEDULES[5:] for g in (7, 60, 132)] * 2
    plans = [Plan.parse(text) for text in texts]
    order = np.random.default_rng(0).permutation(len(plans))
    together = Counts(Table.of((problem, plans[i]) for i in order), constants_of()).work
    for place, i in enumerate(order):
        alone = Counts(Table.of([(problem, plans[i])]), constants_of()).work
        for name in (field.name for field in fields(alone.counts)):
            found = getattr(together.counts, name)[place]
            assert found == getattr(alone.counts, name)[0], (texts[i], name)
