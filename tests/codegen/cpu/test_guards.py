"""CPU kernels end without a crash: wrong graphs by a LaunchError, long launches by Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import codegen
from codegen.targets.cpu import HostKernel
from codegen.targets.cpu.threads import run_on_threads
from coordgraph import Gemm, KernelGraph, LaunchError, parse
from coordgraph.control.operations import Body, Operation, SendPartial
from passes import DataParallel, Pass, Pipeline, StreamK
from tests.codegen.cpu.kernels import Problem
from tests.passes.schedules import SCHEDULES, symbolic
from tests.passes.test_scatter import changed
from tests.support.sampling import quick_cases

# A kernel that hangs is in native code, which only pytest-timeout's method `thread` can end.
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
    """A long wait is not reported as a deadlock.

    With 40 threads on fewer processors, most threads wait for a long time, but their waits end.
    """
    kernel = HostKernel(symbolic("stream-k{reduction=turnstile}"))
    for _ in range(5):
        Problem(kernel, 10, 30, 24 * 40).check(workgroups=40, threads=40)


TEXT = str(scheduled(StreamK(workgroups=6)))


@quick_cases(3)
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


@quick_cases(1)
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
    """On Ctrl-C, `run_on_threads` calls `stop`, and raises only after all threads have ended."""
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("step", "caught"), [(3, 4), pytest.param(1, 12, marks=pytest.mark.slow)])
def test_nothing_is_written_after_an_interrupt(step: int, caught: int):
    code = [sys.executable, "-c", textwrap.dedent(INTERRUPTED).replace("{step}", str(step))]
    done = subprocess.run(code, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, f"caught {caught}\n"), done.stderr


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "k_first value=(share*workgroup + for_tile) % tiles_k",
            "k_first value=(share*workgroup + for_tile) % (tiles_k - 13)",
            "a division by 0; divisors must be positive",
        ),
        (
            "For dim=for_tile start=0 ",
            "For dim=for_tile start=-40 ",
            r"the dividend -\d+ is negative",
        ),
        ("start=0 stop=k_count", "start=-9223372036854775807 stop=-9223372036854775800", "outside"),
    ],
)
def test_divisions_by_zero_and_indices_that_wrap_end_a_guarded_launch(old: str, new: str, why: str):
    assert old in TEXT
    kernel = codegen.compile(parse(TEXT.replace(old, new)), "cpu", debug=True, verify=False)
    with pytest.raises(LaunchError, match=why):
        kernel(np.ones((32, 100), np.float32), B)


@pytest.mark.slow
def test_a_division_by_zero_without_guards_does_not_end_the_process():
    """Kernels without checks of indices divide by 1 if a divisor is 0.

    On x86, a division by 0 would end the process by SIGFPE.
    """
    text = TEXT.replace("for_tile) % tiles_k\n", "for_tile) % (tiles_k - 13)\n")
    assert text != TEXT
    code = textwrap.dedent(f"""
        import numpy as np, codegen
        from coordgraph import CoordGraphError, parse
        kernel = codegen.compile(parse({text!r}), "cpu", verify=False)
        try:
            kernel(np.ones((8, 100), "f4"), np.ones((100, 8), "f4"), threads=1)
        except CoordGraphError:
            pass
        print("alive")
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


LISTS = Gemm("f32", grouped=True, group_axis="mnk")


def test_an_index_outside_a_table_ends_a_guarded_launch():
    text = str(StreamK(workgroups=2)(LISTS.graph(tile=(8, 8, 8))))
    old = "load(k_tile_starts, group + 1) - k_first"
    assert old in text
    wrong = parse(text.replace(old, "load(k_tile_starts, group + 5) - k_first"))
    kernel = codegen.compile(wrong, "cpu", debug=True, verify=False)
    offsets = np.array([[0, 8, 16]] * 3, np.int32)
    flat = np.ones(128, np.float32)
    with pytest.raises(LaunchError, match=r"entry [56] of the table 'k_tile_starts' is read"):
        kernel(flat, flat, out=np.empty(128, np.float32), offsets=offsets)


def test_a_graph_from_text_is_guarded_until_a_launch_with_its_sizes_was_good():
    kernel = codegen.compile(parse(TEXT), "cpu")
    assert isinstance(kernel, HostKernel)
    used: list[str] = []

    def watch(name: str) -> None:
        build = getattr(kernel, name)

        def run(*args: object) -> None:
            used.append(name)
            build.run(*args)

        vars(kernel)[name] = replace(build, run=run)

    watch("_guarded")
    watch("_plain")
    for _ in range(2):
        assert (kernel(A, B, threads=1) == 100).all()
    assert used == ["_guarded", "_plain"]
    assert (kernel(A[:8], B, threads=1) == 100).all()
    assert used[2:] == ["_guarded"], "other sizes have other addresses"


def test_code_for_foreign_graphs_has_no_undefined_overflow():
    """CPU code for a graph that this library did not make has no addition with the flag `nuw`.

    The graph may be wrong, and then such an addition may overflow, which is undefined.
    """
    for watched, some in ((False, True), (True, False)):
        kernel = HostKernel(parse(TEXT), watched=watched)
        assert (" nuw " in kernel.llvm_ir) is some


def test_a_launch_that_failed_stays_guarded():
    """After a launch with an error, later launches still check every index.

    The graph passes the checks, but its workspace is too small for some sizes.
    """
    wrong = parse(TEXT.replace("tensor partials f32 [6, 8, 8]", "tensor partials f32 [1, 8, 8]"))
    kernel = HostKernel(wrong, watched=True)
    for _ in range(2):
        with pytest.raises(LaunchError, match="outside partials"):
            kernel(A, B, threads=1)


def test_graphs_of_the_library_are_not_guarded():
    kernel = codegen.compile(scheduled(StreamK(workgroups=6)), "cpu")
    assert "_guarded" not in kernel.__dict__
    kernel(A, B)
    assert "_guarded" not in kernel.__dict__


LONG = """
    import os, signal, threading, time
    import numpy as np
    from codegen.targets.cpu import HostKernel
    from coordgraph import Gemm
    from passes import DataParallel

    signal.signal(signal.SIGINT, signal.default_int_handler)
    kernel = HostKernel(DataParallel()(Gemm("f32").graph((64, 64, 32))))
    deep = 1 << 19
    a, b, out = np.ones((64, deep), "f4"), np.ones((deep, 64), "f4"), np.empty((64, 64), "f4")

    kernel(a, b, out=out, threads={threads})
    start = time.process_time()
    kernel(a, b, out=out, threads={threads})
    took = time.process_time() - start
    threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.process_time()
    try:
        while True:
            kernel(a, b, out=out, threads={threads})
    except KeyboardInterrupt:
        spent = time.process_time() - start
    out[...] = 7
    time.sleep(0.05)
    assert (out == 7).all(), "a thread still writes"
    assert spent < took / 2, (spent, took)
    print("interrupted")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_one_long_workgroup(threads: int):
    """Ctrl-C ends a launch of one workgroup with a long k: the loop over k tiles tests a flag."""
    code = [sys.executable, "-c", textwrap.dedent(LONG).replace("{threads}", str(threads))]
    done = subprocess.run(code, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


@quick_cases(1)
@pytest.mark.parametrize(
    ("schedule", "gemm", "more"),
    [
        ("stream-k", {}, ("(m + 3) // 4", "m - 1")),
        ("stream-k{workgroups=3}", {}, ("(m + 3) // 4", "(m + 64) // 4")),
        ("split-k{splits=2}", {}, ("(k + 3) // 4", "(k + 64) // 4")),
        ("data-parallel{persistent=true}", {"grouped": True}, ("(n + 3) // 4", "n + 7")),
    ],
)
def test_tiles_past_the_end_of_a_tensor_are_empty(
    schedule: str, gemm: dict[str, Any], more: tuple[str, str]
):
    """A graph may have more tiles than D needs; CPU kernels skip tiles past a tensor's end."""
    text = Pipeline.parse(schedule)(Gemm("f32", **gemm).graph((4, 4, 4))).text()
    assert more[0] in text
    kernel = HostKernel(parse(text.replace(*more)), debug=True)
    a, b = (np.arange(size, dtype=np.float32).reshape(shape) % 5 for size, shape in SHAPES)
    tables: dict[str, Any] = {"offsets": np.array([0, 6], np.int32)} if gemm else {}
    d = kernel(a, b[None] if gemm else b, threads=2, **tables)
    assert np.array_equal(d, a @ b)


SHAPES = ((6 * 5, (6, 5)), (5 * 7, (5, 7)))
