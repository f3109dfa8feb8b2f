"""Timeline records: their positions in memory, and how `decode` converts them to events."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from codegen.timeline import Timeline, decode
from codegen.timeline.chrome import chrome_trace
from coordgraph import Gemm, KernelGraph, PassError, parse
from coordgraph.control.resolve import resolve
from coordgraph.control.timeline import ACTIVITIES, FORMS, ROLES, Begin, Stamp, code_of, decoded
from coordgraph.integers import evaluate
from coordgraph.interpreter import interpret
from passes import DataParallel, StreamK
from passes.base import Pass
from passes.lowering import LowerToHopper, LowerToHost, LowerToTensorCores
from passes.simulation import Activity
from passes.timeline import TIMELINE, MarkActivities, RecordTimeline, with_timeline
from tests.support.sampling import quick_cases

GIGAHERTZ = 1.75
RESOLUTION = 32
SKEWS = {3: 10_000_000, 7: 2**33 + 123}
"""For each SM number, the value of the SM's clock, in cycles, when the launch begins."""
START = 1_800_000_000_000_000_000
"""The global timer when the launch begins, in nanoseconds."""


def test_codes_hold_activity_role_and_form():
    for names in product(ACTIVITIES, ROLES, FORMS):
        assert decoded(code_of(*names)) == names


def halves(value: int) -> list[int]:
    return [value & 0xFFFFFFFF, value >> 32]


def row(
    sm: int, at: float, activity: str, role: str = "", *numbers: int, stalled: int = 0, form: str
) -> list[int]:
    """The eight words of a record that was written `at` nanoseconds after the launch began.

    `stalled` counts clock cycles; `numbers` are the last words, such as a tile's numbers.
    """
    clock = SKEWS[sm] + round(at * GIGAHERTZ)
    rest = [*numbers, 0, 0, 0, 0][:4]
    return [*halves(clock), code_of(activity, role, form), stalled, *rest]


def ends(sm: int, at: float, activity: str, count: int, stalled: int = 0) -> list[int]:
    """The first or the last timeline record of a warp role; only these contain the global timer."""
    time = (START + int(at)) // RESOLUTION * RESOLUTION
    return row(sm, at, activity, "", *halves(time), sm, count, stalled=stalled, form="whole")


def role_of(sm: int, begin: float, end: float, inner: list[list[int]], capacity: int) -> Any:
    """A warp role's records as in memory: the end record, then all others in time order."""
    count = len(inner) + 1
    stalled = inner[-1][3] if inner else 0
    rows = [ends(sm, end, "end", count, stalled), ends(sm, begin, "start", 0), *inner]
    rows = rows[:capacity] + [[0] * 8] * (capacity - len(rows))
    return np.array(rows, np.uint32).view(np.int32)


def consumer(sm: int, begin: float, tile: tuple[int, int], *, send: bool) -> Any:
    """The records of a consumer: 10 µs multiply, 1 µs wait, 2 µs receive, then finish or send."""
    after = "send" if send else "finish"
    inner = [
        row(sm, begin + 1000, "multiply", "consumer", 5, 20, form="range"),
        row(sm, begin + 11000, "wait", "consumer", stalled=700, form="plain"),
        row(sm, begin + 12000, "receive", "consumer", stalled=700, form="plain"),
        row(sm, begin + 14000, after, "consumer", 0, *tile, stalled=2**32 - 1, form="tile"),
        row(sm, begin + 16000, "drain", "consumer", stalled=3, form="plain"),
    ]
    return role_of(sm, begin, begin + 16500, inner, 10)


def producer(sm: int, begin: float) -> Any:
    inner = [
        row(sm, begin + 900, "load", "producer", 5, 20, form="range"),
        row(sm, begin + 10000, "drain", "producer", stalled=1750, form="plain"),
    ]
    return role_of(sm, begin, begin + 16500, inner, 10)


def unused(sm: int, begin: float) -> Any:
    return role_of(sm, begin, begin + 16500, [], 10)


@pytest.fixture
def timeline() -> Timeline:
    """A decoded timeline: two workgroups on SM 3, one after the other, and one on SM 7."""
    places = [(3, 0.0, (0, 1), False), (7, 500.0, (2, 3), True), (3, 17000.0, (4, 5), False)]
    records = [
        [consumer(sm, at, tile, send=send), unused(sm, at), producer(sm, at)]
        for sm, at, tile, send in places
    ]
    return decode(np.array(records), target="sm_90a", name="made up")


def of(t: Timeline, workgroup: int, activity: Activity, role: str = "consumer") -> int:
    chosen = (t.workgroup == workgroup) & (t.activity == activity) & (t.role == ROLES.index(role))
    (found,) = np.flatnonzero(chosen)
    return int(found)


def test_clocks_of_different_sms_become_one_time(timeline):
    for workgroup, begin in ((0, 0.0), (1, 500.0), (2, 17000.0)):
        for activity, at, until in (
            (Activity.START, 0, 1000),
            (Activity.MULTIPLY, 1000, 11000),
            (Activity.WAIT, 11000, 12000),
            (Activity.RECEIVE, 12000, 14000),
            (Activity.DRAIN, 16000, 16500),
        ):
            event = of(timeline, workgroup, activity)
            assert timeline.begin[event] * 1e9 == pytest.approx(begin + at, abs=RESOLUTION)
            assert timeline.end[event] * 1e9 == pytest.approx(begin + until, abs=RESOLUTION)
    assert timeline.processors == (3, 7)
    assert timeline.lanes == 1


def test_activities_have_the_tile_of_the_next_record_that_names_one(timeline):
    for workgroup, m, n in ((0, 0, 1), (1, 2, 3), (2, 4, 5)):
        for activity in (Activity.MULTIPLY, Activity.WAIT, Activity.RECEIVE):
            event = of(timeline, workgroup, activity)
            assert (timeline.m[event], timeline.n[event]) == (m, n)
        load = of(timeline, workgroup, Activity.LOAD, "producer")
        assert (timeline.m[load], timeline.n[load]) == (m, n)
        assert (timeline.first[load], timeline.count[load]) == (5, 20)
        start = of(timeline, workgroup, Activity.START)
        assert (timeline.m[start], timeline.first[start]) == (-1, -1)


def test_stalls_are_differences_of_a_counter_that_wraps(timeline):
    stalls = {
        Activity.START: 0,
        Activity.MULTIPLY: 700,
        Activity.WAIT: 0,
        Activity.RECEIVE: 2**32 - 1 - 700,
        Activity.FINISH: 4,
    }
    for activity, cycles in stalls.items():
        seconds = timeline.stalled[of(timeline, 0, activity)]
        assert seconds == pytest.approx(cycles / GIGAHERTZ / 1e9, rel=0.01)


def test_roles_without_activities_are_left_out(timeline):
    assert set(timeline.warpgroup.tolist()) == {0, 2}
    assert {ROLES[role] for role in timeline.role.tolist()} == {"consumer", "producer"}


def test_the_producer_is_behind_its_consumers(timeline):
    np.testing.assert_array_equal(timeline.behind, timeline.role == ROLES.index("producer"))
    summary = timeline.summary()
    assert summary["slot_seconds"]["multiply"] * 1e9 == pytest.approx(30000, rel=0.01)
    assert summary["fix_up_seconds"] * 1e9 == pytest.approx(3 * 3000 + 2000, rel=0.01)
    assert summary["slot_seconds"]["finish"] * 1e9 == pytest.approx(4000, rel=0.01)
    assert summary["tail_seconds"] * 1e9 == pytest.approx(16500, rel=0.01)
    first, second = summary["per_slot"]
    assert (first["slot"], first["workgroups"], second["workgroups"]) == (3, 2, 1)
    assert first["stalled_seconds"]["producer"] * 1e9 == pytest.approx(2 * 1000, rel=0.01)
    assert second["slot_seconds"]["idle"] * 1e9 == pytest.approx(500 + 16500, rel=0.01)


def test_records_beyond_the_room_are_counted():
    cut = np.array([[role_of(3, 0.0, 900.0, [row(3, 10.0 * n, "finish", "consumer", form="plain")
                                             for n in range(1, 9)], 6)]])  # fmt: skip
    found = decode(cut, target="sm_90a", name="made up")
    assert len(found) == 5
    assert found.dropped == 4
    assert found.end[-1] * 1e9 == pytest.approx(900, abs=RESOLUTION)


def test_ctas_that_share_an_sm_have_lanes_of_their_own():
    tracks = [
        role_of(3, at, at + 1000, [row(3, at + 10, "multiply", form="plain")], 4)
        for at in (0.0, 500.0, 1200.0)
    ]
    found = decode(np.array(tracks), target="sm_80", name="made up")
    assert found.lanes == 2
    assert [int(found.lane[found.workgroup == n][0]) for n in range(3)] == [0, 1, 0]
    threads = {e["tid"] for e in chrome_trace(found)["traceEvents"] if e["ph"] == "X"}
    assert len(threads) == 2


def test_a_warpgroup_that_finishes_while_another_multiplies_is_behind():
    one = [
        row(3, 100.0, "multiply", "consumer", 0, 1, form="range"),
        row(3, 1000.0, "finish", "consumer", 0, 0, 0, form="tile"),
        row(3, 1900.0, "drain", "consumer", form="plain"),
    ]
    two = [
        row(3, 100.0, "turn", "consumer", form="plain"),
        row(3, 1000.0, "multiply", "consumer", 0, 1, form="range"),
        row(3, 1950.0, "finish", "consumer", 0, 0, 1, form="tile"),
    ]
    tracks = [[role_of(3, 0.0, 2500.0, inner, 6) for inner in (one, two)]]
    found = decode(np.array(tracks), target="sm_90a", name="made up")
    behind = found.behind
    pairs = zip(found.warpgroup[behind], found.activity[behind], strict=True)
    kinds = [(int(number), Activity(activity).name) for number, activity in pairs]
    assert kinds == [(0, "FINISH"), (1, "TURN")]


# Tests of the positions of timeline records in memory.


def lowered(lowering: Pass, schedule: Pass, tile: tuple[int, int, int]) -> KernelGraph:
    kind = "f32" if isinstance(lowering, LowerToHost) else "bf16"
    return with_timeline(lowering, 100)(schedule(Gemm(kind).graph(tile=tile)))


@quick_cases(2)
@pytest.mark.parametrize(
    ("lowering", "beside"),
    [
        (LowerToHost(), {}),
        (LowerToTensorCores("sm_80"), {}),
        (LowerToHopper(), {"warp.number": [0, 4, 8]}),
        (LowerToHopper(cluster_m=2), {"warp.number": [0, 4], "cluster.rank": [0, 1]}),
    ],
    ids=str,
)
def test_each_role_has_a_place_of_its_own_for_every_record(lowering, beside):
    graph = lowered(lowering, StreamK(workgroups=3), (256, 128, 64))
    (tensor,) = (t for t in graph.tensors if t.name == TIMELINE)
    sizes = {"m": 512, "n": 512, "k": 512, "read_c": 0}
    values = graph.parameters.launch({p.name: sizes[p.name] for p in graph.parameters.given}, {})
    shape = [int(evaluate(extent, values)) for extent in tensor.shape]
    stamps = [
        (node, node.op)
        for root in resolve(graph.control.root.body, graph.scope())
        for node in root.walk()
        if isinstance(node.op, Stamp)
    ]
    assert {stamp.activity for _, stamp in stamps} >= {"start", "multiply", "finish", "end"}
    for node, stamp in stamps:
        index = node.place(TIMELINE).values[0]
        counts = [0] if stamp.activity == "end" else range(shape[-2] - 1)
        of_role = {"consumer": slice(0, 1), "producer": slice(-1, None)}
        warps = beside.get("warp.number", [0])[of_role.get(stamp.role, slice(None))]
        found, expected = [], []
        for workgroup, rank, warp, count in product(
            range(3), beside.get("cluster.rank", [0]), warps, counts
        ):
            at = {"workgroup": workgroup, "cluster.rank": rank, "timeline.slot": count + 1}
            at |= {"warp.number": warp, "workitem": 32 * warp, "warpgroup": warp // 4, **values}
            found.append(int(evaluate(index, at)))
            inner = {"cluster.rank": rank, "warp.number": warp // 4}
            place = [inner[name] for name in ("cluster.rank", "warp.number") if name in beside]
            slot = count + (stamp.activity != "end")
            expected.append(int(np.ravel_multi_index((workgroup, *place, slot, 0), shape)))
        assert found == expected


def test_marks_compute_nothing():
    graph = StreamK()(Gemm("bf16").graph(tile=(128, 128, 64)))
    marked = MarkActivities()(graph)
    assert [op.activity for op in marked.control.of_kind(Begin)] == ["multiply", "send", "finish"]

    def without(op: Any) -> Any:
        return () if isinstance(op, Begin) or (op.BODIES and not op.children) else op

    assert marked.control.rewrite(without) == graph.control.rewrite(without)


def test_a_marked_graph_computes_the_same():
    marked = MarkActivities()(StreamK(workgroups=3)(Gemm("f32").graph(tile=(32, 32, 32))))
    a, b = np.arange(40 * 70.0, dtype=np.float32).reshape(40, 70) % 7, np.ones((70, 50), np.float32)
    np.testing.assert_array_equal(interpret(marked, a, b).d, a @ b)
    marked.check().raise_if_refuted()
    assert parse(marked.text()) == marked
    assert "activity finish" in marked.pseudocode()


def test_a_graph_is_instrumented_once():
    graph = DataParallel()(Gemm("f32").graph(tile=(32, 32, 32)))
    made = with_timeline(LowerToHost(), 10)(graph)
    with pytest.raises(PassError, match="already"):
        RecordTimeline()(made)
