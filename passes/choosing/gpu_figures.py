"""`GpuFigures`: rates and sizes of GPUs without wgmma, from NVIDIA's documents, in JSON files.

The cost model of kernels with mma.sync (`passes.choosing.mma_sync`) and the simulation
(`passes.simulation`) read these files, so that each number of a GPU is stated once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from passes.choosing.constants import FOLDER as MEASURED_FOLDER
from passes.choosing.constants import file_of, read_own, user_folder

__all__ = [
    "FOLDER",
    "GpuFigures",
    "Latencies",
    "figures_of",
    "known_figures",
    "library_figures",
    "measured_latencies",
]

FOLDER = MEASURED_FOLDER / "mma_sync"
"""Folder with one JSON file for each GPU, with clock rate, bandwidths and memory sizes from public
documents or measurements. Files in the folder `mma_sync` of the user's folder replace the library's
files of the same GPUs."""
L2_SHARE, L2_KEPT = 0.7, 0.7
"""L2_SHARE: assumed share of the L2 cache's rate that kernels reach. L2_KEPT: assumed share of the
L2 cache's bytes that hold A and B."""


@dataclass(frozen=True)
class Latencies:
    """Times and rates of kernels with mma.sync that no public document states.

    Args:
        device: name of the GPU on which the times were measured, as the driver reports it.
        source: the measured times to which these times and rates were fitted.
        clock: clock rate in Hz during the measurement.
        launch_seconds: seconds that a launch adds to the time of its workgroups.
        stream_seconds: further seconds of a launch that divides tiles along k.
        reach_seconds: seconds from the request of tiles of A and B until they are in shared memory.
        iteration_seconds: seconds of an iteration in which the warps of a workgroup wait for each
            other and do not multiply.
        dram_seconds: latency of memory in seconds.
        store_rate: bytes of D per second that a workgroup stores at the end of a tile.
        receive_seconds: seconds until a partial sum of another workgroup can be added.
        partial_rate: bytes of partial sums per second that a workgroup writes or adds.
    """

    device: str
    source: str
    clock: float
    launch_seconds: float
    stream_seconds: float
    reach_seconds: float
    iteration_seconds: float
    dram_seconds: float
    store_rate: float
    receive_seconds: float
    partial_rate: float

    def at(self, clock: float) -> Latencies:
        """The latencies of a GPU with another clock rate, in Hz.

        The latencies of a launch and of memory do not depend on the clock rate, so they are kept.
        """
        ratio = self.clock / clock
        return replace(
            self,
            clock=clock,
            stream_seconds=self.stream_seconds * ratio,
            reach_seconds=self.reach_seconds * ratio,
            iteration_seconds=self.iteration_seconds * ratio,
            store_rate=self.store_rate / ratio,
            receive_seconds=self.receive_seconds * ratio,
            partial_rate=self.partial_rate / ratio,
        )


@dataclass(frozen=True)
class GpuFigures:
    """Rates and sizes of a GPU from public documents, and the name of a GPU with its latencies.

    Args:
        device: name of the GPU, as the driver reports it.
        architecture: the name of the architecture, such as `sm_80`.
        processors: number of SMs.
        estimated: whether the numbers are from documents; False if they were measured on the GPU.
        source: the documents that state the numbers.
        details: what each document states, and what is computed or assumed.
        latencies_of: name of the measured GPU whose latencies are taken over.
        clock: boost clock rate in Hz.
        flops_per_clock: operations per cycle of an SM's tensor cores on dense 16-bit operands with
            sums in f32; for 8-bit operands the number is twice as large.
        sm_shared_bytes: bytes of shared memory of an SM.
        l2_bytes: bytes of the L2 cache.
        l2_bytes_per_clock: bytes per cycle that the L2 cache delivers to all SMs.
        dram_rate: bytes per second of memory.
        dram_share: assumed share of `dram_rate` that kernels reach.
    """

    device: str
    architecture: str
    processors: int
    estimated: bool
    source: str
    details: str
    latencies_of: str
    clock: float
    flops_per_clock: float
    sm_shared_bytes: int
    l2_bytes: float
    l2_bytes_per_clock: float
    dram_rate: float
    dram_share: float

    @property
    def reached_l2_rate(self) -> float:
        """Bytes per second of the L2 cache that kernels reach, over all SMs."""
        return L2_SHARE * self.l2_bytes_per_clock * self.clock

    @property
    def reached_dram_rate(self) -> float:
        """Bytes per second of memory that kernels reach."""
        return self.dram_share * self.dram_rate

    @property
    def kept_bytes(self) -> float:
        """Bytes of the L2 cache that are assumed to hold A and B; other data takes the rest."""
        return L2_KEPT * self.l2_bytes

    @cached_property
    def latencies(self) -> Latencies:
        """The latencies of the GPU `latencies_of`, scaled to the clock rate of this GPU."""
        return measured_latencies(self.latencies_of).at(self.clock)

    @property
    def origin(self) -> str:
        """A phrase: which documents state the GPU's rates, and which GPU's latencies are used."""
        taken = f"latencies are those of kernels with mma.sync on {self.latencies_of}"
        return f"{self.source}; {taken}, scaled by clock rate"

    def to_json(self) -> str:
        """All fields (rates, sizes and sources about the GPU) as JSON."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> GpuFigures:
        """Parse the JSON text that `to_json` returned.

        Raises:
            ValueError, TypeError: the text is not JSON, has other fields, or names a GPU that has
                no file of measured latencies.
        """
        found = cls(**json.loads(text))
        if not file_of(found.latencies_of, FOLDER / "measured").exists():
            raise ValueError(
                f"latencies_of={found.latencies_of!r} is a GPU without measured latencies; give a "
                f"GPU with a file in {FOLDER / 'measured'}"
            )
        return found


@cache
def measured_latencies(device: str) -> Latencies:
    """The measured latencies of a GPU.

    Raises:
        FileNotFoundError: the latencies of the GPU were not measured.
    """
    return Latencies(**json.loads(file_of(device, FOLDER / "measured").read_text("utf-8")))


@cache
def library_figures() -> Mapping[str, GpuFigures]:
    """The `GpuFigures` (rates and sizes of a GPU) of all files of the library, by GPU name."""
    found = [GpuFigures.from_json(path.read_text("utf-8")) for path in _files(FOLDER)]
    return {each.device: each for each in found}


@cache
def known_figures() -> Mapping[str, GpuFigures]:
    """The `GpuFigures` (rates and sizes) of every GPU that has a file, by GPU name.

    A file in the folder `mma_sync` of the user's folder replaces the library's file of the same
    GPU. A file of the user that cannot be read is skipped with a warning.
    """
    found = dict(library_figures())
    for path in _files(user_folder() / FOLDER.name):
        own = read_own(path, GpuFigures.from_json, "figures of a GPU", "correct it, or delete it")
        if own is not None:
            found[own.device] = own
    return found


def figures_of(device: str, processors: int) -> GpuFigures | None:
    """The published rates and sizes of a GPU, or of a part of it; None if no file has them.

    Rates and sizes that all SMs share are scaled by the number of SMs.

    Args:
        device: name of the GPU, as the driver reports it.
        processors: number of SMs; a partition of a GPU has fewer than its file says.
    """
    found = known_figures().get(device)
    if found is None or processors == found.processors:
        return found
    return _scaled(found, processors)


@cache
def _scaled(base: GpuFigures, processors: int) -> GpuFigures:
    """The rates and sizes of a partition of a GPU that has `processors` of the GPU's SMs."""
    ratio = processors / base.processors
    return replace(
        base,
        processors=processors,
        l2_bytes=base.l2_bytes * ratio,
        l2_bytes_per_clock=base.l2_bytes_per_clock * ratio,
        dram_rate=base.dram_rate * ratio,
        source=f"{base.source}; scaled to {processors} of {base.processors} SMs",
    )


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))
