"""`sample_in_rounds`: the order of contenders, pauses, and the end of sampling by a deadline."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.timing.sampler import (
    LEAST_ROUNDS,
    REGIMES,
    Sampler,
    Spread,
    launches_in_graph,
    sample_in_rounds,
)


class Device:
    """A simulated clock, and samplers that advance it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def sampler(self, name: str, seconds: float) -> Any:
        device = self

        class Fake:
            def sample(self, share: float = 1.0) -> float:
                device.order.append(name)
                device.now += seconds * share
                return seconds

        return Fake()

    def sample_rounds(self, rounds: int, regime: str, **options: Any) -> list[list[float]]:
        samplers = [self.sampler(name, 0.1 * (1 + i)) for i, name in enumerate("abc")]
        clocks = {"clock": lambda: self.now, "sleep": self.sleep}
        return sample_in_rounds(samplers, rounds, REGIMES[regime], **clocks, **options)


def test_the_order_rotates_and_every_second_round_runs_backwards():
    device = Device()
    samples = device.sample_rounds(4, "sustained", heat_seconds=0)
    assert "".join(device.order) == "abc" + "bac" + "cab" + "acb"
    assert [[round(s, 3) for s in of_one] for of_one in samples] == [
        [0.1] * 4,
        [0.2] * 4,
        [0.3] * 4,
    ]


def test_a_burst_rests_before_every_sample_and_sustained_never():
    device = Device()
    device.sample_rounds(2, "burst")
    assert device.slept == [REGIMES["burst"].gap] * 6
    # Two rounds of the contenders a, b and c. The sustained regime, tested below, first launches
    # each contender once more ("abc") to warm up the device.
    assert "".join(device.order) == "abc" + "bac"
    device = Device()
    device.sample_rounds(2, "sustained", heat_seconds=0.5)
    assert device.slept == []
    assert "".join(device.order) == "abc" + "abc" + "bac"


def test_the_deadline_ends_the_rounds_but_leaves_some():
    late = {"deadline": 0.0, "least_rounds": 3}
    assert [len(s) for s in Device().sample_rounds(9, "sustained", **late)] == [3, 3, 3]
    within = Device().sample_rounds(9, "sustained", deadline=2.5, least_rounds=3, heat_seconds=0)
    assert [len(s) for s in within] == [5, 5, 5]
    assert [len(s) for s in Device().sample_rounds(2, "sustained", **late)] == [2, 2, 2]
    always = Device().sample_rounds(99, "sustained", deadline=0.0)
    assert [len(s) for s in always] == [LEAST_ROUNDS] * 3


def test_the_device_is_heated_also_after_the_deadline():
    device = Device()
    device.sample_rounds(1, "sustained", deadline=0.0, heat_seconds=0.5)
    assert "".join(device.order) == "abc" + "abc"


def test_without_contenders_there_are_no_samples():
    assert sample_in_rounds([], 9, REGIMES["sustained"]) == []


def test_spread():
    found = Spread.of([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (found.median, found.low, found.high, found.least, found.rounds) == (3, 2, 4, 1, 5)
    assert Spread.of([2.0]).json() == {
        "median": 2.0, "low": 2.0, "high": 2.0, "least": 2.0, "rounds": 1
    }  # fmt: skip


def test_graphs_are_long_enough_and_use_all_buffers_equally():
    assert launches_in_graph(5e-6, 3) == 201
    assert launches_in_graph(1e-2, 3) == 3
    assert launches_in_graph(1e-9, 512) == 1024


class FakeGraph:
    """A fake CUDA graph that logs the calls of its methods in `calls`, a list that all share.

    If `broken` is set, the first call of `capture_end` raises an error.
    """

    calls: list[str]
    broken = True

    def capture_begin(self, *, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local", "other threads may call the driver"
        self.calls.append("begin")

    def capture_end(self) -> None:
        self.calls.append("broken end" if self.broken else "end")
        if self.broken:
            type(self).broken = False
            raise RuntimeError("operation failed due to a previous error during capture")

    def pool(self) -> str:
        return "pool"


def capturing(launch: Any, broken: bool) -> tuple[Sampler, list[str]]:
    """(a sampler that uses a fake of PyTorch, the list in which the fake logs its calls).

    The sampler captures `launch` in a fake CUDA graph; with `broken`, the capture fails to end.
    """
    calls = list[str]()
    graph = type("Graph", (FakeGraph,), {"calls": calls, "broken": broken})
    cuda = SimpleNamespace(
        CUDAGraph=graph, current_device=lambda: 0, _sleep=lambda _: calls.append("sleep")
    )
    ended = SimpleNamespace(_cuda_endAllocateToPool=lambda *_: calls.append("pool ended"))
    sampler: Any = Sampler.__new__(Sampler)
    sampler.torch = SimpleNamespace(cuda=cuda, _C=ended)
    sampler.launch, sampler.sets = launch, 2
    return sampler, calls


def test_a_capture_is_not_disturbed_by_the_garbage_collector():
    seen = list[bool]()
    sampler, calls = capturing(lambda _: seen.append(gc.isenabled()), broken=False)
    sampler._capture(3)
    assert seen == [False] * 3
    assert gc.isenabled()
    assert (calls, sampler.count) == (["begin", "end"], 3)


def test_a_broken_capture_leaves_no_state_behind():
    def launch(_: int) -> None:
        raise ValueError("the launch fails")

    sampler, calls = capturing(launch, broken=True)
    with pytest.raises(ValueError, match="the launch fails"):
        sampler._capture(3)
    assert calls == ["begin", "broken end", "pool ended", "begin", "sleep", "end"]
    assert gc.isenabled()
    sampler, calls = capturing(launch, broken=False)
    with pytest.raises(ValueError, match="the launch fails"):
        sampler._capture(3)
    assert calls == ["begin", "end"], "the capture itself is not invalidated"
