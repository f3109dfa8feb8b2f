"""Machines with few SMs, and graphs to simulate, for tests of the simulation."""

from __future__ import annotations

from dataclasses import replace

from coordgraph import Gemm, KernelGraph
from passes import Pipeline
from passes.simulation import MACHINES, Machine

A100 = MACHINES["NVIDIA A100-SXM4-80GB"]
H200 = MACHINES["NVIDIA H200"]


def small(processors: int, **figures: float) -> Machine:
    """A simulated A100 with `processors` SMs, and with the constants `figures` replaced."""
    return replace(A100, name="small", processors=processors, **figures)


def scheduled(schedule: str, tile: tuple[int, int, int] = (128, 128, 64)) -> KernelGraph:
    """The graph of a schedule for bf16; m, n and k are launch arguments."""
    return Pipeline.parse(schedule)(Gemm("bf16").graph(tile))
