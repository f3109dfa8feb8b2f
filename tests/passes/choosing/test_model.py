"""The cost model's counts of work agree with graphs and with lowered graphs."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from coordgraph import Gemm
from passes import HeterogeneousTiles
from passes.choosing import Plan, constants_of
from passes.choosing.kernel_shape import Shape
from passes.choosing.model import Counts, cost
from passes.choosing.plan_table import Table
from passes.choosing.tile_candidates import small_tiles, sums, tilings
from passes.lowering import CONSUMERS, LowerToHopper
from passes.lowering.sm_90a.boxes import BOX_CYCLES, FEW_ROWS_OF_SEVERAL, MMA_RATE
from passes.lowering.sm_90a.division import Division
from tests.support.sampling import quick_cases

H200 = constants_of()


def row(problem: Gemm, plan: Plan) -> Table:
    return Table.of([(problem, plan)])


def lowering_of(plan: Plan) -> LowerToHopper:
    """The lowering of a plan, whose division of tiles is compared with the cost model's counts."""
    assert isinstance(plan.lowering, LowerToHopper)
    return plan.lowering


def l2_seconds(text: str, merged: float) -> float:
    """The term `l2` of a plan for 712 x 384 x 47936 if L2 merges a share of neighbours' requests.

    Args:
        text: the text of the plan.
        merged: the share of equal requests that L2 merges.
    """
    problem = Gemm("bf16", m=712, n=384, k=47936, transpose_b=True)
    return cost(row(problem, Plan.parse(text)), replace(H200, merged=merged)).l2.item()


def test_pieces_of_a_tile_merge_no_requests():
    """Neighbours that have pieces of one tile, at different k, do not request the same data.

    Neighbours with whole tiles request the same rows of A at the same time.
    """
    whole = "120x128x64 data-parallel"
    pieces = "120x128x64 stream-k{reduction=scatter,shares=balanced} on 126"
    assert l2_seconds(whole, merged=0.4) < 0.9 * l2_seconds(whole, merged=0)
    assert l2_seconds(pieces, merged=0.4) == l2_seconds(pieces, merged=0)


@pytest.mark.slow
@pytest.mark.parametrize("out", ["bf16", "f32"])
def test_parts_of_tiles_are_counted_as_the_lowering_divides_them(out: str):
    narrow = 320, 112, 64, 1, 1, 1, 1  # its wide boxes of D leave one stage fewer
    known = (*tilings(), narrow)
    problem, graphs = Gemm("bf16", out, 1000, 1000, 1000, transpose_b=True), {}
    for *tile, m, n, k, turns in known:
        size, cluster = (tile[0], tile[1], tile[2]), (m, n, k)
        (consumers,) = (name for name, count in CONSUMERS.items() if count == turns)
        if size not in graphs:
            graphs[size] = problem.graph(size)
        plan = Plan(size, cluster, consumers=consumers)
        divisions = lowering_of(plan)._divisions(graphs[size])
        division: Division = divisions[0]
        stores = lowering_of(plan)._stores(graphs[size], divisions)
        shape = Shape(row(problem, plan))
        rows, columns = size[0] // m, size[1] // n
        assert shape.consumers[0] == division.team
        assert shape.mma_columns[0] == division.columns
        assert shape.pieces[0] == division.pieces
        assert shape.blocks[0] == division.blocks * division.team
        assert turns > 1 or sums(rows, columns) == division.accumulators
        assert [shape.stores[0]] == [store.number for store in stores] or out == "f32"
        assert shape.stages[0] == lowering_of(plan)._stages(graphs[size], divisions)
        assert shape.workgroups[0] == prod(cluster)


@quick_cases(1)
@pytest.mark.parametrize("turned", [False, True], ids=["nn", "nt"])
def test_pieces_of_tiles_leave_out_output_slots_for_one_of_five_stages(turned: bool):
    """A kernel of which each workgroup computes one piece has no output slots for D where that
    gives it one of its first five stages, unless B is the left operand and a thread has more than
    128 accumulators. The cost model counts the same stages."""
    problem, without = Gemm("bf16", m=1000, n=1000, k=60000, transpose_b=turned), 0
    pieces = "split-k{splits=none,reduction=scatter}"
    kernels = [t for t in tilings() if t[5] == t[6] == 1]
    for *tile, m, n, k, _ in kernels[:: 1 + len(kernels) // 60]:
        size, cluster = (tile[0], tile[1], tile[2]), (m, n, k)
        plan = Plan(size, cluster, pieces, 30)
        lowering, graph = lowering_of(plan), plan.graph(replace(problem, m=None, n=None, k=None))
        divisions = lowering._divisions(graph)
        stages = lowering._stages(graph, divisions)
        assert Shape(row(problem, plan)).stages[0] == stages
        with_slots = lowering._stages(problem.graph(size), divisions)
        most = min(lowering._room(graph, divisions).stages(()), 5)
        spills = divisions[0].swapped and divisions[0].accumulators > 128
        if lowering._stores(graph, divisions):
            assert stages == with_slots
            assert stages >= most or spills
        else:
            assert with_slots < most <= stages
            assert not spills
            without += 1
    assert 5 < without < len(kernels)


@pytest.mark.slow
def test_small_tiles_are_counted_as_the_lowering_divides_them():
    """The cost model divides small tiles among warpgroups as the lowering does.

    A kernel has as many warpgroups for small tiles as for macro tiles.
    """
    problem, teams = Gemm("bf16", m=3000, n=5000, k=1000, transpose_b=True), set[tuple[int, int]]()
    for tiling in tilings()[::3]:
        (consumers,) = (name for name, count in CONSUMERS.items() if count == tiling[6])
        for small_m, small_n in small_tiles(tiling)[-1:]:
            schedule = HeterogeneousTiles(small_m=small_m, small_n=small_n)
            plan = Plan(tiling[:3], tiling[3:6], str(schedule), 60, consumers)
            counts = Counts(row(problem, plan), H200)
            graph = schedule.apply(replace(problem, m=None, n=None, k=None).graph(plan.tile))
            divisions = lowering_of(plan)._divisions(graph)
            assert len(counts.parts) == len(divisions) == 2
            for part, division in zip(counts.parts, divisions, strict=True):
                assert part.shape.consumers[0] == division.team
                assert part.shape.mma_columns[0] == division.columns
                assert part.shape.pieces[0] == division.pieces
                assert part.shape.blocks[0] == division.blocks * division.team
                assert part.shape.stages[0] == lowering_of(plan)._stages(graph, divisions)
            alone = Shape(counts.parts[1].table).consumers[0]
            teams.add((int(alone), divisions[1].team))
    # In one case a small tile alone needs one warpgroup, but gets the two of the macro tile.
    assert (1, 2) in teams


def price(plan: str, m: int, n: int, k: int, **problem: Any) -> dict[str, float]:
    return cost(row(Gemm("bf16", m=m, n=n, k=k, **problem), Plan.parse(plan)), H200).row(0)


@pytest.mark.parametrize(
    ("tile", "schedule", "team"),
    [
        ((128, 144, 64), "data-parallel", 1),
        ((128, 144, 64), "stream-k", 1),
        ((128, 176, 64), "data-parallel", 1),
        ((128, 176, 64), "stream-k", 2),
        ((160, 128, 64), "heterogeneous-tiles", 1),
        ((160, 128, 64), "hybrid-stream-k", 2),
        ((128, 192, 64), "data-parallel", 2),
        ((128, 144, 128), "data-parallel", 1),
        ((128, 176, 128), "data-parallel", 2),
    ],
)
def test_one_warpgroup_multiplies_alone_what_its_registers_hold(
    tile: tuple[int, int, int], schedule: str, team: int
):
    problem = Gemm("bf16", m=3000, n=5000, k=1000, transpose_b=True)
    cluster = (1, 1, tile[2] // 64)
    plan = Plan(tile, cluster, schedule, None if schedule == "data-parallel" else 132)
    graph = plan.graph(replace(problem, m=None, n=None, k=None))
    assert {division.team for division in lowering_of(plan)._divisions(graph)} == {team}
    assert Shape(row(problem, plan)).consumers[0] == team


def test_more_work_takes_longer():
    small = price("128x256x64 data-parallel{persistent=true} on 132", 4096, 4096, 4096)
    large = price("128x256x64 data-parallel{persistent=true} on 132", 4096, 4096, 8192)
    assert large["total"] > 1.5 * small["total"]
    assert large["tiles"] == small["tiles"]


def test_a_wave_that_is_not_full_costs_a_whole_one():
    def loop(tiles: int) -> float:
        return price("128x256x64 data-parallel{persistent=true} on 132", 128 * tiles, 256, 4096)[
            "loop"
        ]

    over, third = loop(133) - loop(132), loop(3 * 132) - loop(2 * 132)
    # One tile in a new wave costs as much as a full wave. Differences of times are compared,
    # because the first iteration of a launch takes longer than later iterations.
    assert over == pytest.approx(third)


def test_half_of_the_sms_have_the_way_of_all_for_themselves():
    half = price("64x64x64 data-parallel", 64 * 66, 64, 8200)
    more = price("64x64x64 data-parallel", 64 * 67, 64, 8200)
    assert more["loop"] > 1.2 * half["loop"]


def test_only_shared_tiles_need_fixing_up():
    even = price("128x128x64 stream-k{owner=last} on 66", 128 * 66, 128, 4096)
    uneven = price("128x128x64 stream-k{owner=last} on 64", 128 * 66, 128, 4096)
    assert even["fixup"] == 0
    assert uneven["fixup"] > 0


def test_a_cluster_asks_the_cache_for_less():
    alone = price("128x256x64 data-parallel", 4096, 4096, 4096)
    pair = price("256x256x64@c2x1 data-parallel", 4096, 4096, 4096)
    assert pair["l2"] < alone["l2"]


def test_a_ring_of_three_stages_waits():
    """The predicted time rises if shared memory has room for fewer stages of k tiles.

    128 x 320 tiles have three stages and 256 x 160 tiles four; both have equally many
    multiplications.
    """
    three = price("128x320x64 data-parallel", 2048, 5120, 8192)
    four = price("256x160x64 data-parallel", 2048, 5120, 8192)
    assert three["loop"] > 1.02 * four["loop"]


def test_unswizzled_boxes_leave_more_slowly_where_rows_begin_inside_cache_lines():
    def tiles(columns: int, n: int) -> float:
        return price(f"128x{columns}x64 data-parallel", 2048, n, 512)["tiles"]

    assert tiles(176, 5632) < 1.1 * tiles(192, 5632)
    assert tiles(176, 5640) / tiles(176, 5632) > tiles(192, 5640) / tiles(192, 5632)


def test_only_the_last_store_of_a_workgroup_is_waited_for():
    one, two = (
        price("128x128x64 data-parallel{persistent=true} on 132", 128, 128 * n, 512)["tiles"]
        for n in (132, 264)
    )
    assert one < two < 2 * one


def test_bands_bring_less_from_memory():
    rows = price("128x256x64 data-parallel{persistent=true} on 132", 16384, 65536, 8192)
    bands = price(
        "128x256x64 rasterize{width=8},data-parallel{persistent=true} on 132", 16384, 65536, 8192
    )
    assert bands["dram"] < rows["dram"]


def test_interleaved_k_brings_less_from_memory():
    size, tile = (1152, 432, 61312), "128x144x64"
    every = [
        price(f"{tile} stream-k{{{options}}} on {grid}", *size)["dram"]
        for options, grid in (
            ("k_order=interleaved", 132),
            ("owner=last", 132),
            ("reduction=scatter,shares=balanced", 108),
        )
    ]
    interleaved, uneven, even = every
    assert interleaved < 0.6 * uneven
    assert interleaved < 1.2 * even


def test_every_byte_is_read_and_written_once_at_least():
    m, n, k = 2048, 2048, 512
    found = price("128x256x64 data-parallel", m, n, k)
    assert found["dram"] >= 2 * (m * k + n * k + m * n) / H200.dram_rate


@pytest.mark.parametrize("plan", ["128x128x64 {} on 132", "256x128x64@c2x1@pingpong {} on 66"])
def test_small_tiles_shorten_the_ragged_wave(plan: str):
    whole, small = "data-parallel{persistent=true}", "heterogeneous-tiles"
    size = 128 * 136, 128, 4096
    large, few = (price(plan.format(s), *size) for s in (whole, small))
    assert few["loop"] < 0.9 * large["loop"]
    # the tiles fill whole waves, so no tile is divided into small tiles
    full = 128 * 132, 128, 4096
    assert price(plan.format(whole), *full) == price(plan.format(small), *full)


def test_few_tiles_in_many_pieces_need_many_receives():
    size = 128 * 133, 128, 4096
    names = ("two-tile-stream-k{owner=last}", "hybrid-stream-k{owner=last}")
    two, hybrid = (price(f"128x128x64 {name} on 132", *size) for name in names)
    assert hybrid["fixup"] > 5 * two["fixup"]
    options = "{owner=last,least_segment=8}"
    few = price(f"128x128x64 hybrid-stream-k{options} on 132", *size)
    assert few["fixup"] < 0.3 * hybrid["fixup"]
    assert few["loop"] > hybrid["loop"]


@quick_cases(5)
@pytest.mark.parametrize(
    "tile",
    [
        *("128x128x64", "128x208x64@c2x1", "128x176x64@c2x1", "256x192x64@c2x1", "64x48x128"),
        *("128x256x64", "256x256x64@c2x1", "192x192x64", "256x160x64", "128x128x64@pingpong"),
    ],
)
def test_partial_sums_are_received_in_as_many_steps_as_the_lowering_has(tile: str):
    plan = Plan.parse(f"{tile} stream-k{{owner=last}}")
    gemm = Gemm("bf16", transpose_b=True)
    lowered = plan.lowering(plan.graph(gemm))
    found = Shape(row(replace(gemm, m=1024, n=1024, k=4096), plan)).steps[0]
    assert found == lowered.coordinates["fixup.step"].fixed_size


def test_reductions_of_many_pieces():
    """The cost model predicts how long the fix-up of a tile takes, for each kind of reduction.

    16 workgroups compute the tile: `peers` adds 15 partial sums one after another, `tree` needs 4
    levels, `turnstile` 15 sends and receives in sequence, `scatter` one send, one finish, and a
    wait for the slowest workgroup.
    """
    size, way, loops = (128, 128, 64 * 64), {}, {}
    for reduction in ("peers", "tree", "turnstile", "scatter"):
        plan = f"128x128x64 stream-k{{owner=last,reduction={reduction}}} on 16"
        terms = price(plan.replace(",reduction=peers", ""), *size)
        way[reduction], loops[reduction] = terms["fixup"], terms["loop"]
    kept = 128 * 128 * 4
    send = H200.send_seconds + kept / H200.send_rate
    # A thread receives its 128 accumulators in 5 steps of at most 7 vector accesses each.
    receive = 5 * H200.receive_seconds + kept / H200.receive_rate
    finish = H200.scatter_seconds + kept / H200.scatter_rate
    assert way["peers"] == pytest.approx(send + 15 * receive)
    assert way["tree"] == pytest.approx(send + 4 * (receive + H200.level_seconds))
    assert way["turnstile"] == pytest.approx(15 * (send + receive))
    assert way["scatter"] == pytest.approx(send + finish + H200.skew * loops["scatter"])


def test_a_grid_that_is_not_given_is_what_the_device_holds():
    named, open_ = (f"128x128x64 stream-k{{owner=last}}{grid}" for grid in (" on 132", ""))
    assert price(named, 1000, 2000, 3000) == price(open_, 1000, 2000, 3000)


BOXED = (
    *("144x64x64", "288x64x64@c2x1", "128x96x64", "64x64x64", "352x64x64", "128x256x64"),
    *("256x128x64@c2x2", "216x256x64@c1x2", "64x512x64@c1x8", "120x128x64", "128x128x64"),
)
"""Plans, without their schedules, for which the model's number of TMA boxes is compared with the
lowering's."""


def boxes(plan: Plan, problem: Gemm) -> dict[str, int]:
    """Number of TMA boxes of A and of B that a workgroup requests in an iteration."""
    c = lowering_of(plan)(plan.graph(problem)).coordinates
    return {t: c[f"{t}.box"].fixed_size * c[f"{t}.box.layer"].fixed_size for t in "AB"}


@pytest.mark.parametrize("tile", BOXED)
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_boxes_are_counted_as_the_lowering_divides_tiles(tile: str, layout: str):
    turned_a, turned_b = (side == "t" for side in layout)
    problem = Gemm("bf16", m=4096, n=4096, k=4096, transpose_a=turned_a, transpose_b=turned_b)
    plan = Plan.parse(f"{tile} data-parallel")
    assert Shape(row(problem, plan)).copies.item() == sum(boxes(plan, problem).values())


@pytest.mark.parametrize("tile", BOXED)
def test_boxes_are_high_where_an_iteration_is_short(tile: str):
    """If TMA's boxes take a third longer than wgmma, they have 64 rows or all rows of a tile."""
    problem = Gemm("bf16", m=4096, n=4096, k=4096, transpose_b=True)
    plan = Plan.parse(f"{tile} data-parallel")
    (m, n, _), (across, along, _) = plan.tile, plan.cluster
    rows, columns = m // across, n // along
    count = boxes(plan, problem)
    if BOX_CYCLES * sum(count.values()) > 4 / 3 * rows * columns / MMA_RATE:
        for tensor, extent in (("A", rows // along), ("B", columns // across)):
            assert extent // count[tensor] >= min(FEW_ROWS_OF_SEVERAL, extent)
