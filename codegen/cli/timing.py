"""Launch a kernel on host arrays: for the result, to warm up, then repeatedly to time it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from codegen.cli.check import Inputs
from codegen.kernel import Kernel
from codegen.timeline import Timeline

__all__ = ["Launched", "launch", "traced"]

Array = npt.NDArray[Any]
Progress = Callable[[float], None]
"""A function to call with the fraction of the work that is done, from 0 to 1."""

MOST_REPEATS, BUDGET_SECONDS = 20, 2.0
"""Limits of the number of timed launches and of their total seconds, if the caller gives no number
of launches."""
FLUSH_BYTES, FLUSHES = 256 << 20, 4
"""FLUSH_BYTES: size of the memory that is written before each timed launch on a GPU, which is more
than the L2 cache holds. FLUSHES: how often this memory is written, which takes longer than the host
needs to enqueue a launch.
"""


@dataclass(frozen=True)
class Launched:
    """D of the first launch, and the seconds of each timed launch.

    The first launch is timed only if it is the only one.
    """

    d: Array
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median duration of the timed launches, in seconds."""
        return statistics.median(self.seconds)


def launch(
    kernel: Kernel,
    inputs: Inputs,
    out: Array,
    repeat: int | None,
    progress: Progress = lambda done: None,
    **given: Any,
) -> Launched:
    """Launch a kernel once to write D to `out`, a second time to warm up, then time more launches.

    The second launch is not timed either, because it may compile: if other code than the passes of
    this library made the graph, the first launch runs a kernel that checks every index, and the
    second launch compiles a kernel without these checks. If `repeat` is None and the first
    launch of a CPU kernel takes longer than `BUDGET_SECONDS`, the first launch is timed, and is the
    only one.

    Args:
        kernel: the kernel.
        inputs: A, B, C, alpha and beta.
        out: the array for D.
        repeat: the number of launches to time; None for up to 20 within two seconds.
        progress: called after each launch with the elapsed fraction of the time limit, 0 to 1.
        given: further arguments of the kernel's call, such as `workgroups`.
    """
    if kernel.target.startswith("sm_"):
        return _on_gpu(kernel, inputs, out, repeat, progress, given)
    scratch = out.copy()
    if inputs.offsets is not None:
        given["offsets"] = inputs.offsets

    def run(into: Array) -> None:
        kernel(inputs.a, inputs.b, inputs.c, into, inputs.alpha, inputs.beta, **given)

    def timed() -> float:
        start = time.perf_counter()
        run(scratch)
        return time.perf_counter() - start

    first = time.perf_counter()
    run(out)
    once = time.perf_counter() - first
    if repeat is None and once > BUDGET_SECONDS:
        return Launched(out, (once,))
    run(scratch)
    return Launched(out, _repeated(timed, repeat, progress))


def _repeated(
    timed: Callable[[], float], repeat: int | None, progress: Progress
) -> tuple[float, ...]:
    seconds: list[float] = []
    start, done = time.perf_counter(), 0.0
    while done < 1:
        seconds.append(timed())
        done = len(seconds) / (repeat or MOST_REPEATS)
        if repeat is None:
            done = max(done, (time.perf_counter() - start) / BUDGET_SECONDS)
        progress(done)
    return tuple(seconds)


def _on_gpu(
    kernel: Kernel,
    inputs: Inputs,
    out: Array,
    repeat: int | None,
    progress: Progress,
    given: dict[str, Any],
) -> Launched:
    """Launch a kernel on the first GPU; time it by CUDA events, with a flushed L2 cache."""
    from codegen.targets.nvptx.driver import cuda, device
    from codegen.targets.nvptx.memory import DeviceMemory

    with DeviceMemory(device(0)) as memory:
        a, b = memory.upload(inputs.a), memory.upload(inputs.b)
        c = None if inputs.c is None else memory.upload(inputs.c)
        d, scratch = memory.upload(out), memory.upload(out)
        if inputs.offsets is not None:
            given["offsets"] = memory.upload(inputs.offsets)

        def run(into: Any) -> None:
            kernel(a, b, c, into, inputs.alpha, inputs.beta, stream=0, **given)

        run(d)
        found = np.empty_like(out)
        memory.download(d, found)
        flush = memory.allocate(FLUSH_BYTES)
        before, after = cuda("cuEventCreate", 0), cuda("cuEventCreate", 0)

        def timed() -> float:
            # The host enqueues the launch while the GPU flushes, so only GPU time is measured.
            for _ in range(FLUSHES):
                cuda("cuMemsetD32Async", flush, 0, FLUSH_BYTES // 4, 0)
            cuda("cuEventRecord", before, 0)
            run(scratch)
            cuda("cuEventRecord", after, 0)
            cuda("cuEventSynchronize", after)
            return float(cuda("cuEventElapsedTime", before, after)) / 1e3

        timed()
        seconds = _repeated(timed, repeat, progress)
        for event in (before, after):
            cuda("cuEventDestroy", event)
    return Launched(found, seconds)


def traced(kernel: Kernel, inputs: Inputs, out: Array, **given: Any) -> tuple[Timeline, Array]:
    """Launch a recording kernel twice; return the timeline of the second launch, and D.

    The first launch loads the code. On a GPU the L2 cache is flushed before the second launch.

    Args:
        kernel: a kernel that was compiled with `timeline=True`.
        inputs: A, B, C, alpha and beta.
        out: the array for D.
        given: further arguments of the kernel's call, such as `workgroups`.
    """
    scalars = inputs.alpha, inputs.beta
    if not kernel.target.startswith("sm_"):
        if inputs.offsets is not None:
            given["offsets"] = inputs.offsets
        kernel(inputs.a, inputs.b, inputs.c, out.copy(), *scalars, **given)
        return kernel.timeline(inputs.a, inputs.b, inputs.c, out, *scalars, **given), out
    from codegen.targets.nvptx.driver import cuda, device
    from codegen.targets.nvptx.memory import DeviceMemory

    with DeviceMemory(device(0)) as memory:
        a, b = memory.upload(inputs.a), memory.upload(inputs.b)
        c = None if inputs.c is None else memory.upload(inputs.c)
        d, scratch = memory.upload(out), memory.upload(out)
        if inputs.offsets is not None:
            given["offsets"] = memory.upload(inputs.offsets)
        kernel(a, b, c, scratch, *scalars, stream=0, **given)
        flush = memory.allocate(FLUSH_BYTES)
        cuda("cuMemsetD32Async", flush, 0, FLUSH_BYTES // 4, 0)
        cuda("cuStreamSynchronize", 0)
        timeline = kernel.timeline(a, b, c, d, *scalars, stream=0, **given)
        found = np.empty_like(out)
        memory.download(d, found)
    return timeline, found
