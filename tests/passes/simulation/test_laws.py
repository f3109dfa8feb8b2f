"""Laws of every simulated run: all work is done, and nothing is faster than the hardware."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import KernelGraph
from coordgraph.interpreter.lockstep import StepKind
from passes.simulation import Activity, Kernel, Machine, Simulation, simulate
from passes.simulation.launching import Launch
from passes.simulation.work import TileWork, fixed_seconds, tile_works
from tests.passes.schedules import CORNERS, SCHEDULES, Problem, parameters, problems, symbolic
from tests.passes.simulation.runs import H200, scheduled, small
from tests.support.sampling import quick_cases

FEW = 5
ROUNDING = 1e-12


def run(name: str, problem: Problem, machine: Machine) -> Simulation:
    return run_graph(symbolic(name), problem, machine)


def run_graph(graph: KernelGraph, problem: Problem, machine: Machine) -> Simulation:
    """Simulate a graph that `simulate` refuses, since its tiles are too small for tensor cores."""
    return Launch.of(graph, parameters(graph, problem), machine, None, Kernel()).run(machine)


def check_slots(s: Simulation) -> None:
    """Check that events of a CTA slot do not overlap, and that gaps between them are idle time."""
    e, gaps = s.events, 0.0
    for slot in range(s.slots):
        own = np.flatnonzero((e.slot == slot) & (e.behind == 0))
        own = own[np.argsort(e.begin[own], kind="stable")]
        edges = np.concatenate([[0.0], np.stack([e.begin[own], e.end[own]], 1).ravel()])
        edges = np.concatenate([edges, [s.makespan]])
        assert np.all(np.diff(edges) >= -ROUNDING)
        gaps += float(np.diff(edges)[::2].sum())
    assert gaps == pytest.approx(s.idle, abs=ROUNDING * s.slots)
    assert s.busy + s.waiting + s.idle == pytest.approx(s.slots * s.makespan)
    assert s.idle >= s.slots * s.launch_seconds - ROUNDING


def check_work(s: Simulation) -> None:
    """Check that each main loop is simulated once, and that a workgroup's events have no gaps."""
    e, steps = s.events, s.steps
    assert float(e.end.max()) == s.makespan
    multiplied = e.step[e.activity == Activity.MULTIPLY]
    assert sorted(multiplied) == list(np.flatnonzero(steps.kind == StepKind.MULTIPLY))
    for workgroup in range(steps.workgroups):
        own = np.flatnonzero((e.workgroup == workgroup) & (e.behind == 0))
        assert len({*e.slot[own]}) <= 1
        assert np.allclose(e.begin[own][1:], e.end[own][:-1])


def critical_path(s: Simulation, works: list[TileWork]) -> float:
    """Seconds of the critical path, with main loops at full speed and a free slot for every CTA."""
    steps, seconds = s.steps, fixed_seconds(s.steps, works)
    sent: dict[tuple[int, int], float] = {}
    done: dict[int, float] = defaultdict(float)
    last = 0.0
    at = [0] * steps.workgroups
    borders = np.searchsorted(steps.workgroup, np.arange(steps.workgroups + 1))
    moved = True
    while moved:
        moved = False
        for w in range(steps.workgroups):
            while (i := int(borders[w]) + at[w]) < borders[w + 1]:
                kind, work = steps.kind[i], works[steps.tiling[i]]
                first, count = int(steps.first[i]), int(steps.count[i])
                keys = [(int(steps.slot[i]), turn) for turn in range(first, first + count)]
                if kind in (StepKind.RECEIVE, StepKind.AWAIT):
                    if any(key not in sent for key in keys):
                        break
                    done[w] = max(done[w], *(sent[key] for key in keys))
                if kind == StepKind.MULTIPLY:
                    done[w] += count * min(work.free, work.crowded)
                done[w] += float(seconds[i])
                if kind == StepKind.SEND:
                    sent[keys[0]] = done[w]
                at[w], moved, last = at[w] + 1, True, max(last, done[w])
    assert all(int(borders[w]) + at[w] == borders[w + 1] for w in range(steps.workgroups))
    return last


@quick_cases(6)
@pytest.mark.parametrize("name", SCHEDULES)
def test_laws_hold_for_every_schedule(name: str):
    problem = CORNERS["ragged everywhere"]
    machine = small(FEW)
    s = run(name, problem, machine)
    check_slots(s)
    check_work(s)
    works = tile_works(symbolic(name), dict(zip("mnk", problem, strict=False)), machine, Kernel())
    assert s.makespan >= critical_path(s, works) + s.launch_seconds


@pytest.mark.parametrize("corner", CORNERS)
def test_laws_hold_for_every_corner(corner: str):
    for name in ("data-parallel", "stream-k{owner=last}", "two-tile-stream-k{owner=last}"):
        if name in SCHEDULES:
            s = run(name, CORNERS[corner], small(CORNERS[corner][3]))
            check_slots(s)
            check_work(s)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(1, 9), st.sampled_from(["data-parallel", "split-k{splits=3}"]))
def test_laws_hold_for_random_problems(problem: Problem, processors: int, name: str):
    graph = scheduled(name, (4, 4, 4)) if name not in SCHEDULES else symbolic(name)
    # With split-k a workgroup may wait for one with a higher number, so all must be resident.
    slots = processors if name == "data-parallel" else 10_000
    s = run_graph(graph, problem, small(slots))
    check_slots(s)
    check_work(s)
    m, n, k, _ = problem
    assert s.flops == 2 * m * n * k
    assert s.read_bytes >= s.compulsory_bytes * (1 - 1e-9)
    assert (s.read_bytes + s.stored_bytes) / s.makespan <= s.machine.dram_rate


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12))
def test_more_processors_never_take_longer_with_whole_tiles(tiles_m: int, tiles_n: int, w: int):
    graph = scheduled("data-parallel")
    problem = {"m": 128 * tiles_m, "n": 128 * tiles_n, "k": 512}
    # With unlimited L2 and DRAM rates SMs do not slow each other down, so one more SM never costs
    # time.
    alone = {"l2_rate": 1e30, "dram_rate": 1e30}
    one, two = (simulate(graph, problem, small(count, **alone)) for count in (w, w + 1))
    assert two.makespan <= one.makespan * (1 + 1e-9)


@pytest.mark.parametrize("tiles", [1, 7, 132])
def test_tiles_that_all_have_a_slot_take_one_wave(tiles: int):
    s = simulate(scheduled("data-parallel"), {"m": 128, "n": 128 * tiles, "k": 4096}, H200)
    starts = s.events.begin[s.events.activity == Activity.START]
    assert len(starts) == tiles
    assert np.all(starts == s.launch_seconds)
    assert len({*s.events.slot}) == tiles
    next_wave = simulate(scheduled("data-parallel"), {"m": 128, "n": 128 * 133, "k": 4096}, H200)
    assert next_wave.makespan > 1.6 * s.makespan


def test_stream_k_fills_the_last_wave():
    # 324 tiles on 132 SMs: the third wave of whole tiles leaves 72 SMs idle.
    problem = {"m": 2304, "n": 2304, "k": 4096}
    whole, shared = (
        simulate(scheduled(name), problem, small(132)) for name in ("data-parallel", "stream-k")
    )
    assert shared.idle < 0.3 * whole.idle
    assert shared.makespan < 0.95 * whole.makespan
    assert (whole.fix_ups, whole.workspace_bytes) == (0, 0)
    # There is one fix-up wherever one workgroup's iterations end and the next one's begin inside a
    # tile.
    share = -(-324 * 64 // 132)
    assert shared.fix_ups == sum(share * w % 64 != 0 for w in range(1, 132))


def test_pingpong_overlaps_the_ends_of_tiles_with_main_loops():
    problem = {"m": 128 * 44, "n": 128 * 12, "k": 512}
    graph = scheduled("data-parallel{persistent=true}")
    one = simulate(graph, problem, H200)
    two = simulate(graph, problem, H200, kernel=Kernel(consumers="pingpong"))
    assert two.events.behind.any()
    assert not one.events.behind.any()
    assert two.seconds(Activity.FINISH) < one.seconds(Activity.FINISH)
    check_slots(two)


def test_a_pingpong_warpgroup_finishes_its_tile_before_it_begins_another():
    assert H200.constants is not None
    # Finishing a tile takes 20 µs, longer than the main loop of a tile.
    slow = H200.constants.with_figures({"tile_seconds": 20e-6})
    graph = scheduled("data-parallel{persistent=true}")
    problem = {"m": 128 * 132, "n": 128 * 6, "k": 512}
    machine = replace(H200, constants=slow)
    s = simulate(graph, problem, machine, kernel=Kernel(consumers="pingpong"))
    e = s.events
    own = e.workgroup == 0
    loops = np.flatnonzero(own & (e.activity == Activity.MULTIPLY))
    ends = np.flatnonzero(own & (e.activity == Activity.FINISH))
    assert len(loops) == len(ends) == 6
    assert np.all(e.begin[loops][2:] >= e.end[ends][:-2])
    assert np.any(e.begin[loops][2:] == e.end[ends][:-2])
