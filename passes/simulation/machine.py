"""`Machine`: rates and latencies of a simulated GPU, from public documents or fitted to times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from passes.choosing.constants import Constants
from passes.choosing.gpu_figures import GpuFigures, library_figures
from passes.lowering.architectures import architecture_of

__all__ = [
    "FOLDER",
    "MACHINES",
    "OF_MACHINE",
    "Machine",
    "fitted_constants",
    "fitted_machine",
    "with_figures",
]


@dataclass(frozen=True)
class Machine:
    """The model of a GPU: number of SMs, rates of its resources, and latencies.

    Args:
        name: name of the GPU, as the driver reports it.
        architecture: the name of the architecture, such as `sm_80` or `sm_90a`.
        processors: number of SMs.
        source: the documents or measurements that the numbers come from.
        clock: clock rate while multiplying, in Hz.
        flops_per_clock: operations per cycle of an SM's tensor cores on dense 16-bit operands with
            sums in f32; for 8-bit operands the number is twice as large.
        shared_bytes: bytes of shared memory that one workgroup may use.
        l2_bytes: bytes of A and B that the L2 cache keeps.
        l2_rate, dram_rate: bytes per second of the L2 cache and of memory, over all SMs.
        reader_rate, lone_rate: bytes per second that one SM reads from memory: reader_rate if more
            than half of the SMs read, else lone_rate.
        merged: share of requests by neighbouring SMs, for the same data at the same time, that the
            L2 cache merges into one.
        launch_seconds: seconds of a launch before the first workgroup begins.
        start_seconds: seconds from the start of a workgroup until it multiplies, if another
            workgroup ran on its SM before. The time of integer divisions, and the further time of
            the workgroup's first iteration (`TileWork.first`), are added.
        fill_seconds: like `start_seconds`, but for a workgroup that is the first one on its SM.
        division_seconds: seconds of an integer division, which precedes a workgroup's first load.
        iteration_seconds: seconds of an iteration besides its multiplications.
        latency_seconds: seconds from the request of a tile of A or B until it is in shared memory.
        tile_seconds: seconds of the end of a tile besides the bytes that it stores.
        partial_seconds: seconds until another workgroup sees a partial sum that has been written.
        sharpness: degree of the norm that approximates the maximum of times that overlap.
        power_sharpness: the degree of the norm that combines the times at full clock rate and at
            the power limit.
        power_flops, power_shared, power_l2, power_dram: operations, and bytes of shared memory, of
            the L2 cache and of memory, per second at the power limit, if nothing else used power.
        constants: constants of the cost model, which describe kernels with wgmma and TMA; None for
            GPUs without these instructions.
    """

    name: str
    architecture: str
    processors: int
    source: str
    clock: float
    flops_per_clock: float
    shared_bytes: int
    l2_bytes: float
    l2_rate: float
    dram_rate: float
    reader_rate: float = inf
    lone_rate: float = inf
    merged: float = 0.0
    launch_seconds: float = 2e-6
    start_seconds: float = 1e-6
    fill_seconds: float = 1e-6
    division_seconds: float = 40e-9
    iteration_seconds: float = 30e-9
    latency_seconds: float = 0.8e-6
    tile_seconds: float = 0.7e-6
    partial_seconds: float = 1.5e-6
    sharpness: float = 4.0
    power_sharpness: float = 8.0
    power_flops: float = inf
    power_shared: float = inf
    power_l2: float = inf
    power_dram: float = inf
    constants: Constants | None = None

    def slots(self, cluster: int = 1, resident: int = 1) -> int:
        """Number of workgroups that run at the same time.

        Args:
            cluster: number of CTAs of a cluster; if it is more than 1, a workgroup of the graph is
                a cluster.
            resident: number of workgroups that one SM runs at the same time.
        """
        if cluster > 1 and self.constants is not None:
            return int(self.constants.slots(np.array([cluster]))[0])
        return self.processors // cluster * resident

    @classmethod
    def fitted(cls, c: Constants, **figures: float) -> Machine:
        """The model of a Hopper GPU, made from the fitted constants of the cost model.

        Args:
            c: the cost model's constants of the GPU.
            figures: further fields of `Machine`, such as `start_seconds`, which no constant gives.
        """
        return cls(
            name=c.device,
            architecture="sm_90a",
            processors=c.processors,
            source=f"fitted to measured times on {c.device}",
            clock=c.clock,
            flops_per_clock=4096,
            shared_bytes=232448,
            l2_bytes=c.kept_bytes,
            l2_rate=c.l2_rate,
            dram_rate=c.dram_rate,
            reader_rate=c.pull_rate,
            lone_rate=c.lone_rate,
            merged=c.merged,
            launch_seconds=c.launch_seconds,
            fill_seconds=c.fill_seconds,
            sharpness=c.sharpness,
            power_flops=c.power_flops,
            power_shared=c.power_shared,
            power_l2=c.power_l2,
            power_dram=c.power_dram,
            constants=c,
            **figures,
        )

    @classmethod
    def public(cls, figures: GpuFigures) -> Machine:
        """The model of a GPU without wgmma, from published rates; all latencies are assumed.

        Args:
            figures: the rates and sizes of the GPU that documents state.
        """
        return cls(
            name=figures.device,
            architecture=figures.architecture,
            processors=figures.processors,
            source=f"{figures.source}; latencies are assumed",
            clock=figures.clock,
            flops_per_clock=figures.flops_per_clock,
            shared_bytes=architecture_of(figures.architecture).shared_bytes,
            l2_bytes=figures.kept_bytes,
            l2_rate=figures.reached_l2_rate,
            dram_rate=figures.reached_dram_rate,
        )


FOLDER = Path(__file__).with_name("machines")
"""Folder with one JSON file for each measured device: the constants of the simulation that were
fitted to measured times."""
OF_MACHINE = ("start_seconds", "division_seconds", "power_sharpness")
"""Names of the fitted constants of a machine that the cost model does not have."""


def with_figures(base: Constants, figures: Mapping[str, float]) -> Machine:
    """The model of a Hopper GPU with the constants `base`, some of them replaced by `figures`.

    Args:
        base: constants of the cost model.
        figures: new values of some constants of `base`, and values of the constants in
            `OF_MACHINE`, by name.
    """
    more = {name: value for name, value in figures.items() if name in OF_MACHINE}
    known = {name: value for name, value in figures.items() if name not in OF_MACHINE}
    return Machine.fitted(base.with_figures(known), **more)


def _fitted(device: str) -> dict[str, Any]:
    path = FOLDER / f"{device.lower().replace(' ', '-')}.json"
    return json.loads(path.read_text("utf-8"))


@cache
def fitted_constants(device: str) -> Constants:
    """The cost model's constants of a device, from which `passes.simulation.calibrate` started.

    The constants were not fitted to the problem sizes on which the simulation's accuracy is
    measured.

    Raises:
        FileNotFoundError: no constants have been fitted for the device.
    """
    return Constants(**_fitted(device)["constants"])


@cache
def fitted_machine(device: str) -> Machine:
    """The model of a device, with the constants that `passes.simulation.calibrate` has fitted.

    Raises:
        FileNotFoundError: no constants have been fitted for the device.
    """
    return with_figures(fitted_constants(device), _fitted(device)["figures"])


def _h100() -> Machine:
    """The model of the H100 SXM5: the chip of the H200 with slower memory.

    NVIDIA H100 data sheet: 80 GB of HBM3 at 3.35 TB/s (H200: 4.8 TB/s). Number of SMs, clock rate,
    L2 cache and power limit (700 W) are those of the H200.
    """
    base = fitted_machine("NVIDIA H200")
    assert base.constants is not None
    rate = base.dram_rate * 3.35 / 4.8
    return replace(
        base,
        name="NVIDIA H100 80GB HBM3",
        source="figures of the H200, with memory of 3.35 in place of 4.8 TB/s",
        dram_rate=rate,
        constants=base.constants.with_figures({"dram_rate": rate}),
    )


MACHINES: dict[str, Machine] = {
    machine.name: machine
    for machine in (
        fitted_machine("NVIDIA H200"),
        _h100(),
        *map(Machine.public, library_figures().values()),
    )
}
"""The modelled GPUs, by name. Functions with an argument `machine` also accept these names."""
