"""CPU kernels of wrong graphs end with a LaunchError: deadlocks, indices out of bounds, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import codegen
from codegen.targets.cpu import HostKernel
from codegen.targets.cpu.threads import run_on_threads
from coordgraph import Gemm, KernelGraph, LaunchError, parse
from coordgraph.control.operations import Body, Operation, SendPartial
from passes import DataParallel, Pass, StreamK
from tests.codegen.cpu.kernels import Problem
from tests.passes.schedules import SCHEDULES, symbolic
from tests.passes.test_scatter import changed

# A kernel that hangs is in native code, so only the timeout of another thread can end the test.
pytestmark = pytest.mark.timeout(120, method="thread")

A, B = np.ones((16, 100), np.float32), np.ones((100, 8), np.float32)


def scheduled(schedule: Pass) -> KernelGraph:
    return schedule(Gemm("f32").graph(tile=(8, 8, 8)))


@pytest.mark.parametrize("threads", [1, 2, 6])
def test_a_partial_that_nobody_sends_is_a_deadlock(threads: int):
    def silent(op: Operation) -> Operation | Body:
        return () if isinstance(op, SendPartial) else op

    kernel = HostKernel(changed(scheduled(StreamK(workgroups=6)), silent))
    with pytest.raises(
        LaunchError, match=r"workgroup 2 waits for the partial of output tile \(1, 0\)"
    ):
        kernel(A, B, threads=threads)


def test_a_wait_that_ends_late_is_no_deadlock():
    """With more threads than processors most threads wait for a long time, but not for ever."""
    kernel = HostKernel(symbolic("stream-k{reduction=turnstile}"))
    for _ in range(5):
        Problem(kernel, 10, 30, 24 * 40).check(workgroups=40, threads=40)


TEXT = str(scheduled(StreamK(workgroups=6)))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "strides=(k, 1)",
            "strides=(k + 9, 1)",
            r"along 'A' is outside A, which has the indices 0",
        ),
        ("strides=(n, 1)", "strides=(-n, 1)", r"index -\d+ along '[BCD]' is outside"),
        ("tensor partials f32 [6, 8, 8]", "tensor partials f32 [1, 8, 8]", "outside partials"),
        ("tensor flags i32 [6]", "tensor flags i32 [1]", "outside flags"),
    ],
)
def test_an_index_out_of_bounds_ends_a_guarded_launch(old: str, new: str, why: str):
    assert old in TEXT
    kernel = codegen.compile(parse(TEXT.replace(old, new)), "cpu", debug=True, verify=False)
    for threads in (1, 4):
        with pytest.raises(LaunchError, match=why):
            kernel(A, B, threads=threads)


GUARDED = [
    "two-tile-stream-k{owner=last,first=dp}",
    "stream-k{reduction=scatter}",
]


@pytest.mark.parametrize(
    "name", [n if n in GUARDED else pytest.param(n, marks=pytest.mark.slow) for n in SCHEDULES]
)
def test_guards_refuse_nothing_that_is_right(name: str):
    kernel = HostKernel(symbolic(name), debug=True)
    for beta in (0.0, 0.5):
        Problem(kernel, 61, 95, 140, 1.5, beta).check(workgroups=7, threads=2)


def test_a_batch_with_gaps_between_matrices_is_in_bounds():
    kernel = HostKernel(DataParallel()(Gemm("f32", batched=True).graph((8, 8, 8))), debug=True)
    a = np.arange(6 * 5 * 7, dtype=np.float32).reshape(6, 5, 7)
    b = np.ones((3, 7, 4), np.float32)
    assert np.array_equal(kernel(a[::2], b), a[::2] @ b)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Use Python's own SIGINT handler, since shells make background jobs ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_for_all_threads():
    """Ctrl-C calls `stop`, and KeyboardInterrupt is raised only when no thread works any more."""
    begun, stopped = threading.Barrier(4), threading.Event()
    ended: list[int] = []

    def work(thread: int) -> None:
        begun.wait()
        if thread == 0:
            os.kill(os.getpid(), signal.SIGINT)
        stopped.wait(20)
        time.sleep(0.05 * thread)
        ended.append(thread)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_on_threads(work, 4, stopped.set)
    assert sorted(ended) == [0, 1, 2, 3]
    assert signal.getsignal(signal.SIGINT) is before


INTERRUPTED = """
    import os, signal, threading, time
    import numpy as np
    from codegen.targets.cpu import HostKernel
    from tests.passes.schedules import symbolic

    signal.signal(signal.SIGINT, signal.default_int_handler)
    kernel = HostKernel(symbolic("stream-k"))
    a, b, out = np.ones((64, 20000), "f4"), np.ones((20000, 96), "f4"), np.empty((64, 96), "f4")
    kernel(a, b, out=out, workgroups=32, threads=8)
    caught = 0
    for number in range(0, 12, {step}):
        delay = number * 5e-4
        try:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
            end = time.monotonic() + 10
            while time.monotonic() < end:
                kernel(a, b, out=out, workgroups=32, threads=8)
        except KeyboardInterrupt:
            out[...] = 7
            time.sleep(0.01)
            assert (out == 7).all(), "a thread still writes"
            caught += 1
    assert (kernel(a, b, workgroups=32, threads=8) == 20000).all()
    print("caught", caught)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("step", "caught"), [(3, 4), pytest.param(1, 12, marks=pytest.mark.slow)])
def test_nothing_is_written_after_an_interrupt(step: int, caught: int):
    code = [sys.executable, "-c", textwrap.dedent(INTERRUPTED).replace("{step}", str(step))]
    done = subprocess.run(code, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, f"caught {caught}\n"), done.stderr
