"""What the busiest workgroup has of each kind of work is what the graph gives it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import Gemm, KernelGraph
from coordgraph.interpreter import trace
from coordgraph.interpreter.tracing import Receive, Send, Store, Trace
from passes import Pipeline
from passes.choosing import Plan
from passes.choosing.constants import constants_of
from passes.choosing.model import Counts
from passes.choosing.table import Table

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
)


@cache
def scheduled(pipeline: str) -> KernelGraph:
    return Pipeline.parse(pipeline)(Gemm("f32").graph(TILE))


def counted(pipeline: str, m: int, n: int, depth: int, grid: int) -> tuple[Counts, Trace]:
    """The model's counts, and what the graph does, of m x n tiles with so many iterations each."""
    each = pipeline == "data-parallel"
    sizes = {"m": 4 * m, "n": 4 * n, "k": 4 * depth}
    given_ = sizes if each else {**sizes, "workgroups": grid}
    plan = Plan(TILE, (1, 1, 1), pipeline, None if each else grid)
    table = Table.of([(replace(Gemm("bf16"), **sizes), plan)])
    device = replace(constants_of(), processors=m * n if each else grid)
    return Counts(table, device), trace(scheduled(pipeline), given_)


def each(found: Trace, kind: type) -> list[int]:
    """How many events of a kind every workgroup has."""
    return [sum(isinstance(e, kind) for e in events) for events in found.workgroups]


def pieces(found: Trace) -> Counter[tuple[int, ...]]:
    """Segments of every tile."""
    return Counter(s.tile for s in found.segments if not s.padding)


@pytest.mark.parametrize("pipeline", SCHEDULES)
@given(m=st.integers(1, 5), n=st.integers(1, 5), depth=st.integers(1, 12), grid=st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_work_is_that_of_the_graph(pipeline: str, m: int, n: int, depth: int, grid: int):
    counts, found = counted(pipeline, m, n, depth, grid)
    work, streamed = counts.work, counts.work.streamed
    assert not found.problems()
    small = prod(found.tiles[:2]) // (m * n)  # a macro tile has so many
    longest = work.iterations * small + work.small * depth
    assert longest[0] == max(found.iterations)
    assert work.utilisation(counts.table, counts.shape.tiles)[0] == pytest.approx(found.utilisation)
    walks = [[s for s in found.of(w) if not s.padding] for w in range(len(found.workgroups))]
    assert work.busy[0] == sum(map(bool, walks))
    if "scatter" in pipeline:  # all with a piece of a tile finish it
        assert work.ends[0] == max(map(len, walks))
    else:
        assert work.ends[0] + work.small[0] == max(each(found, Store))
    assert streamed.sends[0] == max(each(found, Send))
    assert streamed.partials[0] == len(found.sends)
    assert streamed.peers[0] == max(pieces(found).values()) - 1
    shared = {s.k_count for s in found.segments if s.k_count < s.depth}
    assert work.apart[0] or len(shared) <= 1


@pytest.mark.parametrize("pipeline", ["stream-k{owner=last}", "hybrid-stream-k{owner=last}"])
@given(m=st.integers(1, 5), depth=st.integers(1, 12), grid=st.integers(1, 9))
@settings(max_examples=10, deadline=None)
def test_an_owner_receives_from_all_peers(pipeline: str, m: int, depth: int, grid: int):
    counts, found = counted(pipeline, m, 3, depth, grid)
    assert counts.work.streamed.peers[0] == max(each(found, Receive))


def test_rows_that_are_alike_are_counted_once():
    """Different orders of rows, and rows of other kinds between them, change nothing."""
    problem = Gemm("bf16", m=1000, n=3000, k=640)
    texts = [f"128x128x64 {s} on {g}" for s in SCHEDULES[5:] for g in (7, 60, 132)] * 2
    plans = [Plan.parse(text) for text in texts]
    order = np.random.default_rng(0).permutation(len(plans))
    together = Counts(Table.of((problem, plans[i]) for i in order), constants_of()).work
    for place, i in enumerate(order):
        alone = Counts(Table.of([(problem, plans[i])]), constants_of()).work
        for name in ("share", "ends", "sends", "peers", "partials", "busy", "together"):
            found = getattr(together.streamed, name)[place]
            assert found == getattr(alone.streamed, name)[0], (texts[i], name)
