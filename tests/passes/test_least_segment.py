"""The option `least_segment` is the least number of k tiles in a segment of a tile.

A segment has fewer only if its whole tile has fewer.
Fix-ups find all workgroups that compute a tile.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import Gemm, from_json, parse
from coordgraph.coordinates.edges import Share, Tile
from coordgraph.integers import evaluate, to_text
from coordgraph.interpreter import SCHEDULERS, Trace, interpret, trace
from passes import HybridStreamK, Pass, StreamK, TwoTileStreamK
from passes.kit import Owner, Reduction
from tests.passes.schedules import TILE, in_tiles, parameters, problems, symbolic
from tests.passes.test_results import left_over, matrices
from tests.support.sampling import cover, quick_cases

KINDS = (StreamK, TwoTileStreamK, HybridStreamK)
every_kind = pytest.mark.parametrize("kind", KINDS)
leasts = st.sampled_from([2, 5])


def traced(step: Pass, problem: tuple[int, int, int, int]) -> Trace:
    graph = symbolic(str(step))
    found = trace(graph, parameters(graph, problem))
    assert found.problems() == ()
    return found


@quick_cases(1)
@pytest.mark.parametrize(("kind", "owner"), cover(0, product(KINDS, ["first", "last"])))
def test_no_segment_is_shorter_unless_the_tile_is(kind: type[StreamK], owner: Owner):
    @given(problems(most=40), leasts)
    @settings(max_examples=40)
    def on(problem: tuple[int, int, int, int], least: int):
        found = traced(kind(owner=owner, least_segment=least), problem)
        depth = found.tiles[2]
        real = [s for s in found.segments if not s.padding and s.k_count]
        assert all(s.k_count >= min(least, depth) for s in real)
        if depth < 2 * least:
            assert not found.sends
        assert sum(s.k_count for s in real) == found.tiles[0] * found.tiles[1] * depth

    on()


@given(problems(most=40), leasts)
@settings(max_examples=60)
def test_a_tile_is_cut_no_more_often_than_without(problem: tuple[int, int, int, int], least: int):
    def cuts(step: StreamK) -> int:
        return len(traced(step, problem).sends)

    assert cuts(StreamK(least_segment=least)) <= cuts(StreamK())


@given(problems(most=40), leasts)
@settings(max_examples=40)
def test_forward_finds_who_has_an_iteration(problem: tuple[int, int, int, int], least: int):
    """`forward` maps every iteration to the workgroup that executes it and to its index there.

    The workgroup and the index agree with the trace. A fix-up uses `forward` to find the workgroups
    that share a tile.
    """
    graph = symbolic(str(StreamK(least_segment=least)))
    given_ = parameters(graph, problem)
    found = trace(graph, given_)
    names = ["A.tile.0", "B.tile.1", "k_tile"]
    holder, local = graph.coordinates.forward(names, ["sk.workgroup", "sk.local"])
    values = graph.parameters.evaluate({**given_, "read_c": 0})
    seen = Counter[int]()
    for segment in found.segments:
        if segment.padding:
            continue
        for k in range(segment.k_first, segment.k_first + segment.k_count):
            at = {**values, **dict(zip(names, (*segment.tile, k), strict=True))}
            assert evaluate(holder, at) == segment.workgroup
            # An iteration's index in its workgroup is less than the workgroup's number of
            # iterations.
            seen[segment.workgroup] += 1
            assert 0 <= evaluate(local, at) < found.iterations[segment.workgroup]
    assert tuple(seen[w] for w in range(len(found.iterations))) == found.iterations


@quick_cases(1)
@pytest.mark.parametrize(
    ("kind", "reduction"), cover(0, product(KINDS, ["peers", "tree", "turnstile", "atomic"]))
)
@given(problems(most=12), leasts, st.sampled_from(["first", "last"]))
@settings(max_examples=4)
def test_results_under_all_schedulers(
    kind: type[StreamK],
    reduction: Reduction,
    problem: tuple[int, int, int, int],
    least: int,
    owner: Owner,
):
    graph = symbolic(str(kind(owner=owner, least_segment=least, reduction=reduction)))
    a, b = matrices(problem)
    for scheduler in SCHEDULERS.values():
        result = interpret(graph, a, b, parameters=left_over(graph, problem), schedule=scheduler())
        assert (result.d == a @ b).all()


def test_borders_move_to_the_nearer_end():
    """If a workgroup's range of iterations would end near a tile's end, it ends at the tile's end.

    Four tiles of 16 iterations on 3 workgroups: ranges of 22 iterations would end at iteration 6 of
    the second tile and at iteration 12 of the third.
    """
    problem = in_tiles(2, 2, 16, 3)

    def shares(least: int) -> tuple[int, ...]:
        return traced(StreamK(least_segment=least), problem).iterations

    assert shares(1) == (22, 22, 20)
    assert shares(4) == (22, 22, 20)
    # The last workgroup's 4 iterations of the third tile move to the second workgroup.
    assert shares(5) == (22, 26, 16)
    # The first workgroup's 6 iterations of the second tile also move to the second workgroup.
    assert shares(7) == (16, 32, 16)


def test_a_workgroup_whose_borders_meet_is_idle_and_never_waited_for():
    found = traced(StreamK(least_segment=8), in_tiles(1, 2, 16, 4))
    assert found.iterations == (8, 8, 8, 8)
    found = traced(StreamK(least_segment=8), in_tiles(1, 3, 15, 5))
    assert found.iterations == (15, 0, 15, 0, 15)
    assert not found.receives


def test_the_edge_is_written_and_drawn():
    graph = StreamK(least_segment=4)(Gemm("f32").graph(TILE))
    (line,) = (line for line in graph.text().splitlines() if "edge Share" in line)
    assert line == (
        "edge Share global -> sk.workgroup, sk.begin, sk.local share=share tile=tiles_k "
        "before=before behind=behind"
    )
    assert parse(graph.text()) == graph
    assert from_json(graph.json()) == graph
    assert "Share_global --" in graph.coordinates.mermaid()


def test_the_walk_is_counted_from_where_the_share_begins():
    """The index of a workgroup's first iteration is computed once; later indices add the loop
    indices.
    """
    graph = StreamK(least_segment=4)(Gemm("f32").graph(TILE))
    at = ["sk.begin", "for_tile", "for_k"]
    (index,) = graph.coordinates.reverse(at, ["global"])
    assert to_text(index) == "for_k + for_tile + sk.begin"
    (alone,) = graph.coordinates.reverse({"workgroup": None, "sk.local": 0}, ["global"])
    assert to_text(alone) == (
        "select(share*workgroup <= tiles_k*((share*workgroup + before) // tiles_k) + behind, "
        "tiles_k*((share*workgroup + before) // tiles_k), share*workgroup)"
    )
    for owner in ("first", "last"):
        program = StreamK(owner=owner, least_segment=4)(Gemm("f32").graph(TILE)).pseudocode()
        assert program.count("share*workgroup + before)") == 2
        assert "padding" not in program


def test_without_it_shares_are_tiles():
    edges = StreamK(least_segment=1)(Gemm("f32").graph(TILE)).coordinates.edges
    assert not any(isinstance(edge, Share) for edge in edges)
    assert any(isinstance(edge, Tile) and edge.upstream == ("global",) for edge in edges)
