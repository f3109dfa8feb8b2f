"""Candidate plans: which plans the cost model ranks, and that each of them can be lowered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import Gemm, KernelGraph
from passes import DataParallel, HeterogeneousTiles, SplitK, StreamK
from passes.choosing import Plan, constants_of
from passes.choosing.candidates import candidates
from passes.choosing.counting import FIXUPS
from passes.choosing.exclusions import chooseable, crowded, slow
from passes.choosing.kernel_shape import Shape
from passes.choosing.model import Counts, cost
from passes.choosing.plan import NO_CLUSTER
from passes.choosing.plan_table import Table
from passes.choosing.tile_candidates import small_tiles, sums, tilings
from passes.lowering import CONSUMERS, LowerToHopper
from tests.support.gated import swiglu
from tests.support.sampling import cover, quick_cases

H200 = constants_of()
LAYOUTS = [(a, b) for a in (False, True) for b in (False, True)]
extents = st.one_of(st.integers(1, 300), st.integers(300, 9000))


def plans_of(table: Table) -> list[Plan]:
    return [table.plan(i) for i in range(len(table))]


@quick_cases(1)
@pytest.mark.parametrize(("out", "reads_c"), cover(0, product(["bf16", "f32"], [False, True])))
def test_every_tiling_can_be_lowered(out: str, reads_c: bool):
    c_bytes = (4 if out == "f32" else 2) if reads_c else 0
    usual = tilings(c_bytes)
    more = tilings(c_bytes, more=frozenset({"large clusters", "slim", "tuned"}))
    assert more[: len(usual)] == usual
    known = (*usual, *more[len(usual) :: 3])
    assert len(known) > 50
    problem, graphs = Gemm("bf16", out, 1000, 1000, 1000, transpose_b=True), {}
    for *tile, m, n, k, turns in known:
        size = tile[0], tile[1], tile[2]
        if size not in graphs:
            graphs[size] = problem.graph(size)
        (consumers,) = (name for name, count in CONSUMERS.items() if count == turns)
        lowering = LowerToHopper(
            cluster_m=m, cluster_n=n, cluster_k=k, reads_c=reads_c, consumers=consumers
        )
        assert lowering.why_not(graphs[size]) is None, (tile, m, n, k)
        division = lowering._divisions(graphs[size])[0]
        held = sums(size[0] // m, size[1] // n, c_bytes=c_bytes)
        assert turns > 1 or held == division.accumulators, (tile, m, n, k)
        table = Table.of([(problem, Plan(size, (m, n, k), consumers=consumers))])
        shape = Shape(replace(table, c_bytes=np.full(1, float(c_bytes))))
        assert shape.consumers[0] == division.team, (tile, m, n, k)


def test_candidates_for_two_sums_can_be_lowered():
    """Tiles of both sums of a gated product have rows that fill wgmma's left operand."""
    problem = Gemm("bf16", transpose_b=True, epilogue=swiglu, m=3000, n=5000, k=2000)
    plans = {replace(p, pipeline="", workgroups=None) for p in plans_of(candidates(problem, H200))}
    graphs: dict[tuple[int, int, int], KernelGraph] = {}
    for plan in sorted(plans, key=str)[::5]:
        graph = graphs.setdefault(plan.tile, problem.graph(plan.tile))
        assert plan.lowering.why_not(graph) is None, plan


@pytest.mark.slow
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("turned_a", "turned_b"), LAYOUTS)
def test_candidates_can_be_lowered_in_every_layout(turned_a: bool, turned_b: bool, every: int):
    problem = Gemm("bf16", None, 3000, 5000, 2000, turned_a, turned_b)
    graphs: dict[tuple[int, int, int], KernelGraph] = {}
    table = candidates(problem, H200, all_kinds=True)
    plans = {replace(plan, pipeline="", workgroups=None) for plan in plans_of(table)}
    for plan in sorted(plans, key=str)[::every]:
        if plan.tile not in graphs:
            graphs[plan.tile] = problem.graph(plan.tile)
        assert plan.lowering.why_not(graphs[plan.tile]) is None, plan


LARGE = {(2, 2, 1), (2, 4, 1), (4, 2, 1), (1, 4, 1), (4, 1, 1), (1, 8, 1), (8, 1, 1)}


@quick_cases(2)
@pytest.mark.parametrize(
    ("size", "candidate"),
    [
        ((736, 672, 24896), True),
        ((48, 672, 640), True),
        ((424, 328, 55736), True),
        # m is too small for large clusters
        ((40, 672, 24896), False),
        # k is too small for large clusters
        ((736, 672, 632), False),
        # there are too many tiles for large clusters
        ((8192, 8192, 8192), False),
    ],
)
def test_large_clusters_are_candidates_where_they_were_measured(
    size: tuple[int, int, int], candidate: bool
):
    problem = Gemm("bf16", None, *size, transpose_b=True)
    usual, more = (candidates(problem, H200, large_clusters=large) for large in (False, True))
    assert LARGE & {plan.cluster for plan in plans_of(more)} == LARGE
    assert bool(LARGE & {plan.cluster for plan in plans_of(usual)}) == candidate
    for table in (usual, more):
        large = table.cluster_m * table.cluster_n > 2
        slots = H200.slots(table.cluster_m * table.cluster_n)
        tiles = np.ceil(table.m / table.tile_m) * np.ceil(table.n / table.tile_n)
        chosen = chooseable(table, H200)
        assert not chosen[large & (tiles > slots)].any()
        assert chosen[large].any() == candidate
        assert chosen[~large].any()
        # A plan with more than two CTAs per cluster launches no more clusters than the device can
        # run at the same time.
        assert (table.workgroups[large] <= slots[large]).all()


@pytest.mark.parametrize(("m", "n"), [(288, 4840), (960, 1500), (1632, 500)])
def test_clusters_along_n_compute_one_column_of_tiles_after_the_other(m: int, n: int):
    """The L2 cache can then merge their requests for B; clusters along m keep row-major order.

    A band has 16 rows of tiles. These problems have 3, 10 and 17 rows of the tiles that the test
    looks at.
    """
    table = candidates(Gemm("bf16", None, m, n, 5824, transpose_b=True), H200)
    whole = table.of_schedule([schedule == DataParallel() for schedule in table.schedules])
    whole &= Shape(table).tiles <= H200.slots(table.cluster_m * table.cluster_n)
    along_n = whole & (table.tile_m == 96) & (table.tile_n == 256) & (table.cluster_n == 2)
    along_n &= table.cluster_m == 1
    along_m = whole & (table.cluster_m > 1) & (table.cluster_n == 1)
    assert set(table.width[along_n]) == {16}
    assert set(table.width[along_m]) == {1}


def test_only_tuning_tries_wide_tiles_in_large_clusters():
    problem = Gemm("bf16", None, 1920, 2560, 3376, transpose_b=True)
    for tuning in (False, True):
        table = candidates(problem, H200, tuning=tuning)
        found = (table.tile_m == 128 * table.cluster_m) & (table.tile_n == 320 * table.cluster_n)
        found &= table.cluster_m * table.cluster_n > 2
        assert found.any() == tuning


@pytest.mark.parametrize(("m", "rows"), [(1, 8), (8, 8), (9, 16)])
def test_tiles_of_eight_rows_serve_up_to_eight_rows(m: int, rows: int):
    table = candidates(Gemm("bf16", None, m, 6144, 4096, transpose_b=True), H200)
    assert table.tile_m.min() == rows


@pytest.mark.parametrize("k", [64 * 508, 64 * 510])
def test_grids_that_divide_all_tiles_equally_are_for_split_k(k: int):
    """15 clusters of 512 x 112 tiles compute 3 tiles: each tile is divided among 5 clusters."""
    table = candidates(Gemm("bf16", None, 488, 328, k, transpose_b=True), H200)
    split = SplitK(splits=None, reduction="peers")
    tile = (table.tile_m == 512) & (table.tile_n == 112) & (table.cluster_m == 8)
    tile &= table.workgroups == 15
    assert (table.of_schedule([schedule == split for schedule in table.schedules]) & tile).any()


def test_only_ctas_without_clusters_have_adjacent_tiles():
    """Multicast requests are not merged, so the order of launch is changed for single CTAs only."""
    table = candidates(Gemm("bf16", None, 600, 328, 42640, transpose_b=True), H200)
    alone = table.cluster_m * table.cluster_n * table.cluster_k == 1
    scatter = table.fixup == FIXUPS.index("scatter")
    assert (table.adjacent == (alone & scatter)).all()
    assert table.adjacent.any()


@pytest.mark.parametrize("m", [16, 64, 80, 200])
def test_groups_along_k_have_candidates_for_every_m(m: int):
    problem = Gemm("bf16", None, m, 512, 65536, transpose_a=True, grouped=True, group_axis="k")
    table = candidates(problem, H200, batches=8)
    assert {(plan.tile[0], plan.tile[1]) for plan in plans_of(table)} >= {(128, 64), (128, 128)}


def test_large_clusters_are_no_candidates_for_batches_and_groups():
    single = Gemm("bf16", None, 736, 672, 24896, transpose_b=True)
    assert LARGE & {plan.cluster for plan in plans_of(candidates(single, H200))}
    batch = candidates(replace(single, batched=True), H200, batches=2)
    grouped = candidates(replace(single, grouped=True), H200, batches=2)
    for table in (batch, grouped):
        assert not LARGE & {plan.cluster for plan in plans_of(table)}


def test_clusters_that_are_resident():
    counts = (1, 2, 4, 8)
    assert H200.slots(np.array(counts, float)).tolist() == [132, 66, 30, 15]


@pytest.mark.slow
@pytest.mark.parametrize("every", [13, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("turned_a", "turned_b"), LAYOUTS)
def test_small_tiles_can_be_lowered_in_every_layout(turned_a: bool, turned_b: bool, every: int):
    """`heterogeneous-tiles` with every candidate small tile can be lowered in every layout.

    In the slow run each layout tests a third of the tilings, so that every tiling is tested in some
    layout.
    """
    k_major = not turned_a, turned_b
    known = [
        (tiling, small)
        for tiling in tilings(k_major=k_major)
        for small in small_tiles(tiling, k_major=k_major)
    ]
    assert len(known) > 200
    problem = Gemm("bf16", transpose_a=turned_a, transpose_b=turned_b)
    first = LAYOUTS.index((turned_a, turned_b)) % 3
    for tiling, (m, n) in known[first::every]:
        (consumers,) = (name for name, count in CONSUMERS.items() if count == tiling[6])
        schedule = HeterogeneousTiles(small_m=m, small_n=n)
        plan = Plan(tiling[:3], tiling[3:6], str(schedule), None, consumers)
        graph = schedule.apply(problem.graph(plan.tile))
        assert plan.lowering.why_not(graph) is None, plan


@cache
def streamed(tile: tuple[int, int, int], reduction: Any) -> KernelGraph:
    """A graph that represents all schedules of the Stream-K family with a tile and a reduction.

    Whether a schedule of the family can be lowered depends only on the tile and the reduction.
    """
    return StreamK(reduction=reduction).apply(Gemm("bf16", transpose_b=True).graph(tile))


@pytest.mark.slow
@pytest.mark.parametrize("every", [11, pytest.param(3, marks=pytest.mark.slow)])
def test_streamed_candidates_can_be_lowered(every: int):
    """Candidates of the Stream-K family can be lowered; a sample of them is tested.

    Whether a plan can be lowered does not depend on its grid, bands of tiles or full waves.
    """
    problem = Gemm("bf16", m=3000, n=5000, k=2000, transpose_b=True)
    table = candidates(problem, H200, all_kinds=True)
    found = {replace(p, workgroups=None) for p in plans_of(table.where(table.streams))}
    asked = {
        (p.tile, p.cluster, p.consumers, "scatter" if "scatter" in p.pipeline else "peers"): p
        for p in found
    }
    assert len(asked) > 100
    for (tile, _, _, reduction), plan in sorted(asked.items())[::every]:
        assert plan.lowering.why_not(streamed(tile, reduction)) is None, plan


def families(plans: Iterable[Plan]) -> set[str]:
    return {plan.family for plan in plans}


def test_every_family_is_there():
    problem = Gemm("bf16", m=2048, n=2304, k=8192, transpose_b=True)
    usual = {"data-parallel", "stream-k", "two-tile-stream-k", "hybrid-stream-k"}
    usual |= {"heterogeneous-tiles"}
    assert families(plans_of(candidates(problem, H200))) >= usual
    streamed = ("stream-k", "two-tile-stream-k", "hybrid-stream-k")
    others = {f"{name} {how}" for name in streamed for how in ("scatter", "without slivers")}
    others |= {f"hybrid-stream-k {how}" for how in ("tree", "turnstile")}
    others |= {"stream-k interleaved", "stream-k scatter interleaved"}
    every = candidates(problem, H200, all_kinds=True)
    assert families(plans_of(every)) == usual | others
    few = candidates(replace(problem, m=256), H200, all_kinds=True)
    assert families(plans_of(few)) >= {"stream-k tree", "stream-k turnstile"}


def test_nothing_that_has_other_bits_in_every_run_is_a_candidate():
    for m, all_kinds in product((256, 2048), (False, True)):
        problem = Gemm("bf16", m=m, n=2304, k=8192)
        table = candidates(problem, H200, all_kinds=all_kinds)
        assert not any(
            schedule.options.get("reduction") == "atomic" for schedule in table.schedules
        )


def test_reductions_are_tried_where_they_differ():
    """Tree and turnstile are candidates only if at least three workgroups compute a tile.

    With two workgroups, every reduction adds one partial sum to the other.
    """
    table = candidates(Gemm("bf16", m=2048, n=2304, k=8192), H200, all_kinds=True)
    tree, turnstile = (table.fixup == FIXUPS.index(kind) for kind in ("tree", "turnstile"))
    counts = Counts(table, H200).work.counts
    assert tree.any()
    assert turnstile.any()
    assert (counts.receives[tree] >= 2).all()
    assert (counts.chain[turnstile] >= 2).all()


@quick_cases(1)
@pytest.mark.parametrize("all_kinds", [False, True])
@given(m=extents, n=extents, k=extents, layout=st.sampled_from(LAYOUTS))
@settings(max_examples=20, deadline=None)
def test_candidates_make_sense(m: int, n: int, k: int, layout: tuple[bool, bool], all_kinds: bool):
    problem = Gemm("bf16", None, m, n, k, *layout)
    table = candidates(problem, H200, all_kinds=all_kinds)
    found = cost(table, H200)
    assert len(table) > 0
    for name in ("loop", "tiles", "fixup", "cluster", "dram", "l2", "power"):
        term = getattr(found, name)
        assert np.isfinite(term).all()
        assert (term >= 0).all()
        assert (found.total - found.correction >= term * (1 - 1e-12)).all()
    shape, work = Shape(table), Counts(table, H200).work
    assert (table.workgroups <= H200.slots(shape.workgroups)).all()
    assert not crowded(table, H200).any()
    assert not slow(table).any()
    # A plan has macro tiles that are divided (`rest`) if and only if it has small tiles (`small`).
    assert ((work.rest > 0) == (work.small > 0)).all()
    assert (work.rest[table.divided] > 0).all()
    assert (work.utilisation(table, shape.tiles) <= 1 + 1e-12).all()
    plans = [str(plan) for plan in plans_of(table)]
    assert len(set(plans)) == len(plans)


def test_c_leaves_no_room_for_tiles_of_two_shapes():
    problem = Gemm("bf16", m=2048, n=2304, k=8192, transpose_b=True)
    assert candidates(problem, H200).divided.any()
    assert not candidates(problem, H200, reads_c=True).divided.any()


def test_what_has_no_registers_beside_c_is_refused():
    """Tiles whose kernels have no registers left to read C are refused.

    ptxas spilled registers for 160 x 128 tiles with C in f32, and for 144 x 256 tiles, for which B
    is wgmma's left operand, so that C is read one element at a time.
    """
    kept: list[tuple[tuple[int, int, int], str]] = []
    for tile in ((160, 128, 64), (144, 256, 64), (256, 160, 64)):
        for out in ("bf16", "f32"):
            graph = Gemm("bf16", out).graph(tile)
            assert LowerToHopper(reads_c=False).why_not(graph) is None
            if LowerToHopper(reads_c=True).why_not(graph) is None:
                kept.append((tile, out))
    assert kept == [((160, 128, 64), "bf16"), ((256, 160, 64), "bf16")]


def test_bands_where_there_is_something_to_share():
    """In a launch of one wave, bands of tiles are candidates without clusters, or along n.

    Without clusters, bands make neighbouring workgroups request the same operand tiles at the same
    time. Clusters along m keep row-major order, which makes them request the same tiles of A.
    """
    one = candidates(Gemm("bf16", m=1024, n=1024, k=4096, transpose_b=True), H200)
    shape = Shape(one)
    single = shape.tiles <= H200.slots(shape.workgroups)
    in_bands = one.width > 1
    assert (in_bands & single & (shape.workgroups == 1)).any()
    assert not (in_bands & single & (one.cluster_m > 1)).any()
    many = candidates(Gemm("bf16", m=8192, n=8192, k=4096, transpose_b=True), H200)
    assert ((many.width > 1) & (Shape(many).workgroups > 1)).any()


def test_plans_without_clusters_stay_among_them():
    table = candidates(Gemm("bf16", m=300, n=400, k=500), H200)
    assert any(plan.cluster == NO_CLUSTER for plan in plans_of(table))


def test_k_is_interleaved_only_if_the_cache_does_not_hold_a_and_b():
    few, deep = (
        candidates(Gemm("bf16", m=1152, n=432, k=k, transpose_b=True), H200) for k in (15000, 61312)
    )
    assert not few.interleaved.any()
    assert deep.interleaved.any()
    assert chooseable(deep, H200)[deep.interleaved].all()
    every = candidates(Gemm("bf16", m=1152, n=432, k=15000, transpose_b=True), H200, tuning=True)
    assert every.interleaved.any()
    assert not chooseable(every, H200)[every.interleaved].any()


def test_k_is_not_interleaved_if_each_tile_has_its_own_rows_of_a():
    """Interleaved k is tried only if the operands that several tiles share exceed the L2 cache.

    Tiles as wide as n share only B, which fits the cache; each row of A is read by one tile.
    """
    found = candidates(Gemm("bf16", m=2000, n=152, k=26888, transpose_b=True), H200)
    assert found.interleaved.any()
    assert (found.tile_n[found.interleaved] < 152).all()


def test_odd_multiples_of_8_columns_are_candidates_only_where_they_were_measured_to_pay():
    def odd(problem: Gemm, batches: int = 1) -> bool:
        plans = plans_of(candidates(problem, H200, batches=batches))
        return any(plan.tile[1] // plan.cluster[1] % 16 for plan in plans)

    narrow = Gemm("bf16", None, 1000, 1000, 512, transpose_b=True)
    assert odd(narrow)
    assert not odd(replace(narrow, transpose_b=False))
    assert not odd(replace(narrow, grouped=True), batches=4)


@pytest.mark.parametrize(("m", "least"), [(64, 64), (96, 48), (128, 48)])
def test_from_65_rows_on_tiles_may_have_fewer_rows_than_m(m: int, least: int):
    table = candidates(Gemm("bf16", None, m, 176, 432), H200)
    assert table.tile_m.min() == least
