"""GPU times of launches: samples of CUDA-graph replays, taken in rounds over all contenders."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

__all__ = ["REGIMES", "Regime", "Sampler", "Spread", "quick_seconds", "sample_in_rounds"]

MAX_GRAPH_LAUNCHES = 1024
"""The most launches in one CUDA graph."""
GRAPH_SECONDS = 1e-3
"""Seconds that one replay should last, so that the gaps between replays do not count."""
SPIN_CYCLES = 100_000
"""Cycles that the device spins before the first event, while the host enqueues what is timed."""


@dataclass(frozen=True)
class Spread:
    """Seconds of one launch over all rounds.

    Args:
        median: over the rounds.
        low, high: the quartiles.
        least: the minimum.
        rounds: number of samples.
    """

    median: float
    low: float
    high: float
    least: float
    rounds: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Summarise the seconds of one launch, one number for each round."""
        low, high = samples[0], samples[0]
        if len(samples) > 1:
            low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(statistics.median(samples), low, high, min(samples), len(samples))

    def json(self) -> dict[str, float]:
        """The fields, for a record."""
        return asdict(self)


@dataclass(frozen=True)
class Regime:
    """The pauses between samples, on which the device's clocks depend.

    Args:
        gap: idle seconds before every sample.
        share: seconds of a sample, relative to the seconds that were asked for.
        heats: whether the device is kept busy for a while before the first round.
    """

    gap: float
    share: float
    heats: bool


REGIMES = {
    # Bursts come first, while the device is cool: the power limit does not lower their clocks.
    "burst": Regime(gap=0.04, share=0.5, heats=False),
    "sustained": Regime(gap=0.0, share=1.0, heats=True),
}


class Sampler:
    """Takes times of one contender: a CUDA graph of launches over rotating buffers.

    Args:
        launch: enqueues the work on the buffer set of this number.
        sets: how many buffer sets there are.
        seconds: about how long one sample should take.
        graphs: replay a CUDA graph; else launch one by one, which includes the host's time.
    """

    def __init__(
        self, launch: Callable[[int], Any], sets: int, seconds: float, *, graphs: bool = True
    ) -> None:
        import torch

        self.torch = torch
        self.launch, self.sets, self.seconds = launch, sets, seconds
        self.count, self.graph = sets, None
        torch.cuda.synchronize()  # the operands were made on another stream
        with torch.cuda.stream(_stream()):
            for number in range(sets):  # load the code, fill the caches of libraries
                launch(number)
            torch.cuda.synchronize()
            if graphs:
                self._capture(sets)
        once = min(self._measure(1) for _ in range(2))
        wanted = launches_in_graph(once, sets)
        if graphs and wanted > self.count:
            with torch.cuda.stream(_stream()):
                self._capture(wanted)
            once = min(self._measure(1) for _ in range(2))
        self.once = once

    def _capture(self, count: int) -> None:
        """Record launches; `torch.cuda.graph` would give the allocator's memory back each time."""
        graph = self.torch.cuda.CUDAGraph()
        graph.capture_begin()
        try:
            for number in range(count):
                self.launch(number % self.sets)
        except BaseException:
            with suppress(RuntimeError):  # an error may have ended the capture already
                graph.capture_end()
            raise
        graph.capture_end()
        self.count, self.graph = count, graph

    def replays(self, seconds: float) -> int:
        """How many replays last about this many seconds."""
        return min(1000, max(1, math.ceil(seconds / (self.once * self.count))))

    def _enqueue(self, replays: int) -> None:
        for _ in range(replays):
            if self.graph is not None:
                self.graph.replay()
            else:
                for number in range(self.count):
                    self.launch(number % self.sets)

    def sample(self, share: float = 1.0) -> float:
        """Seconds of one launch, from a sample of the usual length times `share`."""
        return self._measure(self.replays(self.seconds * share))

    def _measure(self, replays: int) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.cuda.stream(_stream()):
            if self.graph is not None:
                self.torch.cuda._sleep(SPIN_CYCLES)
            start.record()
            self._enqueue(replays)
            end.record()
            end.synchronize()
        return start.elapsed_time(end) / 1000 / (replays * self.count)


@cache
def _stream() -> Any:
    """The stream on which everything is timed; the default stream cannot be captured."""
    import torch

    return torch.cuda.Stream()


def launches_in_graph(once: float, sets: int) -> int:
    """Launches of a graph that lasts about `GRAPH_SECONDS`, a multiple of the buffer sets.

    Args:
        once: seconds of one launch.
        sets: how many buffer sets there are.

    >>> launches_in_graph(5e-6, 3), launches_in_graph(1e-2, 3), launches_in_graph(1e-9, 3)
    (201, 3, 1023)
    """
    rotations = math.ceil(GRAPH_SECONDS / once / sets)
    return sets * max(1, min(rotations, MAX_GRAPH_LAUNCHES // sets))


def quick_seconds(launch: Callable[[int], Any], sets: int) -> float:
    """Time one launch briefly, to choose among variants of a contender."""
    sampler = Sampler(launch, min(sets, 16), 3e-4)
    return min(sampler.sample() for _ in range(3))


def sample_in_rounds(
    samplers: Sequence[Sampler],
    rounds: int,
    regime: Regime,
    *,
    deadline: float = math.inf,
    least_rounds: int = 3,
    heat_seconds: float = 0.2,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[list[float]]:
    """Take one sample of each contender in every round; the order rotates from round to round.

    Args:
        samplers: one for each contender.
        rounds: samples of each contender.
        regime: pauses between samples.
        deadline: no round begins after it, by `clock`, once there are `least_rounds`.
        least_rounds: rounds that are taken even after the deadline.
        heat_seconds: how long to keep the device busy first, where the regime asks for it.
        clock, sleep: tests pass their own.
    """
    samples: list[list[float]] = [[] for _ in samplers]
    if not samplers:
        return samples
    if regime.heats:
        until = min(clock() + heat_seconds, max(deadline, clock()))
        while clock() < until:
            for sampler in samplers:
                sampler.sample()
    for number in range(rounds):
        if number >= least_rounds and clock() >= deadline:
            break
        for place in range(len(samplers)):
            which = (number + place) % len(samplers)
            if regime.gap:
                sleep(regime.gap)
            samples[which].append(samplers[which].sample(regime.share))
    return samples
