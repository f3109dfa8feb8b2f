"""The bytes of A and B that the cost model expects a launch to read from memory."""

import numpy as np
import pytest

from benchmarks.counting.counts import scheduled
from benchmarks.counting.l2 import requests, through_cache
from coordgraph import Gemm
from coordgraph.interpreter import trace
from passes.choosing import Plan, constants_of
from passes.choosing.model import Counts
from passes.choosing.plan_table import Table
from passes.choosing.tile_order import TileOrder
from passes.choosing.traffic import traffic_of

TILE = (128, 128, 64)
STREAM_K, GRID = "stream-k{owner=last}", 66


def bytes_read(size: tuple[int, int, int], plan: Plan, kept_bytes: float) -> float:
    """Bytes of A and B that the model expects a bf16 product of `size` to read from memory."""
    m, n, k = size
    table = Table.of([(Gemm("bf16", m=m, n=n, k=k), plan)])
    counts = Counts(table, constants_of())
    w, s = counts.work, counts.shape
    streams = w.streamed * w.grid
    return traffic_of(table, s, w.grid, kept_bytes, mixed=w.apart, streams=streams).item()


@pytest.mark.parametrize(
    ("size", "text", "measured"),
    [
        ((3456, 3840, 6264), "192x384x64@c1x2 rasterize{width=16},stream-k{owner=last}", 716e6),
        ((8192, 8192, 8192), "256x256x64@c2x1 stream-k{owner=last}", 6278e6),
        ((4096, 4096, 16384), "256x256x64@c2x1 rasterize,two-tile-stream-k{owner=last}", 1467e6),
    ],
)
def test_streamed_plans_read_what_counters_of_an_h200_measured(
    size: tuple[int, int, int], text: str, measured: float
):
    """The model's bytes differ by at most 20 % from those that an H200 read.

    The bytes are from `benchmarks/results`: `counters-large`, `traffic` and `counters-deep-k`. The
    counters of the first and third include the bytes of D that were written.
    """
    found = bytes_read(size, Plan.parse(f"{text} on {GRID}"), constants_of().kept_bytes)
    assert abs(found / measured - 1) < 0.2


@pytest.mark.parametrize(
    ("order", "measured"),
    [("", 7693e6), ("rasterize{width=4},", 2818e6), ("rasterize{width=16},", 2533e6)],
)
def test_whole_tiles_read_what_counters_of_an_h200_measured(order: str, measured: float):
    """The model's bytes for 8192 x 28672 x 4096 differ by at most 20 % from those of an H200.

    In bands of 16 rows, the rows of A that a wave reads do not stay in the cache until the next
    wave. The bytes are from `benchmarks/results`: `traffic`.
    """
    plan = Plan.parse(f"256x256x64@c2x1 {order}data-parallel{{persistent=true}} on {GRID}")
    found = bytes_read((8192, 28672, 4096), plan, constants_of().kept_bytes)
    assert abs(found / measured - 1) < 0.2


@pytest.mark.parametrize("order", ["", "rasterize{width=4},"])
@pytest.mark.parametrize("owner", ["first", "last"])
@pytest.mark.parametrize("grid", [20, 37, 53])
def test_streams_read_as_often_as_a_simulated_cache(order: str, owner: str, grid: int):
    """For Stream-K, the model's traffic is within 35 % of that of simulated caches of four sizes.

    With 64 output tiles, a share has 3.2, 1.7 and 1.2 tiles.
    """
    size, pipeline = (1024, 1024, 4096), f"{order}stream-k{{owner={owner}}}"
    plan = Plan(TILE, pipeline=pipeline, workgroups=grid)
    asked = requests(pipeline, TILE, size, grid)
    for kept_bytes in (2e6, 5e6, 9e6, 30e6):
        simulated = through_cache(asked, kept_bytes).read_bytes
        assert abs(bytes_read(size, plan, kept_bytes) / simulated - 1) < 0.35, kept_bytes


def test_moving_the_ends_of_shares_changes_the_bytes_little():
    """`least_segment` moves the ends of shares, but most distances between workgroups stay.

    In a simulated cache of 30 MB, the option adds 3 % to the bytes.
    """
    size, pipeline = (4096, 2112, 7168), "rasterize,stream-k{owner=last%s}"
    plain, moved = (
        bytes_read(size, Plan((256, 192, 64), (2, 1, 1), pipeline % option, GRID), 30e6)
        for option in ("", ",least_segment=8")
    )
    assert plain == pytest.approx(moved, rel=0.1)


@pytest.mark.parametrize("width", [1, 4, 16])
def test_tiles_are_numbered_in_the_order_of_the_graph(width: int):
    """`TileOrder` numbers tiles in the order in which one workgroup of the graph visits them."""
    tiles_m, tiles_n = 10, 3
    pipeline = f"rasterize{{width={width}}},data-parallel{{persistent=true}}"
    graph = scheduled(pipeline, (16, 16, 16), "bf16")
    found = trace(graph, {"m": 160, "n": 48, "k": 16, "workgroups": 1})
    rows, columns = np.array([segment.tile for segment in found.segments]).T
    order = TileOrder(*(np.array([float(x)]) for x in (min(width, tiles_m), tiles_m, tiles_n)))
    numbers = np.arange(float(tiles_m * tiles_n))
    assert (order.number(rows, columns) == numbers).all()
    assert (np.array(order.place(numbers)) == [rows, columns]).all()


@pytest.mark.parametrize(
    "schedule",
    [
        "stream-k",
        STREAM_K,
        "stream-k{owner=last,reduction=tree}",
        "stream-k{reduction=scatter}",
        "stream-k{owner=last,reduction=scatter}",
        "two-tile-stream-k{owner=last}",
    ],
)
def test_segments_run_backward_where_the_graph_runs_them_backward(schedule: str):
    """`Table.backward` says whether a workgroup of the graph runs its later tiles first."""
    plan = Plan((16, 16, 16), pipeline=schedule, workgroups=2)
    table = Table.of([(Gemm("bf16", m=48, n=16, k=64), plan)])
    graph = scheduled(schedule, plan.tile, "bf16")
    found = trace(graph, {"m": 48, "n": 16, "k": 64, "workgroups": 2})
    first, second, *_ = (s.tile for s in found.segments if s.workgroup == 0)
    assert table.backward.item() == (first > second)
