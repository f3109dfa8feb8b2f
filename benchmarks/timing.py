"""Timing on a GPU: rounds in turns, CUDA-graph replays, hot or after a pause."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

__all__ = ["REGIMES", "Regime", "Sampler", "Spread", "quick_seconds", "take_turns"]

MOST_LAUNCHES = 1024
"""In one CUDA graph."""
WHOLE_GRAPH = 1e-3
"""Seconds that one replay should last, so that the gaps between replays do not count."""
HEAD_START = 100_000
"""Cycles that the device spins before the first event, while the host enqueues what is timed."""


@dataclass(frozen=True)
class Spread:
    """Seconds for one launch over all rounds."""

    median: float
    low: float
    high: float
    least: float
    rounds: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Median, quartiles and minimum."""
        low, high = samples[0], samples[0]
        if len(samples) > 1:
            low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(statistics.median(samples), low, high, min(samples), len(samples))

    def json(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Regime:
    """How samples follow one another.

    Args:
        gap: idle seconds before every sample.
        share: how much of the usual seconds a sample lasts.
        heats: work goes on before the first round until the device is as hot as it gets.
    """

    gap: float
    share: float
    heats: bool


REGIMES = {
    # First what leaves the device cool. In a burst no power limit lowers the clocks.
    "burst": Regime(gap=0.04, share=0.5, heats=False),
    "sustained": Regime(gap=0.0, share=1.0, heats=True),
}


class Sampler:
    """One way to compute, ready to be timed: a CUDA graph of launches over rotating buffers.

    Args:
        launch: enqueues the work for the buffer set of a number.
        sets: how many buffer sets there are.
        seconds: about how long one sample should take.
        graphs: replay a CUDA graph; else launch one by one, which shows the host's share too.
    """

    def __init__(
        self, launch: Callable[[int], Any], sets: int, seconds: float, *, graphs: bool = True
    ) -> None:
        import torch

        self.torch = torch
        self.launch, self.sets, self.seconds = launch, sets, seconds
        self.count, self.graph = sets, None
        torch.cuda.synchronize()  # what made the operands ran on another stream
        with torch.cuda.stream(_stream()):
            for number in range(sets):  # load the code, fill the caches of libraries
                launch(number)
            torch.cuda.synchronize()
            if graphs:
                self._capture(sets)
        once = min(self._measure(1) for _ in range(2))
        wanted = longer(once, sets)
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
        """How often to go through all buffers to be busy for about this long."""
        return min(1000, max(1, math.ceil(seconds / (self.once * self.count))))

    def _enqueue(self, replays: int) -> None:
        for _ in range(replays):
            if self.graph is not None:
                self.graph.replay()
            else:
                for number in range(self.count):
                    self.launch(number % self.sets)

    def sample(self, share: float = 1.0) -> float:
        """Seconds for one launch."""
        return self._measure(self.replays(self.seconds * share))

    def _measure(self, replays: int) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.cuda.stream(_stream()):
            if self.graph is not None:
                self.torch.cuda._sleep(HEAD_START)
            start.record()
            self._enqueue(replays)
            end.record()
            end.synchronize()
        return start.elapsed_time(end) / 1000 / (replays * self.count)


@cache
def _stream() -> Any:
    """The stream of all that is timed; the default one cannot be captured."""
    import torch

    return torch.cuda.Stream()


def longer(once: float, sets: int) -> int:
    """Launches for a graph that lasts about `WHOLE_GRAPH`: whole turns of the buffer sets.

    >>> longer(5e-6, 3), longer(1e-2, 3), longer(1e-9, 3)
    (201, 3, 1023)
    """
    turns = math.ceil(WHOLE_GRAPH / once / sets)
    return sets * max(1, min(turns, MOST_LAUNCHES // sets))


def quick_seconds(launch: Callable[[int], Any], sets: int) -> float:
    """A short timing of one launch, to choose among variants."""
    sampler = Sampler(launch, min(sets, 16), 3e-4)
    return min(sampler.sample() for _ in range(3))


def take_turns(
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
    """Samples of each, taken in rounds; the order rotates, so that nobody always follows another.

    Args:
        deadline: no round begins after it, by `clock`, once there are `least_rounds`.
        heat_seconds: how long to be busy beforehand where the regime asks for it.
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
