"""`simulate`: its arguments, its errors, and the time that it takes."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import Gemm, KernelGraph, LaunchError, PassError, VerifyError
from coordgraph.control.operations import ReceivePartial, SendPartial
from coordgraph.interpreter import Deadlock
from coordgraph.interpreter.lockstep import StepKind
from passes import Pipeline
from passes.choosing import Plan
from passes.simulation import MACHINES, Activity, Kernel, sharing, simulate, simulate_plan
from passes.simulation.main_loops import MainLoops
from passes.simulation.memory import Cache
from passes.simulation.sharing import Paces
from tests.passes.simulation.runs import A100, H200, scheduled, small
from tests.support.sampling import quick_cases

SQUARE = {"m": 1024, "n": 1024, "k": 1024}


def test_codegen_offers_it():
    graph = scheduled("stream-k")
    found = codegen.simulate(graph, SQUARE, "NVIDIA H200")
    assert found.makespan == simulate(graph, SQUARE, H200).makespan
    assert found.steps.workgroups == 132


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_multiplies_below_its_peak(name: str):
    machine = MACHINES[name]
    found = simulate(scheduled("two-tile-stream-k"), {"m": 8192, "n": 8192, "k": 8192}, machine)
    peak = machine.processors * machine.flops_per_clock * machine.clock
    assert 0.3 * peak < found.flops_per_second < peak
    assert found.steps.workgroups == machine.processors


def test_a_workgroup_that_cannot_start_is_a_deadlock():
    # Eight workgroups compute parts of one tile. The first workgroup adds the partial sums, so it
    # waits for the other seven.
    graph = scheduled("stream-k{owner=first}")
    problem = {"m": 128, "n": 128, "k": 512, "workgroups": 8}
    with pytest.raises(Deadlock) as caught:
        simulate(graph, problem, small(1))
    message = str(caught.value)
    assert "workgroup 0 waits for a partial sum of output tile (0, 0) in slot 1" in message
    assert "1 workgroup runs at the same time, so workgroups 1..7 cannot start" in message
    assert caught.value.waiting == {0: 1}
    assert simulate(graph, problem, small(2)).makespan > 0


def without_sends(graph: KernelGraph) -> KernelGraph:
    def change(op: Any) -> Any:
        return () if isinstance(op, SendPartial) else op

    return replace(graph, control=graph.control.rewrite(change))


def test_a_graph_without_its_sends_is_a_deadlock():
    graph = without_sends(scheduled("stream-k{owner=last}"))
    with pytest.raises(Deadlock, match=r"workgroup \d+ waits for a partial sum of output tile"):
        simulate(graph, {"m": 384, "n": 384, "k": 1024, "workgroups": 4}, small(4))


def test_a_partial_sum_that_is_received_twice_is_a_deadlock():
    def change(op: Any) -> Any:
        return (op, op) if isinstance(op, ReceivePartial) else op

    graph = scheduled("stream-k{owner=last}")
    wrong = replace(graph, control=graph.control.rewrite(change))
    problem = {"m": 384, "n": 384, "k": 1024, "workgroups": 4}
    assert simulate(graph, problem, small(4)).fix_ups == 3
    with pytest.raises(Deadlock, match="send every partial sum that is received"):
        simulate(wrong, problem, small(4))


def test_a_graph_without_a_schedule_is_refused():
    with pytest.raises(VerifyError):
        simulate(Gemm("bf16").graph((128, 128, 64)), SQUARE)


def test_an_unknown_machine_and_a_missing_argument_are_refused():
    with pytest.raises(LaunchError, match=r"machine = 'H9' is not known; use .* NVIDIA H200"):
        simulate(scheduled("stream-k"), SQUARE, "H9")
    with pytest.raises(LaunchError, match="the parameter 'k' needs a value"):
        simulate(scheduled("stream-k"), {"m": 1, "n": 1})


def test_short_names_of_machines():
    graph = scheduled("stream-k")
    assert simulate(graph, SQUARE, "h200").makespan == simulate(graph, SQUARE, H200).makespan


@pytest.mark.parametrize(
    ("kind", "tile", "reason"),
    [
        ("f32", (128, 128, 32), "kernels for sm_90a multiply .* e4m3 and e5m2, not f32"),
        ("i8", (128, 128, 64), "only if A and B are contiguous along k"),
        ("bf16", (512, 512, 64), "needs 1024 accumulator registers"),
        ("bf16", (100, 100, 10), "must be a multiple of 16x16x16"),
    ],
)
def test_a_kernel_that_cannot_be_compiled_is_refused(
    kind: str, tile: tuple[int, int, int], reason: str
):
    graph = Pipeline.parse("stream-k")(Gemm(kind).graph(tile))
    with pytest.raises(PassError, match=reason):
        simulate(graph, SQUARE)


def test_the_instructions_are_those_of_the_fastest_lowering_that_accepts_the_tile():
    assert simulate(scheduled("stream-k"), SQUARE).instructions == "wgmma"
    small_tile = scheduled("stream-k", (48, 48, 32))
    assert simulate(small_tile, SQUARE).summary()["instructions"] == "mma.sync"
    large = scheduled("stream-k", (256, 256, 64))
    assert simulate(large, SQUARE, kernel=Kernel((2, 1, 1))).instructions == "wgmma"
    with pytest.raises(PassError, match=r"mma.sync \+ cp.async has no cluster_k"):
        simulate(large, SQUARE, kernel=Kernel((1, 1, 3)))


def test_clusters_need_wgmma():
    with pytest.raises(PassError, match=r"need wgmma, which NVIDIA A100-SXM4-80GB \(sm_80\)"):
        simulate(scheduled("stream-k"), SQUARE, A100, kernel=Kernel((2, 1, 1)))


def test_a_plan_gives_the_cluster_and_the_grid():
    gemm = Gemm("bf16", m=2304, n=2304, k=4096, transpose_b=True)
    found = simulate_plan(gemm, Plan.parse("256x128x64@c2x1 stream-k on 66"))
    assert (found.slots, found.steps.workgroups) == (66, 66)


def test_batches_and_lists_count_every_product():
    batch = Pipeline.parse("stream-k")(Gemm("bf16", batched=True).graph((128, 128, 64)))
    found = simulate(batch, {**SQUARE, "batches": 3})
    assert found.flops == 3 * 2 * 1024**3
    assert found.compulsory_bytes == 3 * 2 * 1024**2 * 2
    assert found.read_bytes == pytest.approx(found.compulsory_bytes)
    graph = Pipeline.parse("stream-k")(
        Gemm("bf16", grouped=True, group_axis="mnk").graph((128, 128, 64))
    )
    tables = {"m_offsets": [0, 256, 640], "n_offsets": [0, 512, 640], "k_offsets": [0, 64, 1088]}
    given = {"groups": 2, **{f"elements_{t}": 2**30 for t in "abd"}}
    several = simulate(graph, given, H200, tables=tables)
    assert several.flops == 2 * (256 * 512 * 64 + 384 * 128 * 1024)


def test_the_events_are_plain_columns():
    found = simulate(scheduled("stream-k"), {"m": 640, "n": 640, "k": 1024}, small(6))
    columns = found.event_columns()
    assert {len(column) for column in columns.values()} == {len(found.events)}
    for i, activity in enumerate(columns["activity"]):
        assert (columns["m"][i] is None) == (activity in ("start", "drain", "turn"))
    assert found.waiting == pytest.approx(float(found.waiting_of.sum()))
    assert found.summary()["slot_seconds"]["multiply"] == found.seconds(Activity.MULTIPLY)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["rasterize{width=8},two-tile-stream-k", "split-k{splits=4}"])
def test_a_hundred_thousand_tiles_take_seconds(schedule: str):
    graph = scheduled(schedule)
    simulate(graph, SQUARE)  # the first run also compiles the index expressions, so it is not timed
    begin = time.process_time()
    found = simulate(graph, {"m": 128 * 320, "n": 128 * 313, "k": 4096})
    seconds = time.process_time() - begin
    assert int((found.events.activity == Activity.MULTIPLY).sum()) > 100_000
    assert seconds < 12  # the simulation takes 1.5 to 2.5 s
    assert np.isfinite(found.makespan)


MOST_CALLS, MOST_OF_UNIFORM = 18, 4
"""Largest numbers of Python functions that the simulation enters for each further main loop: with
`Engine`, and with `UniformEngine`. Unlike the seconds of a simulation, these numbers do not depend
on the computer."""


def calls_and_loops(graph: KernelGraph, tiles: int) -> tuple[int, int]:
    """(how many Python functions a simulation calls, how many main loops it simulates).

    The problem has 20 x `tiles` output tiles.
    """
    problem = {"m": 128 * 20, "n": 128 * tiles, "k": 4096}
    simulate(graph, problem)  # the first run also compiles the index expressions
    calls = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = simulate(graph, problem)
    finally:
        sys.setprofile(before)
    return calls, int((found.steps.kind == StepKind.MULTIPLY).sum())


@quick_cases(2)
@pytest.mark.parametrize(
    ("schedule", "most"),
    [
        ("data-parallel", MOST_OF_UNIFORM),
        ("data-parallel{persistent=true,scheduler=dynamic}", MOST_CALLS),
        ("stream-k", MOST_CALLS),
        ("two-tile-stream-k", MOST_CALLS),
        ("split-k{splits=2}", MOST_OF_UNIFORM),
        ("split-k{splits=4}", MOST_OF_UNIFORM),
    ],
)
def test_a_main_loop_takes_few_calls(schedule: str, most: int):
    graph = scheduled(schedule)
    (few, fewer), (many, more) = (calls_and_loops(graph, tiles) for tiles in (20, 60))
    assert (many - few) / (more - fewer) <= most


@pytest.mark.parametrize("schedule", ["stream-k{reduction=tree}", "split-k{splits=4}"])
def test_fix_ups_are_partial_sums_of_other_workgroups(schedule: str):
    found = simulate(scheduled(schedule), {"m": 640, "n": 640, "k": 4096}, small(12))
    s = found.steps
    sender = {
        (s.slot[i], s.first[i]): s.workgroup[i] for i in np.flatnonzero(s.kind == StepKind.SEND)
    }
    received = [
        sender[s.slot[i], turn] != s.workgroup[i]
        for i in np.flatnonzero(np.isin(s.kind, (StepKind.RECEIVE, StepKind.AWAIT)))
        for turn in range(s.first[i], s.first[i] + s.count[i])
    ]
    assert found.fix_ups == sum(received) > 0


def count_paces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets an element whenever a simulation computes speeds of running main loops."""
    computed: list[int] = []
    compute = Paces.compute

    def recorded(self: Paces, key: int, *given: Any) -> Any:
        computed.append(key)
        return compute(self, key, *given)

    monkeypatch.setattr(Paces, "compute", recorded)
    return computed


def check_changes_of_the_pace(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sharing, "MOST_PACES", 0)  # no speeds are cached
    computed = count_paces(monkeypatch)
    waves = 20
    simulate(scheduled("data-parallel"), {"m": 128 * 6, "n": 128 * waves, "k": 1024}, small(6))
    assert waves <= len(computed) <= 2 * waves


def test_main_loops_that_begin_or_end_together_change_the_pace_once(
    monkeypatch: pytest.MonkeyPatch,
):
    check_changes_of_the_pace(monkeypatch)


def test_they_do_so_in_the_general_engine(monkeypatch: pytest.MonkeyPatch, general_engine: None):
    check_changes_of_the_pace(monkeypatch)


def test_few_sets_of_main_loops_have_paces_of_their_own(monkeypatch: pytest.MonkeyPatch):
    computed = count_paces(monkeypatch)
    # The segments of split-k begin and end at about 30,000 different times, on 132 SMs.
    found = simulate(scheduled("split-k"), {"m": 128 * 80, "n": 128 * 100, "k": 4096})
    ends = found.events.end[found.events.activity == Activity.MULTIPLY]
    assert len(ends) == 16_000
    assert len(np.unique(ends)) > 10_000
    assert 0 < len(computed) < 1000


def test_the_reads_of_a_panel_are_rarely_searched(
    monkeypatch: pytest.MonkeyPatch, general_engine: None
):
    searched: list[int] = []
    missing = Cache._missing
    monkeypatch.setattr(Cache, "_missing", lambda s, *a: searched.append(1) or missing(s, *a))
    monkeypatch.setattr(MainLoops, "ranges", None)  # so that `Cache` is the model of the L2 cache
    simulate(scheduled("split-k"), {"m": 128 * 80, "n": 128 * 100, "k": 4096})
    assert 0 < len(searched) < 1000


def test_paces_that_are_kept_are_those_that_are_computed(monkeypatch: pytest.MonkeyPatch):
    problem = {"m": 128 * 12 - 8, "n": 128 * 10, "k": 4096}
    for schedule in ("split-k", "stream-k", "two-tile-stream-k"):
        kept = simulate(scheduled(schedule), problem)
        with monkeypatch.context() as patch:
            patch.setattr(sharing, "MOST_PACES", 0)
            always = simulate(scheduled(schedule), problem)
        assert kept.makespan == pytest.approx(always.makespan, rel=1e-12)
        np.testing.assert_allclose(kept.events.end, always.events.end, rtol=1e-9)
