"""Calls that a loaded kernel serves while a better kernel is built in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import codegen
from codegen.call import background_compiler, build, matmul
from codegen.call.request import PlanRequest
from codegen.targets.cpu import host_build
from codegen.targets.cpu.code import host_code
from coordgraph import CodegenError, Gemm, LaunchError
from passes.choosing import Plan
from tests.codegen.slow_builder import LONG, Builder
from tests.codegen.test_walk import walking

SIDES = (256, 64), (32, 32), (64, 64)
LARGE, SMALL, MIDDLE = (f"{side}x{side}x{deep} data-parallel" for side, deep in SIDES)
"""The plans that are chosen on the CPU for square matrices of extents 300, 20 and 50."""


def product(extent: int, background: bool | None = True) -> None:
    """Multiply matrices of ones, and check the result."""
    ones = np.ones((extent, extent), np.float32)
    assert (codegen.matmul(ones, ones, background=background) == extent).all()


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plans of all launches on the CPU, in order."""
    from codegen.targets.cpu import HostKernel

    found: list[str] = []
    launch = HostKernel.__call__

    def noted(kernel: HostKernel, *arguments: Any, **options: Any) -> Any:
        found.append(kernel.title)
        return launch(kernel, *arguments, **options)

    monkeypatch.setattr(HostKernel, "__call__", noted)
    return found


pytestmark = pytest.mark.usefixtures("forgotten")


def test_a_loaded_kernel_serves_until_the_better_one_is_built(slow: Builder, used: list[str]):
    product(300)  # no kernel is built yet, so this call waits for the compiler
    assert slow.plans == []
    for _ in range(2):
        product(20)
    assert used == [LARGE] * 3
    slow.finish()
    for _ in range(2):
        product(20)
    assert used[3:] == [SMALL] * 2
    assert slow.plans == [SMALL]


def test_the_option_is_off_by_default(slow: Builder, used: list[str]):
    """A call without background=True waits until its kernel is built; no kernel is built twice."""
    product(300)
    product(50, None)
    product(20)
    assert slow.started.wait(LONG)
    with ThreadPoolExecutor(1) as pool:
        waiting = [pool.submit(product, 20, background) for background in (None, False)]
        assert not any(each.done() for each in waiting)
        slow.finish()
        for each in waiting:
            each.result()
    assert used == [LARGE, MIDDLE, MIDDLE, SMALL, SMALL]
    assert slow.plans == [SMALL]


def test_a_repeated_call_costs_the_same(slow: Builder):
    """A repeated call enters the same functions, whether or not its best kernel is built."""
    product(300)
    with walking() as usual:
        product(300)
    product(20)
    with walking() as served:
        product(20)
    slow.finish()
    product(20)
    with walking() as better:
        product(20)
    assert usual.functions == served.functions == better.functions


def test_the_process_wide_setting(slow: Builder, used: list[str], monkeypatch: pytest.MonkeyPatch):
    product(300)
    with codegen.background_builds():
        product(20, None)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(product, 50, None).result()
    monkeypatch.setenv("COORDGRAPH_BACKGROUND", "1")
    product(21, None)
    assert used == [LARGE] * 4
    slow.finish()
    monkeypatch.setenv("COORDGRAPH_BACKGROUND", "0")
    product(100, None)
    assert used[4:] == ["128x128x64 data-parallel"]
    assert slow.plans == [SMALL, MIDDLE]
    monkeypatch.setenv("COORDGRAPH_BACKGROUND", "yes")
    product(23, True)
    with pytest.raises(CodegenError, match="COORDGRAPH_BACKGROUND = 'yes' is neither 0 nor 1"):
        product(24, None)
    with pytest.raises(LaunchError, match="background = 'yes'"):
        product(24, "yes")  # type: ignore[arg-type]


def test_calls_with_a_plan_wait_for_it(slow: Builder, used: list[str]):
    product(300)
    ones = np.ones((20, 20), np.float32)
    codegen.matmul(ones, ones, plan="16x16x16 data-parallel", background=True)
    assert used == [LARGE, "16x16x16 data-parallel"]
    assert slow.plans == []


@pytest.mark.slow
def test_batches_groups_and_epilogues(slow: Builder, used: list[str]):
    """A call never uses a kernel of another kind of problem: single, batched or grouped."""
    ones, offsets = np.ones((40, 40), np.float32), np.array([0, 20, 40], np.int32)
    for _ in range(2):
        codegen.matmul(ones, ones, np.ones((40, 40), np.float32), beta=1.0, background=True)
        codegen.matmul(np.stack([ones] * 2), np.stack([ones] * 2), background=True)
        codegen.grouped_matmul(ones, np.stack([ones] * 2), offsets, background=True)
    assert slow.plans == []
    first = used[:3]
    assert used == first * 2
    few, of_two = np.ones((2, 9, 9), np.float32), np.array([0, 4, 9], np.int32)
    codegen.grouped_matmul(few[0], few, of_two, background=True)
    codegen.matmul(few, few, background=True)
    assert used[6:] == [first[2], first[1]]
    slow.finish()
    codegen.matmul(few, few, background=True)
    assert used[8] == "16x16x16 data-parallel"


@pytest.mark.parametrize("error", [CodegenError("no registers"), OSError("no memory")])
def test_a_kernel_that_cannot_be_built(slow: Builder, used: list[str], error: Exception):
    """A build that fails in the background is reported once and not repeated; calls still work."""
    product(300)
    slow.error[SMALL] = error
    product(20)
    with pytest.warns(RuntimeWarning, match=f"'{SMALL}' cannot be built.*{error}") as found:
        slow.finish()
    assert len(found) == 1
    for _ in range(2):
        product(20)
        product(21)
    assert used == [LARGE] * 6
    assert slow.plans == [SMALL]
    with pytest.raises(CodegenError, match=str(error)):
        product(20, False)


def test_threads_share_one_build(slow: Builder, used: list[str]):
    product(300)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(product, [20, 21, 20, 22, 23, 20, 21, 24]))
    assert used == [LARGE] * 9
    slow.go.set()
    deadline = time.monotonic() + LONG
    with ThreadPoolExecutor(8) as pool:
        while used[-1] != SMALL:
            assert time.monotonic() < deadline
            list(pool.map(product, [20, 21, 22, 23]))
    assert slow.plans == [SMALL]
    slow.finish()
    for extent in (20, 21, 22, 23, 24):
        product(extent)
    assert used[-5:] == [SMALL] * 5


def test_calls_are_served_while_another_kernel_is_compiled(slow: Builder, used: list[str]):
    """The compiler's lock, which the background thread holds, delays no call that is served."""
    product(300)
    product(20)
    assert slow.started.wait(LONG)  # the thread compiles, and waits for this test
    product(50)
    product(301, None)
    assert used == [LARGE] * 4
    assert build.known(Plan.parse(SMALL), PlanRequest(Gemm("f32"), "cpu")) is None


def test_the_queue_is_bounded(slow: Builder, used: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background_compiler, "MOST_WAITING", 1)
    product(300)
    product(20)
    product(50)
    slow.finish()
    assert slow.plans == [SMALL]
    product(50)  # requests the kernel again: the queue has room
    slow.finish()
    product(50)
    assert slow.plans == [SMALL, MIDDLE]
    assert used == [LARGE, LARGE, LARGE, SMALL, MIDDLE]


def test_the_kernel_with_the_least_padding_serves(slow: Builder, used: list[str]):
    """On a CPU, which has no cost model, the loaded kernel with the least padding is used.

    A kernel that adds partial sums atomically serves only calls whose argument `plan` names it.
    """
    ones = np.ones((300, 300), np.float32)
    codegen.matmul(ones, ones, plan="16x16x16 split-k{splits=2,reduction=atomic}")
    product(300)
    product(50, False)
    product(20)
    assert used[1:] == [LARGE, MIDDLE, MIDDLE]


def test_a_process_compiles(used: list[str], monkeypatch: pytest.MonkeyPatch):
    """A worker process stores the kernel in the cache on disk, and this process only loads it."""
    monkeypatch.setattr(background_compiler, "IDLE", 0.1)
    # The worker process optimises fully, so this process must ask for the same code.
    monkeypatch.setattr(host_build, "host_code", host_code)
    large, small = np.ones((300, 300)), np.ones((20, 20))
    request = PlanRequest(Gemm("f64"), "cpu")
    codegen.matmul(large, large)
    codegen.matmul(small, small, background=True)
    assert background_compiler.wait(LONG)
    made = build.built(request)[SMALL]
    assert made.from_cache
    codegen.matmul(small, small, background=True)
    assert used == [LARGE, LARGE, SMALL]
    # All kernels in memory are dropped, so the next calls load them from disk, as a new process
    # would.
    matmul.forget()
    codegen.matmul(large, large)
    codegen.matmul(small, small, background=True)
    assert used[3:] == [LARGE, SMALL]
    deadline = time.monotonic() + LONG
    # The thread ends when it is idle, and ends its worker process too.
    while background_compiler._compiler._thread is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert background_compiler._compiler._worker is None


ENDING = """
import sys, threading, time
import numpy as np
import codegen
from codegen.call import background_compiler as compiler, build

def slow(*arguments, **options):
    started.set()
    time.sleep(60)

one, few = np.ones((300, 300), np.float32), np.ones((20, 20), np.float32)
codegen.matmul(one, one)
started = threading.Event()
if sys.argv[1] == "thread":
    build.compile_plan = slow
codegen.matmul(few, few, background=True)
if sys.argv[1] == "thread":
    started.wait()
while sys.argv[1] == "process" and compiler._compiler._worker is None:
    time.sleep(0.01)
worker = compiler._compiler._worker
print(worker and worker.pid, time.time())
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["thread", "process"])
def test_the_end_of_the_program_does_not_wait(where: str, tmp_path: Path):
    """At exit, the background thread and the worker process end without delaying the program."""
    environment = os.environ | {"COORDGRAPH_CACHE": "off" if where == "thread" else str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ENDING, where],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG,
    )
    ended = time.time()
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    process, at = done.stdout.split()
    assert ended - float(at) < 5
    if where == "process":
        with pytest.raises(ProcessLookupError):
            os.kill(int(process), 0)


FORKED = """
import os, threading, warnings
import numpy as np
import codegen
from codegen.call import background_compiler as compiler, build

def product(extent):
    ones = np.ones((extent, extent), np.float32)
    assert (codegen.matmul(ones, ones, background=True) == extent).all()

product(300)
product(20)  # starts the thread
warnings.simplefilter("ignore")  # Python advises against a fork of a process with threads
held, done = threading.Event(), threading.Event()

def hold():  # as the thread does when it compiles
    with build._lock:
        held.set()
        done.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
done.set()
if not child:
    product(50)
    built = compiler.wait(60)
    product(50)
    os._exit(0 if built and len(build._kernels) == 2 else 1)
assert os.waitpid(child, 0)[1] == 0
assert compiler.wait(60) and len(build._kernels) == 2
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_a_thread_of_its_own(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        env=os.environ
        | {"COORDGRAPH_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * LONG,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_batch_invariant_calls_are_served_in_their_order(slow: Builder, used: list[str]):
    """A loaded kernel serves a call with `invariant=True` only if it adds in such calls' order."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((300, 500), (500, 40)))
    few = a[:9].copy()
    expected = codegen.matmul(a, b, invariant=True)
    codegen.matmul(few, b, plan="16x16x16 split-k{splits=2}")
    for background in (True, False):
        found = codegen.matmul(few, b, invariant=True, background=background)
        assert np.array_equal(found, expected[:9])
        slow.go.set()
    assert used[2] == used[0] != used[3]
