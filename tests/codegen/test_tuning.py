"""Tests of tuning without a GPU: sampling of plans, and parallel compilation of their kernels."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from codegen.call import compile_workers, tuning
from codegen.call.bench import other_operands
from codegen.call.compile_workers import CompileWorkers
from codegen.call.request import PlanRequest
from codegen.call.rounds import FINAL_REPEATS, REPEATS, SCREENED, WARMING, Rounds
from coordgraph import CodegenError, CoordGraphError, Gemm
from coordgraph.epilogue import epilogue
from passes.choosing import Plan, rank
from passes.choosing.search import MOST_MEASURED
from tests.codegen.noting_worker import ENDING_ROWS, FAILING_ROWS, REFUSED_COLUMNS
from tests.codegen.nvptx.fake_driver import matrix

PLANS = [Plan((128, columns, 64)) for columns in (64, 96, 128, 160, 192, 256)]
REQUEST = PlanRequest(Gemm("bf16", "bf16", 512, 768, 4096), "sm_90a", "NVIDIA H200", 132)


class Clock:
    """A simulated device; calling it with a plan returns the seconds of one launch of the plan.

    The clock drifts: each call adds `drift`, a fraction, to the time of all later launches.
    """

    def __init__(self, drift: float = 0.0) -> None:
        self.drift, self.count = drift, 0
        self.samples: Counter[Plan] = Counter()

    def __call__(self, plan: Plan) -> float:
        self.samples[plan] += 1
        self.count += 1
        return self.seconds(plan) * (1 + self.drift * self.count)

    @staticmethod
    def seconds(plan: Plan) -> float:
        return 1e-5 * (1 + abs(plan.tile[1] - 160) / 320)


def test_slower_plans_are_sampled_less_often():
    clock = Clock()
    found = Rounds(clock).measure(PLANS)
    assert found == pytest.approx([clock.seconds(plan) for plan in PLANS])
    assert clock.samples[PLANS[3]] == SCREENED + REPEATS
    assert clock.samples[PLANS[0]] == clock.samples[PLANS[5]] == SCREENED


def test_groups_are_comparable_when_the_clock_drifts():
    clock = Clock(drift=0.002)
    rounds = Rounds(clock)
    first = rounds.measure(PLANS[3:4])[0]
    for plan in PLANS[:3]:
        ratio = clock.seconds(plan) / clock.seconds(PLANS[3])
        assert rounds.measure([plan])[0] / first == pytest.approx(ratio, rel=0.02)
    assert clock.count * clock.drift > 0.05


def test_the_fastest_plans_are_sampled_again():
    def close(plan: Plan) -> float:
        return clock(plan) if plan in PLANS[:3] else 1e-5 * (1 + PLANS.index(plan) / 1000)

    clock = Clock()
    rounds = Rounds(close)
    rounds.measure(PLANS)
    rounds.seconds[PLANS[4]] = 0.99e-5  # this sample is an outlier: its time is too short
    found = rounds.final()
    assert min(found, key=found.__getitem__) == PLANS[3]
    assert found.keys() == set(PLANS)
    assert clock.samples[PLANS[1]] == SCREENED
    assert clock.samples[PLANS[0]] == SCREENED + WARMING + FINAL_REPEATS  # it was measured first
    assert FINAL_REPEATS > REPEATS


def test_under_load_another_plan_may_be_the_fastest():
    """The fastest plans are measured again under load, and these times decide which is the best."""

    def loaded(plan: Plan) -> float:
        return 2e-5 * (1.02 - PLANS.index(plan) / 100)

    clock = Clock()
    rounds = Rounds(lambda plan: 1e-5 * (1 + PLANS.index(plan) / 100), loaded)
    rounds.measure(PLANS)
    found = rounds.final()
    assert min(found, key=found.__getitem__) == PLANS[3]
    assert found[PLANS[3]] == loaded(PLANS[3])
    # The time of a plan that was not measured under load is its first time, multiplied by the
    # slowdown of the plans that were measured under load.
    assert 2e-5 < found[PLANS[5]] < 2.2e-5
    assert clock.count == 0


def test_the_first_plan_is_measured_under_load_even_if_it_was_slower_before():
    """The first plan is the one that is used without tuning; tuning must not find a slower one."""

    def loaded(plan: Plan) -> float:
        return 1e-5 if plan == PLANS[5] else 2e-5

    rounds = Rounds(Clock.seconds, loaded)
    rounds.measure(PLANS[::-1])
    assert rounds.seconds[PLANS[5]] > 1.2 * rounds.seconds[PLANS[3]]
    found = rounds.final()
    assert min(found, key=found.__getitem__) == PLANS[5]
    assert found[PLANS[5]] == 1e-5


def test_plans_run_under_load_before_a_group_is_sampled():
    seen: list[tuple[str, Plan]] = []
    now = 0.0

    def loaded(plan: Plan) -> float:
        nonlocal now
        now += 0.04
        seen.append(("loaded", plan))
        return 1e-5

    def sampled(plan: Plan) -> float:
        seen.append(("sampled", plan))
        return Clock.seconds(plan)

    Rounds(sampled, loaded, heat_seconds=0.1, clock=lambda: now).measure(PLANS[:2])
    wanted = [("loaded", PLANS[0]), ("loaded", PLANS[1]), ("loaded", PLANS[0])]
    assert seen[:4] == [*wanted, ("sampled", PLANS[0])]
    assert {what for what, _ in seen[3:]} == {"sampled"}


class Bench:
    """A stand-in for `Bench` whose times are shortest for tiles 160 columns wide."""

    def __init__(self, refuse: Callable[[Plan], bool] = lambda plan: False) -> None:
        self.refuse = refuse

    def start(self, plan: Plan, kernel: Any) -> None:
        assert kernel.plan.kernel == plan.kernel
        if self.refuse(plan):
            raise CodegenError("registers spill")

    def sample(self, plan: Plan) -> float:
        return 1e-5 * (1 + abs(plan.tile[1] - 160) / 320)

    sample_under_load = sample


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans passed to a stand-in for the compiler, which fails for tiles with 256 rows."""
    found: list[Plan] = []

    def kernel_of(plan: Plan, request: PlanRequest) -> Any:
        found.append(plan)
        if plan.tile[0] == 256:
            raise CoordGraphError("no such kernel")
        return SimpleNamespace(plan=plan)

    monkeypatch.setattr(tuning, "kernel_of", kernel_of)
    return found


def test_plans_are_searched(built: list[Plan]):
    batches: list[list[Plan]] = []
    steps: list[tuple[str, int, int]] = []
    found = tuning.find_fastest(
        REQUEST,
        Bench(),  # pyright: ignore[reportArgumentType]
        lambda plans: batches.append(list(plans)) or (),
        lambda step, done, of: steps.append((step, done, of)),
    )
    assert [plan for batch in batches for plan in batch] == built
    assert built[0] == rank(REQUEST.gemm, REQUEST.constants)[0].plan
    assert 8 < len(found) <= MOST_MEASURED
    assert found.keys() == {plan for plan in built if plan.tile[0] != 256}
    assert steps[-1] == ("measuring the fastest again", len(found), MOST_MEASURED)


def test_plans_ranked_by_public_figures_are_measured(built: list[Plan]):
    older = replace(REQUEST, target="sm_80", device="NVIDIA A100-SXM4-80GB", processors=108)
    found = tuning.find_fastest(older, Bench(), lambda plans: ())  # pyright: ignore[reportArgumentType]
    assert built == list(older.plans())
    assert found.keys() == {plan for plan in built if plan.tile[0] != 256}
    assert len(found) > 4


def test_plans_that_another_process_cannot_build_are_not_built_again(built: list[Plan]):
    found = tuning.find_fastest(
        REQUEST,
        Bench(),  # pyright: ignore[reportArgumentType]
        lambda plans: {plan for plan in plans if plan.cluster != (1, 1, 1)},
    )
    assert found
    assert all(plan.cluster == (1, 1, 1) for plan in built)


def test_plans_that_the_device_refuses_are_left_out(built: list[Plan]):
    bench = Bench(lambda plan: plan.cluster != (1, 1, 1))
    found = tuning.find_fastest(REQUEST, bench, lambda plans: ())  # pyright: ignore[reportArgumentType]
    assert found
    assert all(plan.cluster == (1, 1, 1) for plan in found)
    with pytest.raises(CodegenError, match="no plan can be built for sm_90a"):
        tuning.find_fastest(REQUEST, Bench(lambda plan: True), lambda plans: ())  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_workers_do_every_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Worker processes get every plan to compile, and `compile` returns even if they have died.

    The stand-in for a worker process only writes down the plans that it is given.
    """
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    monkeypatch.setattr(compile_workers, "MOST_WORKERS", 2)
    monkeypatch.setattr(compile_workers, "__name__", "tests.codegen.noting_worker")
    with CompileWorkers(REQUEST) as workers:
        workers.compile(PLANS[:2])
        # no process is started for 2 kernels, fewer than `LEAST_KERNELS`
        assert not workers.started
        refused = {plan for plan in PLANS if plan.tile[1] == REFUSED_COLUMNS}
        assert workers.compile(PLANS) == refused
        assert workers.compile(PLANS) == refused, "they are not tried again"
        assert 1 <= len(workers.started) <= 2
        noted = {path.read_text() for path in tmp_path.glob("noted*")}
        assert noted == {str(plan) for plan in PLANS[2:]}
        processes = list(workers.started)
        processes[0].kill()
        processes[0].wait()
        # `compile` returns although a process has ended; of the plans sent to it nothing is known.
        assert not workers.compile([Plan((64, columns, 64)) for columns in (64, 128, 192)])
    assert all(process.poll() is not None for process in processes)


@pytest.mark.slow
def test_workers_that_end_are_replaced_and_failures_of_the_device_refuse_no_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    monkeypatch.setattr(compile_workers, "__name__", "tests.codegen.noting_worker")
    sure = [Plan((64, columns, 64)) for columns in (8, 16, 24, 32, 40, 48)]
    failing = Plan((FAILING_ROWS, 64, 64))
    with CompileWorkers(REQUEST, most=1) as workers:
        assert not workers.compile([Plan((ENDING_ROWS, 64, 64)), failing, *sure])
        assert len(workers.started) == 2
        first, second = workers.started
        assert first.wait() == 1
        assert second.poll() is None
    noted = {path.read_text() for path in tmp_path.glob("noted*")}
    assert noted >= {str(plan) for plan in [failing, *sure]}


@pytest.mark.slow
def test_workers_do_not_start_for_kernels_in_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    monkeypatch.setattr(compile_workers, "__name__", "tests.codegen.noting_worker")

    def started(request: PlanRequest) -> bool:
        with CompileWorkers(request, most=1) as workers:
            workers.compile(PLANS[2:])
            return bool(workers.started)

    assert started(REQUEST)
    assert not started(REQUEST)
    assert started(replace(REQUEST, reads_c=True))


def test_workers_that_do_not_end_are_killed_together(monkeypatch: pytest.MonkeyPatch):
    def sleeper() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(compile_workers, "ENDING_SECONDS", 0.5)
    with CompileWorkers(REQUEST) as workers:
        workers.started += [sleeper() for _ in range(4)]
        processes, start = list(workers.started), time.monotonic()
    assert all(process.poll() is not None for process in processes)
    assert 0.5 <= time.monotonic() - start < 1.9, "the limit is for all processes together"


def test_without_a_cache_nothing_is_compiled_elsewhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    with CompileWorkers(REQUEST) as workers:
        workers.compile(PLANS)
        assert not workers.started


def test_operands_of_an_epilogue_are_passed():
    """Tuning passes every operand that an epilogue needs to the kernels: arrays and scalars."""

    @epilogue(bias="n", scale="")
    def scaled(acc: Any, bias: Any, scale: Any) -> Any:
        return acc * scale + bias

    views = {"A": matrix(64, 64, 1 << 30), "B": matrix(64, 64, 2 << 30)}
    bias = matrix(1, 64, 3 << 30, shape=(64,), strides=(1,))
    gemm = Gemm("bf16", "bf16", 64, 64, 64)
    assert other_operands(gemm, views) == {}
    own = replace(gemm, epilogue=scaled)
    assert other_operands(own, {**views, "bias": bias}) == {"bias": bias, "scale": 1}
    assert other_operands(own, {**views, "C": bias, "D": bias})["c"] is bias
