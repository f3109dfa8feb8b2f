"""What limits a launch: the largest lower bound of its time, and how busy the tensor cores are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from passes.simulation import Machine, Simulation

__all__ = ["Limit", "limit_of", "micros", "peak_source", "share"]

NAMES = {
    "dram": "DRAM traffic",
    "l2": "L2 requests",
    "power": "power",
    "tensor": "tensor cores",
}
EXPLAINS = 0.5
"""Smallest fraction of a launch's time at which a lower bound of the time counts as its limit."""


@dataclass(frozen=True)
class Limit:
    """The largest lower bound of the time of a launch.

    Args:
        name: the resource that gives the bound: `dram`, `l2`, `power` or `tensor`; '' if the bound
            is less than half of the launch's time.
        seconds: the largest lower bound, in seconds.
        tensor: (time of all multiplications at the tensor cores' peak rate) / (time that workgroups
            spend multiplying); at most 1.
        source: what predicts the bound: `model` or `simulation`.
        text: a sentence that states the limit and `tensor`.
    """

    name: str
    seconds: float
    tensor: float
    source: str
    text: str

    def as_data(self) -> dict[str, Any]:
        """The lower bound of a launch's time as plain data for JSON."""
        return asdict(self)


def limit_of(
    busy: float,
    seconds: float,
    simulation: Simulation,
    peak: float,
    modelled: Mapping[str, float],
) -> Limit:
    """Find the largest lower bound of a launch's time.

    Args:
        busy: the fraction of time, averaged over slots for resident workgroups, in which tiles of D
            are multiplied.
        seconds: the time of the launch, in seconds.
        simulation: the simulated run of the same launch.
        peak: operations per second of the machine's tensor cores.
        modelled: seconds of the cost model's bounds `dram`, `l2` and `power`; if empty, `dram` and
            `l2` are computed from the simulated traffic.
    """
    machine = simulation.machine
    bounds = dict(modelled) or {
        "dram": (simulation.read_bytes + simulation.stored_bytes) / machine.dram_rate,
        "l2": simulation.asked_bytes / machine.l2_rate,
    }
    bounds["tensor"] = simulation.flops / peak if peak else 0.0
    source = "model" if modelled else "simulation"
    name = max(bounds, key=bounds.__getitem__)
    most, total = bounds[name], busy * seconds
    tensor = min(bounds["tensor"] / total, 1.0) if total else 0.0
    text = f"Multiplying {share(busy)}, of which tensor cores {share(tensor)}; "
    figures = f"{micros(most)} of {micros(seconds)}"
    if most < EXPLAINS * seconds:
        text += f"no rate limits the launch: the largest bound is {NAMES[name]}, {figures}."
        return Limit("", most, tensor, source, text)
    text += f"limited by {NAMES[name]}: {figures}."
    return Limit(name, most, tensor, source, text)


def peak_source(machine: Machine, rate: float) -> str:
    """Text that shows the tensor cores' peak rate as a product: number of SMs, `rate` and clock.

    Args:
        machine: the GPU.
        rate: operations per cycle of one SM.
    """
    clock = f"{machine.clock / 1e9:.3g} GHz"
    of = "fitted to measured times" if machine.constants is not None else "of the documents"
    return f"{machine.processors} SMs × {rate:.0f} operations per cycle × {clock}, a clock {of}"


def share(part: float) -> str:
    """Format a fraction as a percentage, such as `14 %`."""
    return f"{100 * part:.0f} %"


def micros(seconds: float) -> str:
    """Format a time, given in seconds, with three digits: in µs if below 1000 µs, else in ms."""
    micro = seconds * 1e6
    if micro >= 1000:
        return f"{micro / 1000:.3g} ms"
    return f"{micro:.3g} µs"
