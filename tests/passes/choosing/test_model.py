"""The model counts what graphs and lowerings count."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import Gemm
from passes.choosing import Plan, constants_of
from passes.choosing.candidates import candidates, slow, sums, tilings
from passes.choosing.model import Shape, _shares, cost
from passes.choosing.table import SCHEDULES, Table
from passes.lowering import CONSUMERS, LowerToHopper
from passes.lowering.hopper.division import Division

H200 = constants_of()
LAYOUTS = [(a, b) for a in (False, True) for b in (False, True)]
extents = st.one_of(st.integers(1, 300), st.integers(300, 9000))


def row(problem: Gemm, plan: Plan) -> Table:
    return Table.of([(problem, plan)])


@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("reads_c", [False, True])
def test_every_tiling_can_be_lowered(out: str, reads_c: bool):
    known = tilings((4 if out == "f32" else 2) if reads_c else 0)
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


@pytest.mark.parametrize("out", ["bf16", "f32"])
def test_parts_of_tiles_are_counted_as_the_lowering_divides_them(out: str):
    known = tilings()
    problem, graphs = Gemm("bf16", out, 1000, 1000, 1000, transpose_b=True), {}
    for *tile, m, n, k, turns in known:
        size, cluster = (tile[0], tile[1], tile[2]), (m, n, k)
        (consumers,) = (name for name, count in CONSUMERS.items() if count == turns)
        if size not in graphs:
            graphs[size] = problem.graph(size)
        plan = Plan(size, cluster, consumers=consumers)
        division: Division = plan.lowering._divisions(graphs[size])[0]
        shape = Shape(row(problem, plan))
        rows, columns = size[0] // m, size[1] // n
        assert shape.consumers[0] == division.team
        assert shape.mma_columns[0] == division.columns
        assert shape.pieces[0] == division.pieces
        assert shape.blocks[0] == division.blocks * division.team
        assert turns > 1 or sums(rows, columns) == division.accumulators
        assert shape.workgroups[0] == prod(cluster)


@pytest.mark.parametrize(("turned_a", "turned_b"), LAYOUTS)
def test_candidates_can_be_lowered_in_every_layout(turned_a: bool, turned_b: bool):
    problem = Gemm("bf16", None, 3000, 5000, 2000, turned_a, turned_b)
    table, graphs = candidates(problem, H200), {}
    for plan in {replace(table.plan(i), pipeline="", workgroups=None) for i in range(len(table))}:
        if plan.tile not in graphs:
            graphs[plan.tile] = problem.graph(plan.tile)
        assert plan.lowering.why_not(graphs[plan.tile]) is None, plan


@given(m=extents, n=extents, k=extents, grid=st.integers(1, 140), schedule=st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_shares_are_those_of_the_graph(m: int, n: int, k: int, grid: int, schedule: int):
    plan = Plan((128, 128, 64), pipeline=SCHEDULES[schedule], workgroups=grid)
    problem = Gemm("bf16", m=m, n=n, k=k)
    graph = plan.graph(replace(problem, m=None, n=None, k=None))
    given_ = {"m": m, "n": n, "k": k, "read_c": 0, "workgroups": grid}
    known = [p.name for p in graph.parameters.given]
    values = graph.parameters.evaluate({name: given_[name] for name in known})
    table = row(problem, plan)
    tiles = values["tiles_m"] * values["tiles_n"]
    waves, share, streamed = _shares(table, Shape(table), np.array([float(grid)]))
    if schedule == 0:
        assert waves[0] == -(-tiles // grid)
    else:
        assert waves[0] == values.get("waves", values.get("dp_waves", 0))
        if streamed[0]:
            assert share[0] == values["share"]
        assert bool(streamed[0]) == bool(values.get("sk_tiles", schedule in (2, 4)))


@given(m=extents, n=extents, k=extents, layout=st.sampled_from(LAYOUTS))
@settings(max_examples=40, deadline=None)
def test_candidates_make_sense(m: int, n: int, k: int, layout: tuple[bool, bool]):
    problem = Gemm("bf16", None, m, n, k, *layout)
    table = candidates(problem, H200)
    found = cost(table, H200)
    assert len(table) > 0
    for name in ("loop", "tiles", "fixup", "cluster", "dram", "l2", "power"):
        term = getattr(found, name)
        assert np.isfinite(term).all()
        assert (found.total >= term).all()
    shape = Shape(table)
    assert (table.workgroups <= H200.slots(shape.workgroups)).all()
    plain = table.schedule == 0
    assert (shape.tiles[plain] <= table.workgroups[plain]).all()
    assert not slow(table).any()
    plans = [str(table.plan(i)) for i in range(len(table))]
    assert len(set(plans)) == len(plans)


def price(plan: str, m: int, n: int, k: int, **problem: bool) -> dict[str, float]:
    return cost(row(Gemm("bf16", m=m, n=n, k=k, **problem), Plan.parse(plan)), H200).row(0)


def test_more_work_takes_longer():
    small = price("128x256x64 data-parallel{persistent=true} on 132", 4096, 4096, 4096)
    large = price("128x256x64 data-parallel{persistent=true} on 132", 4096, 4096, 8192)
    assert large["total"] > 1.5 * small["total"]
    assert large["tiles"] == small["tiles"]


def test_a_wave_that_is_not_full_costs_a_whole_one():
    full = price("128x256x64 data-parallel{persistent=true} on 132", 128 * 132, 256, 4096)
    over = price("128x256x64 data-parallel{persistent=true} on 132", 128 * 133, 256, 4096)
    assert over["loop"] == pytest.approx(2 * full["loop"])


def test_only_shared_tiles_need_fixing_up():
    even = price("128x128x64 stream-k{owner=last} on 66", 128 * 66, 128, 4096)
    uneven = price("128x128x64 stream-k{owner=last} on 64", 128 * 66, 128, 4096)
    assert even["fixup"] == 0
    assert uneven["fixup"] > 0


def test_a_cluster_asks_the_cache_for_less():
    alone = price("128x256x64 data-parallel", 4096, 4096, 4096)
    pair = price("256x256x64@c2x1 data-parallel", 4096, 4096, 4096)
    assert pair["l2"] < alone["l2"]


def test_bands_bring_less_from_memory():
    rows = price("128x256x64 data-parallel{persistent=true} on 132", 16384, 65536, 8192)
    bands = price(
        "128x256x64 rasterize{width=8},data-parallel{persistent=true} on 132", 16384, 65536, 8192
    )
    assert bands["dram"] < rows["dram"]


def test_every_byte_is_read_and_written_once_at_least():
    m, n, k = 2048, 2048, 512
    found = price("128x256x64 data-parallel", m, n, k)
    assert found["dram"] >= 2 * (m * k + n * k + m * n) / H200.dram_rate
