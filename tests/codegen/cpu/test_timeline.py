"""Timelines of CPU kernels: D is right, and every segment is recorded once and in order."""

from __future__ import annotations

import json

import numpy as np
import pytest

import codegen
from codegen.timeline import Timeline
from codegen.timeline.chrome import chrome_trace
from coordgraph import CodegenError, Gemm, KernelGraph
from coordgraph.interpreter import Segment, trace
from passes import DataParallel, HeterogeneousTiles, Pass, SplitK, StreamK, TwoTileStreamK
from passes.simulation import Activity
from tests.support.sampling import quick_cases

M, N, K = 150, 200, 260
SCHEDULES: tuple[Pass, ...] = (
    DataParallel(),
    StreamK(workgroups=5),
    SplitK(3),
    TwoTileStreamK(workgroups=4),
    StreamK(workgroups=5, reduction="atomic"),
    StreamK(workgroups=3, reduction="scatter"),
    StreamK(workgroups=7, reduction="tree"),
)


def graph_of(schedule: Pass) -> KernelGraph:
    return schedule(Gemm("f32").graph(tile=(64, 64, 32)))


def traced(graph: KernelGraph, threads: int = 2, **options: int) -> Timeline:
    """Launch the graph's kernel, compare D with NumPy's product, and return the timeline."""
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape, np.float32) for shape in ((M, K), (K, N)))
    d = np.zeros((M, N), np.float32)
    kernel = codegen.compile(graph, "cpu", timeline=options.pop("timeline", True))
    found = kernel.timeline(a, b, out=d, threads=threads)
    np.testing.assert_allclose(d, a @ b, rtol=1e-4, atol=1e-3)
    return found


Segments = list[tuple[int, ...]]
"""Sorted segments: (workgroup, product, tile row, tile column, first k tile, count of k tiles)."""


def segments_of(t: Timeline) -> Segments:
    loops = t.activity == Activity.MULTIPLY
    columns = (t.workgroup, t.product, t.m, t.n, t.first, t.count)
    return sorted(zip(*(c[loops].tolist() for c in columns), strict=True))


def expected_segments(graph: KernelGraph, sizes: dict[str, int], **tables: list[int]) -> Segments:
    return sorted(
        (e.workgroup, *(e.tile if len(e.tile) == 3 else (0, *e.tile)), e.k_first, e.k_count)
        for events in trace(graph, sizes, tables).workgroups
        for e in events
        if isinstance(e, Segment)
    )


@quick_cases(1)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_timeline_has_the_segments_of_the_schedule(schedule):
    graph = graph_of(schedule)
    found = traced(graph)
    sizes = {"m": M, "n": N, "k": K}
    assert segments_of(found) == expected_segments(graph, sizes)
    assert found.dropped == 0
    assert found.workgroups == len(trace(graph, sizes).workgroups)


def ones(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.ones(shape, np.float32)


def test_products_of_a_batch_are_told_apart():
    graph = StreamK(workgroups=5)(Gemm("f32", batched=True).graph(tile=(32, 32, 32)))
    kernel = codegen.compile(graph, "cpu", timeline=True, debug=True)
    found = kernel.timeline(ones(3, 70, 100), ones(3, 100, 50), threads=2)
    sizes = {"m": 70, "n": 50, "k": 100, "batches": 3}
    assert segments_of(found) == expected_segments(graph, sizes)
    assert set(found.product.tolist()) == {-1, 0, 1, 2}


@quick_cases(1)
@pytest.mark.parametrize(
    "schedule", [DataParallel(persistent=True, workgroups=4), StreamK(workgroups=3)], ids=str
)
def test_groups_are_told_apart(schedule):
    graph = schedule(Gemm("f32", grouped=True).graph(tile=(32, 32, 32)))
    kernel = codegen.compile(graph, "cpu", timeline=True, debug=True)
    offsets = np.array([0, 40, 40, 97], np.int32)
    found = kernel.timeline(ones(97, 64), ones(3, 64, 50), offsets=offsets, threads=2)
    sizes = {"m": 97, "n": 50, "k": 64, "groups": 3}
    assert segments_of(found) == expected_segments(graph, sizes, offsets=offsets.tolist())


def test_tiles_of_two_shapes_are_counted_in_unit_tiles():
    graph = HeterogeneousTiles(workgroups=4)(Gemm("f32").graph(tile=(64, 64, 32)))
    kernel = codegen.compile(graph, "cpu", timeline=True)
    found = kernel.timeline(ones(200, 64), ones(64, 300), threads=2)
    sizes = {"m": 200, "n": 300, "k": 64}
    assert segments_of(found) == expected_segments(graph, sizes)


@quick_cases(1)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_events_of_a_workgroup_follow_each_other_without_a_gap(schedule):
    found = traced(graph_of(schedule))
    assert (found.end >= found.begin).all()
    for workgroup in range(found.workgroups):
        own = found.workgroup == workgroup
        begin, end = found.begin[own], found.end[own]
        np.testing.assert_array_equal(begin[1:], end[:-1])
        assert found.activity[own][0] == Activity.START
        assert len(np.unique(found.slot[own])) == 1


def test_the_epilogue_of_each_tile_is_there_once():
    found = traced(graph_of(StreamK(workgroups=5)))
    ends = found.activity == Activity.FINISH
    tiles = sorted(zip(found.m[ends].tolist(), found.n[ends].tolist(), strict=True))
    assert tiles == [(m, n) for m in range(3) for n in range(4)]


def test_a_workgroup_that_receives_waits_before_it_adds():
    found = traced(graph_of(StreamK(workgroups=5)))
    kinds = [Activity(a).name for a in found.activity[found.workgroup == 0]]
    # the first workgroup has the first segment of its tile, so it sends no partial sum
    assert "SEND" not in kinds
    waits = [i for i, kind in enumerate(kinds) if kind == "WAIT"]
    assert waits
    assert all(kinds[i + 1] == "RECEIVE" for i in waits)


def test_records_without_room_are_counted():
    whole = traced(graph_of(StreamK(workgroups=2)))
    cut = traced(graph_of(StreamK(workgroups=2)), timeline=4)
    assert cut.dropped == len(whole) - len(cut) > 0
    assert cut.makespan > 0


def test_seconds_of_all_activities_and_idle_fill_the_threads():
    found = traced(graph_of(StreamK(workgroups=5)))
    summary = found.summary()
    seconds = summary["slot_seconds"]
    assert sum(seconds.values()) == pytest.approx(found.makespan * summary["slots"])
    fix_up = seconds["send"] + seconds["wait"] + seconds["receive"]
    assert summary["fix_up_seconds"] == pytest.approx(fix_up)
    assert 0 <= summary["tail_seconds"] <= seconds["idle"] + 1e-12
    assert len(summary["per_slot"]) == summary["slots"]


def test_columns_are_those_of_a_simulation():
    graph = graph_of(StreamK(workgroups=5))
    simulated = codegen.simulate(
        StreamK(workgroups=5)(Gemm("bf16").graph(tile=(128, 128, 64))),
        {"m": 512, "n": 512, "k": 512},
        "NVIDIA H200",
    ).event_columns()
    measured = traced(graph).event_columns()
    assert list(measured)[: len(simulated)] == list(simulated)
    assert {len(column) for column in measured.values()} == {len(measured["begin"])}


def test_a_chrome_trace_names_tiles_and_threads():
    found = traced(graph_of(StreamK(workgroups=5)))
    data = json.loads(json.dumps(chrome_trace(found)))
    events = [e for e in data["traceEvents"] if e["ph"] == "X"]
    assert len(events) == len(found)
    assert {e["pid"] for e in events} == set(found.processors)
    multiply = next(e for e in events if e["cat"] == "multiply")
    assert multiply["name"].startswith("multiply D tile (")
    assert {"workgroup", "tile_m", "tile_n", "tile_k", "k_tiles"} <= multiply["args"].keys()
    names = [e["args"]["name"] for e in data["traceEvents"] if e["name"] == "process_name"]
    assert names == [f"thread {number}" for number in found.processors]


def test_an_empty_product_has_no_events():
    kernel = codegen.compile(graph_of(DataParallel()), "cpu", timeline=True)
    found = kernel.timeline(np.zeros((0, 8), np.float32), np.zeros((8, 5), np.float32))
    assert len(found) == 0
    assert found.summary()["slots"] == 0


def test_a_kernel_without_records_says_how_to_get_them():
    kernel = codegen.compile(graph_of(DataParallel()), "cpu")
    with pytest.raises(CodegenError, match="timeline=True"):
        kernel.timeline(np.zeros((8, 8), np.float32), np.zeros((8, 8), np.float32))


@pytest.mark.parametrize("wrong", [-1, "yes", 1.5])
def test_a_wrong_number_of_records_is_refused(wrong):
    with pytest.raises(CodegenError, match="number of records"):
        codegen.compile(graph_of(DataParallel()), "cpu", timeline=wrong)


def test_the_interpreter_has_no_clock():
    with pytest.raises(CodegenError, match="clock"):
        codegen.compile(graph_of(DataParallel()), "interpreter", timeline=True)
