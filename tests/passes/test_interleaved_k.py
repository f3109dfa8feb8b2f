"""`stream-k{k_order=interleaved}`: all workgroups are at nearly the same k at any time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import codegen
from coordgraph import Gemm, KernelGraph, LaunchError, PassError, parse
from coordgraph.control.operations import Locate
from coordgraph.coordinates.edges import Interleave
from coordgraph.interpreter import Trace, interpret, trace
from passes import StreamK
from passes.kit import OWNERS, REDUCTIONS, Owner, Reduction
from passes.lowering import LowerToHopper
from tests.support.sampling import cover, quick_cases

TILE = (8, 8, 8)
few = st.integers(1, 4)


def interleaved(reduction: Reduction = "peers", owner: Owner = "first", least: int = 1) -> StreamK:
    return StreamK(reduction=reduction, owner=owner, least=least, k_order="interleaved")


def traced(schedule: StreamK, tiles: tuple[int, int, int], workgroups: int) -> Trace:
    m, n, k = (extent * count for extent, count in zip(TILE, tiles, strict=True))
    graph = schedule(Gemm("f32").graph(TILE))
    return trace(graph, {"m": m, "n": n, "k": k, "workgroups": workgroups})


def walked(found: Trace, workgroup: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """(output tile, k tile) of each iteration of a workgroup, in the order of execution."""
    for segment in found.of(workgroup):
        for k in range(segment.k_first, segment.k_first + segment.k_count):
            yield segment.tile, k


def furthest(found: Trace, tiles: tuple[int, int, int]) -> float:
    """The largest distance, in k tiles, between any workgroup's k and the k of even progress.

    With even progress, a workgroup after a fraction f of its iterations is at k tile f·depth, where
    `depth` is the number of k tiles.
    """
    share, depth = max(found.iterations), tiles[2]
    return max(
        abs(k - depth * time / share)
        for workgroup in range(len(found.workgroups))
        for time, (_, k) in enumerate(walked(found, workgroup))
    )


@pytest.mark.slow
@given(few, few, st.integers(1, 60), st.integers(1, 24))
# One tile in many segments.
@example(1, 1, 60, 7)
# As many workgroups as tiles.
@example(2, 3, 5, 6)
# Two workgroups for each tile, then one workgroup less, and one more.
@example(2, 3, 20, 12)
@example(2, 3, 20, 11)
@example(2, 3, 20, 13)
# More workgroups than iterations.
@example(1, 2, 3, 11)
# More tiles than workgroups.
@example(4, 4, 7, 3)
@settings(max_examples=30)
def test_workgroups_are_at_the_same_k(rows: int, columns: int, depth: int, workgroups: int):
    tiles = rows, columns, depth
    found = traced(interleaved("scatter"), tiles, workgroups)
    assert found.problems() == ()
    share = max(found.iterations)
    if rows * columns > workgroups:
        return  # a workgroup computes several tiles, so workgroups are at different k

    # `share` is the number of iterations of a workgroup, and `depth` that of a tile. In every step
    # of the launch, `depth // share` workgroups compute a tile, and in the fraction f of the steps
    # one more. So the k that the tile has reached differs from the average by at most
    # f·(1 - f)·share k tiles. The workgroups of a tile are at consecutive k tiles.
    f = depth / share % 1
    assert furthest(found, tiles) <= f * (1 - f) * share + ceil(depth / share) + 1


def test_contiguous_pieces_are_at_different_k():
    tiles = 3, 3, 60
    assert furthest(traced(StreamK(), tiles, 13), tiles) > 50
    assert furthest(traced(interleaved(), tiles, 13), tiles) < 15


@given(few, few, st.integers(1, 30), st.integers(1, 24), st.integers(1, 9))
@settings(max_examples=20)
def test_shares_and_partial_sums_are_those_of_contiguous_pieces(
    rows: int, columns: int, depth: int, workgroups: int, least: int
):
    tiles = rows, columns, depth
    found = traced(interleaved("peers", least=least), tiles, workgroups)
    plain = traced(StreamK(least=least), tiles, workgroups)
    assert found.problems() == ()
    assert found.iterations == plain.iterations
    assert found.wait_edges() == plain.wait_edges()
    assert [send.tile for send in found.sends] == [send.tile for send in plain.sends]


@quick_cases(2)
@pytest.mark.parametrize(
    ("reduction", "owner"), cover(0, [(r, o) for r in REDUCTIONS for o in OWNERS])
)
def test_products_are_right_on_the_cpu(reduction: Reduction, owner: Owner):
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, (20, 83)).astype(np.float32)
    b = random.integers(-4, 5, (83, 30)).astype(np.float32)
    graph = interleaved(reduction, owner)(Gemm("f32").graph(TILE))
    kernel = codegen.compile(graph, "cpu")
    for workgroups in (1, 5, 12, 13, 24, 31):
        assert np.array_equal(kernel(a, b, workgroups=workgroups), a @ b)
    assert np.array_equal(interpret(graph, a, b, parameters={"workgroups": 13}).d, a @ b)


def test_tiles_of_several_products_are_interleaved():
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, (3, 20, 83)).astype(np.float32)
    b = random.integers(-4, 5, (3, 83, 30)).astype(np.float32)
    graph = interleaved("scatter")(Gemm("f32", batched=True).graph(TILE))
    assert np.array_equal(codegen.compile(graph, "cpu")(a, b, workgroups=41), a @ b)


def with_a_longer_share(graph: KernelGraph) -> KernelGraph:
    with graph.edit("break") as e:
        (edge,) = (edge for edge in graph.coordinates.edges if isinstance(edge, Interleave))
        e.coordinates.disconnect(edge)
        e.coordinates.connect(replace(edge, share=edge.share + 1))
    return e.graph


def test_another_length_of_shares_changes_which_k_but_no_result():
    """A wrong number of iterations per workgroup in an `Interleave` edge only costs L2 reuse.

    The edge is a bijection for any number, so every iteration is still computed once.
    """
    graph = with_a_longer_share(interleaved()(Gemm("f32").graph(TILE)))
    found = trace(graph, {"m": 24, "n": 24, "k": 480, "workgroups": 13})
    assert found.problems() == ()
    assert furthest(found, (3, 3, 60)) > 30


@pytest.mark.parametrize(
    "schedule",
    [
        StreamK(k_order="interleaved", shares="balanced"),
        StreamK(k_order="interleaved", least_segment=2),
    ],
    ids=["balanced", "least_segment"],
)
def test_shares_of_different_lengths_are_refused(schedule: StreamK):
    with pytest.raises(PassError, match="k_order=interleaved needs shares of equal length"):
        schedule(Gemm("f32").graph(TILE))


def test_groups_with_their_own_k_are_refused():
    with pytest.raises(PassError, match="equally many k tiles"):
        interleaved()(Gemm("f32", grouped=True, group_axis="k").graph(TILE))


def test_a_problem_of_more_than_32_bits_is_refused():
    graph = interleaved()(Gemm("f32").graph(TILE))
    with pytest.raises(LaunchError):
        trace(graph, {"m": 8 << 12, "n": 8 << 12, "k": 8 << 8, "workgroups": 132})


def test_its_text_is_parsed():
    graph = interleaved("scatter")(Gemm("f32").graph(TILE))
    assert parse(graph.text()) == graph
    assert "edge Interleave tile, k_tile -> sk.tile, sk.k" in graph.text()


@quick_cases(1)
@pytest.mark.parametrize("schedule", [StreamK(), interleaved()], ids=str)
def test_the_producer_computes_an_interleaved_k_once_for_all_boxes(schedule: StreamK):
    graph = schedule(Gemm("bf16").graph((128, 128, 64)))
    lowered = LowerToHopper()(graph)
    located = [op.dims for op in lowered.control.of_kind(Locate) if "k_tile" in op.dims]
    assert located == ([("k_tile",)] if schedule.k_order == "interleaved" else [])
