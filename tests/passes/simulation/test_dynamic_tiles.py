"""Simulated dynamic tile schedulers: the workgroup that is free first takes the next tile."""

from __future__ import annotations

import numpy as np
import pytest

from coordgraph import Gemm
from coordgraph.interpreter.lockstep import StepKind
from passes import DataParallel
from passes.simulation import Simulation, simulate
from passes.simulation.work import Kernel

PROBLEM = Gemm("bf16").graph((128, 128, 64))


def simulated(scheduler: str, consumers: str, k: int = 256) -> Simulation:
    schedule = DataParallel(persistent=True, scheduler=scheduler)  # type: ignore[arg-type]
    kernel = Kernel((1, 1, 1), consumers)
    return simulate(schedule(PROBLEM), {"m": 4000, "n": 3000, "k": k}, kernel=kernel)


@pytest.mark.parametrize("consumers", ["cooperative", "pingpong"])
def test_each_tile_is_computed_once_by_a_free_workgroup(consumers: str):
    found = simulated("dynamic", consumers)
    steps, events = found.steps, found.events
    multiply = steps.kind == StepKind.MULTIPLY
    tiles = {*zip(steps.m[multiply].tolist(), steps.n[multiply].tolist(), strict=True)}
    assert len(tiles) == int(multiply.sum()) == 32 * 24
    assert (np.diff(steps.workgroup) >= 0).all()
    of_step = events.step >= 0
    assert (events.workgroup[of_step] == steps.workgroup[events.step[of_step]]).all()
    alone = events.behind == 0
    for workgroup in range(steps.workgroups):
        own = alone & (events.workgroup == workgroup)
        begin, end = np.sort(events.begin[own]), np.sort(events.end[own])
        assert (begin[1:] >= end[:-1] - 1e-12).all()
        assert len({*events.slot[own].tolist()}) == 1


def test_tiles_are_taken_in_order():
    """Tiles begin in the order of their numbers, also where workgroups are not equally fast."""
    found = simulated("dynamic", "cooperative")
    steps, events = found.steps, found.events
    multiply = np.flatnonzero((events.step >= 0) & (steps.kind[events.step] == StepKind.MULTIPLY))
    of = events.step[multiply]
    number = steps.m[of] * 24 + steps.n[of]
    begin = events.begin[multiply][np.argsort(number)]
    assert (np.diff(begin) >= -1e-12).all()


def test_equally_fast_workgroups_take_as_long_as_with_a_static_scheduler():
    static, dynamic = (simulated(s, "cooperative").makespan for s in ("static", "dynamic"))
    assert dynamic <= static * 1.01
