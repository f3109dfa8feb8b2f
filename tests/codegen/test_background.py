"""Calls that a loaded kernel serves while a better kernel is built in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import codegen
from codegen.call import background_compiler, build, compile_workers, matmul
from codegen.kernel import Kernel
from coordgraph import CodegenError, LaunchError
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix
from tests.codegen.test_walk import walking

LARGE, SMALL, MIDDLE = (
    "256x256x64 data-parallel",
    "32x32x32 data-parallel",
    "64x64x64 data-parallel",
)
"""The kernels of plans for the CPU: for sizes of 300, 20 and 50."""
LONG = 60.0
"""Seconds after which a test fails that waits for a kernel."""


class Builder:
    """A slow compiler: the background thread compiles only while `go` is set.

    Attributes:
        plans: the kernels that the background thread has started to compile.
        error: what it raises instead of compiling, by kernel.
    """

    def __init__(self) -> None:
        self.go, self.started = threading.Event(), threading.Event()
        self.plans: list[str] = []
        self.error: dict[str, Exception] = {}

    def finish(self) -> None:
        """Let the background thread build all kernels that wait."""
        self.go.set()
        assert background_compiler.wait(LONG)
        self.go.clear()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, forgotten: None) -> Iterator[Builder]:
    """Compile in the background thread, which waits for the test; without a worker process."""
    slow, compile_plan = Builder(), build.compile_plan

    def compiled(plan: Any, *arguments: Any, **options: Any) -> Kernel:
        if threading.current_thread().name == background_compiler.THREAD:
            slow.plans.append(plan.kernel)
            slow.started.set()
            assert slow.go.wait(LONG)
            if plan.kernel in slow.error:
                raise slow.error[plan.kernel]
        return compile_plan(plan, *arguments, **options)

    def no_process(nice: int) -> Any:
        raise OSError

    monkeypatch.setattr(build, "compile_plan", compiled)
    monkeypatch.setattr(background_compiler, "start_worker", no_process)
    yield slow
    slow.finish()


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


def test_a_loaded_kernel_serves_until_the_better_one_is_built(slow: Builder, used: list[str]):
    product(300)  # nothing is built yet, so this call waits for the compiler
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
    product(300)
    product(20)
    for background in (None, False):  # a call without the option is not served by another kernel
        product(50, background)
    slow.finish()
    assert used == [LARGE, LARGE, MIDDLE, MIDDLE]
