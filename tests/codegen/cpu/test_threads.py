"""CPU threads: launches end, results are equal for every thread count, flags end at zero."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from codegen.targets.cpu import runtime
from codegen.targets.cpu import threads as pool
from codegen.targets.cpu.order import starting_order
from codegen.targets.cpu.threads import VARIABLE, run_on_threads, thread_count
from coordgraph import LaunchError
from coordgraph.interpreter import trace
from coordgraph.progress import wait_direction
from tests.codegen.cpu.kernels import EVERY_SCHEDULE, Problem, kernel
from tests.passes.schedules import CORNERS, parameters, symbolic
from tests.support.sampling import chosen, cover, quick_cases

# A kernel that hangs is in native code, which only pytest-timeout's method `thread` can end.
pytestmark = pytest.mark.timeout(240, method="thread")

WAITING = [
    "stream-k",
    "stream-k{owner=last}",
    "two-tile-stream-k{owner=last,first=dp}",
    "stream-k{reduction=atomic}",
    "stream-k{owner=last,reduction=atomic}",
]


@quick_cases(3)
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", EVERY_SCHEDULE)
def test_two_runs_give_the_same_bits_on_any_number_of_threads(name: str, times: int):
    problem = Problem(kernel(name), 61, 95, 140)
    first = problem.check(workgroups=7, threads=1)
    for threads in (1, 2, 5):
        for _ in range(times):
            # the order of atomic additions, and so the last bits, differ from run to run
            if "atomic" in name:
                problem.check(workgroups=7, threads=threads)
                continue
            assert np.array_equal(problem.run(workgroups=7, threads=threads), first)


@quick_cases(2)
@pytest.mark.parametrize(("name", "threads"), cover(0, product(WAITING, [1, 2, 3])))
def test_one_tile_in_many_pieces(name: str, threads: int):
    """A launch ends with the right D if 40 workgroups divide one tile, on one to three threads.

    Each workgroup waits for another one or sends a partial sum to another one.
    """
    Problem(kernel(name), 10, 30, 24 * 40, 1.0, 1.0).check(workgroups=40, threads=threads)


@pytest.mark.parametrize("name", WAITING)
@pytest.mark.parametrize("direction", ["found", "mixed"])
def test_workgroups_start_after_those_that_they_wait_for(name: str, direction: str):
    graph = symbolic(name)
    waits = wait_direction(graph) if direction == "found" else "mixed"
    for problem in CORNERS.values():
        given = parameters(graph, problem)
        count = given["workgroups"]
        order = starting_order(graph, waits, count, given)
        place = np.argsort(np.arange(count) if order is None else order)
        assert sorted(place) == list(range(count))
        for waiting, signals in trace(graph, given).wait_edges():
            assert place[signals] < place[waiting]


@pytest.mark.parametrize("name", chosen(WAITING[::2], WAITING))
def test_a_topological_order_runs(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runtime, "wait_direction", lambda graph: "mixed")
    code = runtime.HostKernel(symbolic(name))
    for threads in (1, 2):
        Problem(code, 13, 17, 90, 1.0, 1.0).check(workgroups=9, threads=threads)


def test_flags_are_zero_again():
    code = kernel("stream-k")
    Problem(code, 20, 60, 300).check(workgroups=9)
    (kept,) = (w for free in code._workspaces._free.values() for w in free)
    assert not kept.tensors["flags"].any()
    assert len(kept.tensors["flags"]) == 9 * 4


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_sums_are_zero_again(dtype: str):
    """The workspace of atomic sums is zero after a launch, also where sums were NaN or infinite."""
    code = kernel("stream-k{owner=last,reduction=atomic}", dtype=dtype)
    problem = Problem(code, 20, 60, 300)
    problem.check(workgroups=9, threads=3)
    (kept,) = (w for free in code._workspaces._free.values() for w in free)
    assert kept.zeroed == ("partials", "flags")
    problem.a[3, 5], problem.b[7, 11] = np.nan, np.inf
    assert np.isnan(problem.run(workgroups=9)).any()
    assert not any(tensor.any() for tensor in kept.tensors.values())


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("stream-k", "flags"),
        ("stream-k{reduction=atomic}", "flags"),
        ("stream-k{reduction=atomic}", "partials"),
    ],
)
def test_what_is_not_zero_again_is_an_error(name: str, tensor: str):
    code = runtime.HostKernel(symbolic(name))
    problem = Problem(code, 20, 60, 30)
    problem.check(workgroups=3)
    ((kept,),) = code._workspaces._free.values()
    kept.tensors[tensor][-1] = 1
    with pytest.raises(LaunchError, match="is not zero"):
        problem.run(workgroups=3)
    problem.check(workgroups=3)


def test_one_kernel_called_from_many_threads():
    problems = [Problem(kernel("stream-k"), 20 + i, 60, 200) for i in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda p: [p.check(workgroups=5) for _ in range(5)], problems))


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert thread_count(None) >= 1
    monkeypatch.setenv(VARIABLE, "3")
    assert thread_count(None) == 3
    assert thread_count(2) == 2
    for wrong in ("0", "many"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(LaunchError, match=VARIABLE):
            thread_count(None)


def test_every_thread_works_at_the_same_time():
    """`run_on_threads` runs all threads at the same time: here each waits for the others."""
    together = threading.Barrier(4, timeout=30)

    def work(thread: int) -> None:
        together.wait()

    run_on_threads(work, 4)
    assert not together.broken


def test_a_thread_that_cannot_be_started_is_an_error_and_its_call_never_happens(
    monkeypatch: pytest.MonkeyPatch,
):
    queued: list[Callable[[], None]] = []

    class Full:
        """A pool that cannot start a thread: `submit` queues the call, then fails."""

        def submit(self, call: Callable[[], None]) -> None:
            queued.append(call)
            raise RuntimeError("can't start new thread")

    called: list[int] = []
    stopped: list[bool] = []
    monkeypatch.setattr(pool, "_helpers", Full)
    with pytest.raises(LaunchError, match="thread 0 of 3 cannot be started"):
        run_on_threads(called.append, 3, lambda: stopped.append(True))
    assert stopped
    for call in queued:  # a worker thread that becomes free later takes the call from the queue
        call()
    assert not called
