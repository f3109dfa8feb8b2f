"""`Bench` times the launches of a CUDA graph: with a driver whose clock stands in for the GPU's."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

from codegen.call.bench import MOST_LAUNCHES, SAMPLE_SECONDS, SUSTAINED_SECONDS, Bench
from codegen.targets.nvptx import driver
from coordgraph import LaunchError
from passes.choosing import Plan

PLAN = Plan.parse("128x256x64 data-parallel")


class ClockDriver:
    """A fake CUDA driver with a simulated clock.

    A replay of a CUDA graph takes `launch_seconds` for each launch in the graph.
    """

    def __init__(self, launch_seconds: float) -> None:
        self.launch_seconds, self.now = launch_seconds, 0.0
        self.recording: list[int] | None = None
        self.graphs: dict[int, int] = {}
        """The graphs and executable graphs that exist: handle, and number of launches."""
        self.recorded: list[int] = []
        """Numbers of launches of all executable graphs so far, in the order of their creation."""
        self.replays = 0
        self.events: dict[str, float] = {}
        self._handles = count(1)

    def cuStreamBeginCapture(self, stream: int, mode: Any) -> Any:
        assert self.recording is None
        self.recording = []
        return _done()

    def cuStreamEndCapture(self, stream: int) -> Any:
        assert self.recording is not None
        self.graphs[handle := next(self._handles)] = len(self.recording)
        self.recording = None
        return _done(handle)

    def cuGraphInstantiate(self, graph: int, flags: int) -> Any:
        self.recorded.append(self.graphs[graph])
        self.graphs[handle := next(self._handles)] = self.graphs[graph]
        return _done(handle)

    def cuGraphUpload(self, graph: int, stream: int) -> Any:
        assert graph in self.graphs
        return _done()

    def cuGraphLaunch(self, graph: int, stream: int) -> Any:
        self.now += self.graphs[graph] * self.launch_seconds
        self.replays += 1
        return _done()

    def cuGraphDestroy(self, graph: int) -> Any:
        del self.graphs[graph]
        return _done()

    cuGraphExecDestroy = cuGraphDestroy

    def cuMemsetD32Async(self, *_: Any) -> Any:
        self.now += 80e-6
        return _done()

    def cuEventRecord(self, event: str, stream: int) -> Any:
        self.events[event] = self.now
        return _done()

    def cuEventSynchronize(self, event: str) -> Any:
        return _done()

    def cuEventElapsedTime(self, before: str, after: str) -> Any:
        return _done((self.events[after] - self.events[before]) * 1e3)


def _done(*results: Any) -> Any:
    return (driver.bindings().CUresult.CUDA_SUCCESS, *results)


def bench_of(fake: ClockDriver, sets: int, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A `Bench` without memory, whose launches are recorded by `fake`."""
    bindings = pytest.importorskip("cuda.bindings.driver")
    for name in dir(ClockDriver):
        if name.startswith("cu"):
            monkeypatch.setattr(bindings, name, getattr(fake, name), raising=False)
    bench = Bench.__new__(Bench)
    bench.sets, bench.others, bench.turn = [(None, None, None)] * sets, {}, 0  # type: ignore[list-item]
    bench.stream, bench.flush, bench.events = 7, 0, ("before", "after")

    def kernel(*_: Any, **__: Any) -> None:
        assert fake.recording is not None, "samples launch nothing outside a graph"
        fake.recording.append(bench.turn)

    bench.started = {PLAN: (kernel, fake.launch_seconds)}  # type: ignore[dict-item]
    return bench


@pytest.mark.parametrize(("seconds", "sets"), [(2e-6, 8), (6e-5, 3), (1e-3, 2), (0.5, 2)])
def test_samples_are_graphs_that_use_all_sets_equally(
    seconds: float, sets: int, monkeypatch: pytest.MonkeyPatch
):
    fake = ClockDriver(seconds)
    bench = bench_of(fake, sets, monkeypatch)
    assert bench.sample(PLAN) == pytest.approx(seconds)
    assert fake.replays == 1
    (launches,) = fake.recorded
    assert launches % sets == 0 or (seconds > SAMPLE_SECONDS and launches == 1)
    assert launches * seconds <= max(SAMPLE_SECONDS + (sets - 1) * seconds, seconds)
    assert launches < MOST_LAUNCHES + sets
    assert bench.sample_under_load(PLAN) == pytest.approx(seconds)
    lasted = (fake.replays - 1) * launches * seconds
    assert lasted >= SUSTAINED_SECONDS * 2 / 3
    assert not fake.graphs, "the graphs are destroyed"


def test_a_launch_that_fails_ends_the_recording(monkeypatch: pytest.MonkeyPatch):
    fake = ClockDriver(1e-5)
    bench = bench_of(fake, 2, monkeypatch)

    def fails(*_: Any, **__: Any) -> None:
        raise LaunchError("no memory")

    bench.started = {PLAN: (fails, 1e-5)}  # type: ignore[dict-item]
    with pytest.raises(LaunchError, match="no memory"):
        bench.sample(PLAN)
    assert fake.recording is None
    assert not fake.graphs


def test_the_error_of_a_launch_is_raised_also_if_the_recording_is_invalid(
    monkeypatch: pytest.MonkeyPatch,
):
    fake = ClockDriver(1e-5)
    bench = bench_of(fake, 2, monkeypatch)
    status = driver.bindings().CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    monkeypatch.setattr(driver.bindings(), "cuStreamEndCapture", lambda stream: (status, None))
    monkeypatch.setattr(driver, "describe", str)

    def fails(*_: Any, **__: Any) -> None:
        raise LaunchError("no memory")

    bench.started = {PLAN: (fails, 1e-5)}  # type: ignore[dict-item]
    with pytest.raises(LaunchError, match="no memory"):
        bench.sample(PLAN)


@pytest.mark.parametrize(
    ("results", "error"),
    [
        ([[1, 2, 3], [1, 2, 3.01]], None),
        ([[1, 2, 3], [1, 2, 4]], "differs from the first plan's by 1"),
        ([[1, 2, 3], [1, 2, np.nan]], "differs from the first plan's by nan"),
        # The operands have infinite elements or NaN: the first plan runs twice, and its elements
        # that are not finite are not compared.
        ([[1, np.inf, np.nan], [1, np.inf, np.nan], [1, np.nan, 7]], None),
        ([[1, np.inf, np.nan], [1, np.inf, np.nan], [np.inf, 0, 0]], "differs from .* by inf"),
        ([[np.nan] * 3, [np.nan] * 3, [1, 2, 3]], None),
        # An element that the first plan does not write has what was there before each launch.
        ([[1, 2, np.nan], [1, 2, 0]], "does not write all of D"),
    ],
)
def test_results_are_compared_where_the_first_is_finite(
    results: list[list[float]], error: str | None, monkeypatch: pytest.MonkeyPatch
):
    bench = bench_of(ClockDriver(1e-5), 2, monkeypatch)
    bench.right, queue = None, [np.array(result, np.float32) for result in results]
    monkeypatch.setattr(Bench, "_result", lambda *_: queue.pop(0))
    monkeypatch.setattr(Bench, "sample", lambda *_: 1e-5)

    def start_all() -> None:
        while queue:
            bench.start(PLAN, None)  # type: ignore[arg-type]

    if error is None:
        start_all()
    else:
        with pytest.raises(LaunchError, match=error):
            start_all()
