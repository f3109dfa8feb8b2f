"""Timing on a GPU: rounds in turns, CUDA-graph replays, and what the device did meanwhile."""

from __future__ import annotations

import math
import shutil
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Sampler", "Spread", "device_state"]

SMI_FIELDS = (
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "clocks_throttle_reasons.active",
)


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
        self.launch = launch
        self.sets = sets
        for number in range(sets):  # load the code, fill the caches of libraries
            launch(number)
        torch.cuda.synchronize()
        self.count, self.replays, self.graph = sets, 1, None
        if graphs:
            self.count = max(sets, 4)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                for number in range(self.count):
                    launch(number % sets)
        self.enqueue()
        torch.cuda.synchronize()
        once = self.sample() * self.count
        self.replays = min(1000, max(1, math.ceil(seconds / once)))

    def enqueue(self) -> None:
        """Start the work of one sample."""
        for _ in range(self.replays):
            if self.graph is not None:
                self.graph.replay()
            else:
                for number in range(self.count):
                    self.launch(number % self.sets)

    def sample(self) -> float:
        """Seconds for one launch."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.enqueue()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000 / (self.replays * self.count)


def device_state() -> dict[str, str]:
    """What nvidia-smi tells of clocks and power now; empty without it."""
    if not shutil.which("nvidia-smi"):
        return {}
    query = ["nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return {}
    first = done.stdout.strip().splitlines()[0]
    return dict(zip(SMI_FIELDS, (word.strip() for word in first.split(",")), strict=False))
