"""The `scatter` reduction: all workgroups that computed partial sums of a tile divide its fix-up.

Each workgroup adds up and stores some of the tile's shares (parts of its rows).
"""

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
from coordgraph.control.operations import AwaitPartial, For, Operation, SendPartial
from coordgraph.interpreter import SCHEDULERS, Deadlock, interpret, trace
from coordgraph.interpreter.schedulers import Shuffled
from coordgraph.interpreter.tracing import Segment, Send
from passes import StreamK
from passes.kit.reduce_scatter import MOST_SHARES, SHARE
from tests.passes.schedules import TILE, Problem, in_tiles, numeric, parameters, symbolic
from tests.passes.test_results import one_number_a_piece, run
from tests.passes.test_tree import deep
from tests.support.sampling import quick_cases

STREAMS = (
    "stream-k{reduction=scatter}",
    "two-tile-stream-k{reduction=scatter}",
    "two-tile-stream-k{first=dp,waves=contiguous,reduction=scatter}",
    "hybrid-stream-k{reduction=scatter}",
)
EVERY = (*STREAMS, "split-k{splits=5,reduction=scatter}", "split-k{splits=64,reduction=scatter}")
ONE, SPLIT = STREAMS[0], EVERY[-2]


@quick_cases(2)
@pytest.mark.parametrize("name", EVERY)
@given(deep())
@settings(max_examples=60)
def test_every_peer_has_its_shares(name: str, problem: Problem):
    """If p workgroups compute a tile, workgroup t of them finishes the shares t, t + p, t + 2p, …

    A share is a part of the tile. For its shares, workgroup t receives the partial sums of the
    other workgroups, adds them and stores the result.
    """
    graph = symbolic(name)
    found = trace(graph, parameters(graph, problem))
    assert found.problems() == ()
    peers: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for segment in sorted(found.segments, key=lambda s: s.k_first):
        if not segment.padding:
            peers[segment.tile].append(segment.workgroup)
    shares = graph.coordinates[SHARE].fixed_size
    for tile, workgroups in peers.items():
        p = len(workgroups)
        sent = {s.workgroup: s for s in found.sends if s.tile == tile}
        finished = [e for e in found.stores if e.tile == tile]
        if p == 1:
            assert not sent
            assert [(e.share, e.shares) for e in finished] == [(0, 1)]
            continue
        assert sorted(sent) == workgroups
        assert {s.readers for s in sent.values()} == {p}
        got = Counter((r.workgroup, r.slot) for r in found.receives if r.tile == tile)
        assert got == Counter((w, s.slot) for w in workgroups for s in sent.values())
        assert {(e.workgroup, e.share) for e in finished} == {
            (workgroups[share % p], share) for share in range(shares)
        }


@quick_cases(2)
@pytest.mark.parametrize("name", STREAMS)
@given(deep())
@settings(max_examples=30)
def test_all_is_sent_before_anything_is_waited_for(name: str, problem: Problem):
    """A workgroup sends all its partial sums before it waits.

    If a workgroup waited before it sends, waits would form a chain along the whole grid.
    """
    graph = symbolic(name)
    for events in trace(graph, parameters(graph, problem)).workgroups:
        kinds = [type(event).__name__ for event in events]
        if "Receive" in kinds:
            assert "Send" not in kinds[kinds.index("Receive") :]
        # A partial sum is sent right after its segment is computed.
        for before, event in pairwise(events):
            if isinstance(event, Send):
                assert isinstance(before, Segment)


@quick_cases(1)
@pytest.mark.parametrize("name", EVERY)
@given(deep(), st.integers(0, 99), st.sampled_from(sorted(SCHEDULERS)))
@settings(max_examples=20)
def test_the_result_whoever_runs_first(name: str, problem: Problem, seed: int, kind: str):
    run(symbolic(name), problem, Shuffled(seed) if kind == "shuffled" else SCHEDULERS[kind]())


@pytest.mark.slow
@given(st.sampled_from(EVERY), deep())
@settings(max_examples=10)
def test_graphs_of_numbers(name: str, problem: Problem):
    run(numeric(name, problem), problem, Shuffled(0))


@quick_cases(2)
@pytest.mark.parametrize("tile", [(1, 4, 4), (3, 5, 2), (33, 2, 4), (70, 1, 4)])
@pytest.mark.parametrize("name", [ONE, SPLIT])
def test_tiles_of_any_height(name: str, tile: tuple[int, int, int]):
    """A tile's rows may be no multiple of its number of shares; the last share is then smaller."""
    graph = symbolic(name, "plain", tile)
    shares = graph.coordinates[SHARE].fixed_size
    assert shares == (tile[0] if tile[0] <= MOST_SHARES else -(-tile[0] // -(-tile[0] // 32)))
    run(graph, (2 * tile[0] - 1, 2 * tile[1], 9 * tile[2], 7), Shuffled(1))


def test_more_peers_than_shares():
    """If more workgroups compute a tile than it has shares (sets of rows), some store nothing.

    The workgroups that store nothing still wait for the partial sums of all other workgroups.
    """
    graph, problem = symbolic(ONE), in_tiles(1, 1, 16, 7)
    found = trace(graph, parameters(graph, problem))
    assert {e.workgroup for e in found.stores} == {0, 1, 2, 3}
    assert Counter(r.workgroup for r in found.receives) == dict.fromkeys(range(6), 6)
    assert Counter(r.workgroup for r in found.fix_ups) == dict.fromkeys(range(6), 5)
    run(graph, problem, Shuffled(0))


@pytest.mark.parametrize("name", [ONE, SPLIT])
@pytest.mark.parametrize("pieces", [2, 3, 5])
def test_sums_are_rounded_in_order(name: str, pieces: int):
    """The partial sums of a tile are added in the order of k.

    The operands are chosen so that each workgroup's partial sum is a known number.
    """
    numbers, a, b = one_number_a_piece(pieces)
    graph = symbolic(name)
    given = {"workgroups": pieces} if "workgroups" in graph.parameters else {}
    total = np.float32(0)
    for number in numbers:
        total = np.float32(total + number)
    assert interpret(graph, a, b, parameters=given).d[0, 0] == total


@pytest.mark.parametrize("beta", [0.0, -1.5])
def test_the_epilogue_covers_a_share(beta: float):
    """Alpha and C are applied exactly once to every element of D."""
    random = np.random.default_rng(0)
    a, b, c = (random.integers(-4, 5, s).astype("f4") for s in ((9, 40), (40, 7), (9, 7)))
    d = interpret(symbolic(ONE), a, b, c, alpha=2.0, beta=beta, parameters={"workgroups": 9}).d
    assert np.array_equal(d, 2 * (a @ b) + np.float32(beta) * c)


@pytest.mark.parametrize("kind", ["batch", "groups"])
def test_batches_and_groups(kind: str):
    """In batches and groups, a workgroup stores its share of a tile to D of the tile's product."""
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, (3, 9, 21) if kind == "batch" else (17, 21)).astype("f4")
    b = random.integers(-4, 5, (3, 21, 6)).astype("f4")
    gemm = Gemm("f32", batched=True) if kind == "batch" else Gemm("f32", grouped=True)
    graph = StreamK(reduction="scatter")(gemm.graph(TILE))
    if kind == "batch":
        d = interpret(graph, a, b, parameters={"workgroups": 7}).d
        assert np.array_equal(d, a @ b)
        return
    offsets = np.array([0, 5, 5, 17], np.int32)
    d = interpret(graph, a, b, parameters={"workgroups": 7}, tables={"offsets": offsets}).d
    wanted = [a[i:j] @ x for (i, j), x in zip(pairwise(offsets), b, strict=True)]
    assert np.array_equal(d, np.concatenate(wanted))


@pytest.mark.parametrize("name", [ONE, SPLIT])
def test_all_must_be_resident(name: str):
    graph, problem = symbolic(name), in_tiles(1, 1, 16, 5)
    with pytest.raises(Deadlock, match=r"only 1 are resident"):
        run(graph, problem, Shuffled(0), resident=1)


def test_text_and_json_bring_it_back():
    graph = symbolic(ONE)
    assert parse(graph.text()) == graph
    assert from_json(graph.json()) == graph


def changed(graph: KernelGraph, change: Rewrite) -> KernelGraph:
    with graph.edit("changed") as e:
        e.control = e.control.rewrite(change)
    return e.graph


def one_reader_less(op: Operation) -> Operation:
    return replace(op, readers=op.readers - 1) if isinstance(op, SendPartial) else op


def one_reader_more(op: Operation) -> Operation:
    return replace(op, readers=op.readers + 1) if isinstance(op, SendPartial) else op


def not_awaited(op: Operation) -> Operation | tuple[Operation, ...]:
    return () if isinstance(op, AwaitPartial) else op


def one_share_less(op: Operation) -> Operation:
    return replace(op, stop=op.stop - 1) if isinstance(op, For) and op.dim == SHARE else op


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (one_reader_less, "as its sender declared|wait"),
        (one_reader_more, "still set"),
        (not_awaited, "still set"),
        (one_share_less, "written never"),
    ],
)
def test_what_is_broken_is_noticed(change: Rewrite, told: str):
    graph, problem = changed(symbolic(ONE), change), in_tiles(1, 1, 16, 5)
    assert trace(graph, parameters(graph, problem)).problems()
    with pytest.raises((EvaluationError, Deadlock), match=told):
        run(graph, problem, Shuffled(0))
