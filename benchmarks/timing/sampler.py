"""Measure GPU times: samples of CUDA-graph replays, taken in rounds over all contenders."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from coordgraph.collection import collection_paused

__all__ = [
    "HEAT_SECONDS",
    "REGIMES",
    "Regime",
    "Sampler",
    "Spread",
    "quick_seconds",
    "sample_in_rounds",
]

MAX_GRAPH_LAUNCHES = 1024
"""Largest number of launches in one CUDA graph, even if they take less than GRAPH_SECONDS."""
GRAPH_SECONDS = 1e-3
"""Seconds that one graph replay should last, so that gaps between replays are negligible."""
SPIN_CYCLES = 100_000
"""GPU cycles to spin before the first timing event, while the host enqueues the timed launches."""
HEAT_SECONDS = 0.2
"""Default number of seconds for which the GPU is kept busy before the first round of a problem."""
LEAST_ROUNDS = 7
"""Default number of rounds that are run even after the deadline."""


@dataclass(frozen=True)
class Spread:
    """Statistics of the seconds of one launch over all rounds.

    Args:
        median: the median, in seconds.
        low, high: the lower and the upper quartile, in seconds.
        least: the minimum, in seconds.
        rounds: the number of samples, one per round.
    """

    median: float
    low: float
    high: float
    least: float
    rounds: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """The statistics of `samples`, which hold the seconds of one launch in each round."""
        low, high = samples[0], samples[0]
        if len(samples) > 1:
            low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(statistics.median(samples), low, high, min(samples), len(samples))

    def json(self) -> dict[str, float]:
        """All fields as a dict, for a JSON record."""
        return asdict(self)


@dataclass(frozen=True)
class Regime:
    """How samples follow each other, on which the GPU's clocks depend.

    Args:
        gap: number of idle seconds before every sample.
        share: the length of a sample as a fraction of the requested seconds.
        heats: True to keep the GPU busy for a while before the first round.
    """

    gap: float
    share: float
    heats: bool


REGIMES = {
    # "burst" precedes "sustained" so that it is measured while the GPU is cool, at full clocks.
    "burst": Regime(gap=0.04, share=0.5, heats=False),
    "sustained": Regime(gap=0.0, share=1.0, heats=True),
}


class Sampler:
    """Measures the time of one contender: a CUDA graph of launches over rotating buffers.

    Args:
        launch: a function that enqueues the work on the buffer set with the given number.
        sets: how many buffer sets there are.
        seconds: the approximate length of one sample.
        graphs: True to replay a CUDA graph; False to launch one by one, so that times include the
            host's work.
    """

    def __init__(
        self, launch: Callable[[int], Any], sets: int, seconds: float, *, graphs: bool = True
    ) -> None:
        import torch

        self.torch = torch
        self.launch, self.sets, self.seconds = launch, sets, seconds
        self.count, self.graph = sets, None
        torch.cuda.synchronize()  # wait for the stream on which the operands were filled
        with torch.cuda.stream(_stream()):
            for number in range(sets):  # warm up: load kernels, fill the caches of libraries
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
        """Record `count` launches in a CUDA graph.

        `torch.cuda.graph` is not used because it frees the allocator's cached memory each time.
        The garbage collector is off meanwhile, because objects that it drops, such as graphs and
        events, call the driver. Other threads may call the driver, because the capture is
        `thread_local`.
        """
        graph = self.torch.cuda.CUDAGraph()
        with collection_paused():
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for number in range(count):
                    self.launch(number % self.sets)
                graph.capture_end()
            except BaseException:
                self._abandon(graph)
                raise
        self.count, self.graph = count, graph

    def _abandon(self, graph: Any) -> None:
        """End a failed capture, and make PyTorch forget it.

        If an error has invalidated the capture, `capture_end` raises before PyTorch resets its
        random generators and its allocator, which then refuse the calls of later problems. The
        generators are reset by the end of the next capture that succeeds.
        """
        with suppress(RuntimeError):
            graph.capture_end()
            return
        end = getattr(self.torch._C, "_cuda_endAllocateToPool", None)
        if end is not None:
            with suppress(RuntimeError):
                end(self.torch.cuda.current_device(), graph.pool())
        with suppress(RuntimeError):
            again = self.torch.cuda.CUDAGraph()
            again.capture_begin(capture_error_mode="thread_local")
            self.torch.cuda._sleep(1)
            again.capture_end()

    def replays(self, seconds: float) -> int:
        """How many graph replays last about `seconds`, from 1 to 1000."""
        return min(1000, max(1, math.ceil(seconds / (self.once * self.count))))

    def _enqueue(self, replays: int) -> None:
        for _ in range(replays):
            if self.graph is not None:
                self.graph.replay()
            else:
                for number in range(self.count):
                    self.launch(number % self.sets)

    def sample(self, share: float = 1.0) -> float:
        """Take one sample; returns the seconds of one launch.

        `share` is the length of the sample as a fraction of `seconds`.
        """
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
    """The CUDA stream for all samples; CUDA graphs cannot be captured on the default stream."""
    import torch

    return torch.cuda.Stream()


def launches_in_graph(once: float, sets: int) -> int:
    """How many launches a CUDA graph of about `GRAPH_SECONDS` needs, a multiple of `sets`.

    Args:
        once: the seconds of one launch.
        sets: how many buffer sets there are.

    >>> launches_in_graph(5e-6, 3), launches_in_graph(1e-2, 3), launches_in_graph(1e-9, 3)
    (201, 3, 1023)
    """
    rotations = math.ceil(GRAPH_SECONDS / once / sets)
    return sets * max(1, min(rotations, MAX_GRAPH_LAUNCHES // sets))


def quick_seconds(launch: Callable[[int], Any], sets: int) -> float:
    """The seconds of one launch from a few short samples, to choose among variants of a kernel."""
    sampler = Sampler(launch, min(sets, 16), 3e-4)
    return min(sampler.sample() for _ in range(3))


def sample_in_rounds(
    samplers: Sequence[Sampler],
    rounds: int,
    regime: Regime,
    *,
    deadline: float = math.inf,
    least_rounds: int = LEAST_ROUNDS,
    heat_seconds: float = HEAT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[list[float]]:
    """Take one sample of each contender in every round.

    Each round begins with the contender after the one that began the round before it, and every
    second round runs in reverse order. So no contender always runs just after the same other
    contender. This matters because the power that one contender draws affects the GPU's temperature
    and clock while the next one runs.

    Args:
        samplers: one sampler for each contender.
        rounds: the number of samples of each contender.
        regime: the pauses between samples, and whether the GPU is warmed up.
        deadline: the time by `clock` after which no round starts, once `least_rounds` are done.
        least_rounds: the number of rounds that are run even after the deadline.
        heat_seconds: how long to keep the GPU busy before the first round if `regime.heats`, also
            after the deadline: a GPU that has rested, for example while kernels were compiled, has
            a higher clock rate for a while, at which other kernels may be the fastest.
        clock: a function that returns the time in seconds; tests replace it.
        sleep: a function that waits for a number of seconds; tests replace it.

    Returns:
        For each sampler the seconds of one launch, one number per round.
    """
    samples: list[list[float]] = [[] for _ in samplers]
    if not samplers:
        return samples
    if regime.heats:
        until = clock() + heat_seconds
        while clock() < until:
            for sampler in samplers:
                sampler.sample()
    for number in range(rounds):
        if number >= least_rounds and clock() >= deadline:
            break
        step = -1 if number % 2 else 1
        for place in range(len(samplers)):
            which = (number + step * place) % len(samplers)
            if regime.gap:
                sleep(regime.gap)
            samples[which].append(samplers[which].sample(regime.share))
    return samples
