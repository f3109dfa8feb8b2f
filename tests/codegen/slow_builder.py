"""A stand-in for the background compiler, which compiles only while a test allows it."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from codegen.call import background_compiler, build
from codegen.kernel import Kernel

__all__ = ["LONG", "Builder", "slow_builder"]

LONG = 60.0
"""Seconds that a test waits for a kernel before it fails."""


class Builder:
    """A slow compiler: the background thread compiles only while `go` is set.

    Attributes:
        plans: the kernels that the background thread has started to compile, as texts such as
            `64x64x64 data-parallel`.
        error: by the text of a kernel, the exception that the compiler raises for this kernel.
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


@contextmanager
def slow_builder(monkeypatch: pytest.MonkeyPatch) -> Generator[Builder]:
    """Make the background thread compile in this process, but only while the test lets it."""
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
