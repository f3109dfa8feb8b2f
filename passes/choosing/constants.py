"""`Constants`: rates, latencies and sizes of a device for the cost model, stored as JSON files."""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from passes.choosing.counting import Column
from passes.choosing.device_names import matching

__all__ = [
    "FITTED",
    "MEASURED",
    "Constants",
    "constants_of",
    "file_of",
    "known_devices",
    "read_own",
    "user_folder",
]

T = TypeVar("T")

FOLDER = Path(__file__).with_name("devices")
"""Folder with one JSON file for each device that the library knows: the cost model's constants."""
VARIABLE = "COORDGRAPH_DEVICES"
"""The environment variable with the folder of the user's own files of constants of the cost
model."""
TIMES = ".times.json"
"""Suffix of the name of the file that holds the measured times of a calibration, in the same folder
as the device's file of constants."""
L2_KEPT = 0.6
"""Share of the L2 cache that is assumed to hold A and B. Lines that SMs on both sides of the GPU
request are held twice, once on each side. By hardware counters of an H200 (`benchmarks traffic`,
and `benchmarks counters` of Stream-K at 3456 x 3840 x 6264), A and B are read from memory as often
as with a cache of about 30 MB that evicts the least recently used line first."""
MEASURED = "NVIDIA H200"
"""Name of the device whose constants, scaled by the number of SMs, are used for a device that has
no file of calibrated constants."""


@dataclass(frozen=True)
class Constants:
    """Properties of a device, and constants of the cost model fitted to measured times.

    Constants in `KNOWN` come from a data sheet or from a direct measurement. Constants in `FITTED`
    are fitted by `passes.choosing.calibrate`; their defaults are its first guesses. Constants in
    `DETAILS` keep their defaults, and files of devices leave them out: on sizes that were not
    used in the fit, they did not improve the choice of plans. Some constants in `DETAILS` are
    fitted separately for the simulation of workgroups (`passes.simulation`).

    Args:
        device: name of the device, as the driver reports it.
        processors: number of SMs.
        pairs, fours, eights: number of clusters of 2, of 4 and of 8 CTAs that are resident at a
            time, as the driver reports it.
        estimated: whether the fitted constants are those of another device, not measured.
        source: description of where the constants come from.
        clock: clock rate in Hz while tensor cores multiply; the power limit keeps it below the
            highest clock rate of the device.
        shared_bytes: bytes per cycle that the tensor cores of an SM read from shared memory.
        l2_bytes: bytes of the L2 cache.
        dram_rate: bytes per second of memory, over all SMs; nine tenths of the data sheet's.
        lone_rate: bytes per second that one CTA reads from memory if at most half of the SMs are
            busy.
        tall: time factor of multiplications if the warpgroups of a CTA multiply four or more blocks
            of 64 rows of wgmma's left operand. A block whose columns two warpgroups divide counts
            twice.
        short: time factor of multiplications if fewer than four pipeline stages (buffers for A and
            B of one iteration) fit in shared memory.
        reach_seconds: seconds from the release of a pipeline stage until it is full again.
        turn_seconds, copy_seconds: seconds that the producer warp takes per iteration, and per TMA
            box that it requests.
        ingest_rate: bytes per second that arrive in an SM's shared memory.
        ask_rate: bytes per second that an SM requests itself, without multicast from its cluster.
        split: requests for rows that begin inside a sector of 32 bytes have the time factor
            `straddle + split - 1` instead of `straddle`.
        narrow: time factor of TMA requests if rows of a box are shorter than a cache line.
        paired: time factor of requests and of arriving data if more than half of the SMs are busy:
            two SMs then seem to share a path to the L2 cache.
        beside: time factor of requests and of arriving data of clusters if at most half of the SMs
            are busy: the CTAs of a cluster run on neighbouring SMs, which share a path to the L2
            cache.
        l2_rate: bytes per second of the L2 cache, over all SMs.
        merged: share of requests by neighbouring workgroups, for the same data at the same time,
            that the L2 cache merges into one.
        pull_rate: bytes per second that one CTA reads from memory if more than half of the SMs are
            busy.
        again: share of the time to read the larger of A and B from memory once. This share is added
            for each doubling of the number of output tiles that read the same element.
        dram_seconds: latency of memory in seconds.
        launch_seconds: seconds that a launch adds to the time of its workgroups, if consecutive
            launches overlap.
        large_seconds: further seconds of a launch with clusters of eight CTAs, or of several CTAs
            both along m and along n, besides cluster_seconds.
        meet_seconds: seconds that each operand (A, B) with multicast adds to reach_seconds: TMA
            multicasts to a stage only when all receiving CTAs have released the stage.
        cluster_seconds, stream_seconds, shape_seconds: further seconds of a launch with clusters,
            with tiles divided along k, and with tiles of two shapes.
        fill_seconds: seconds until the first TMA box is in shared memory, besides its transfer.
        box_seconds: seconds for each box of D that a warpgroup stores at the end of a tile.
        slot_rate: bytes of D per second that a CTA copies to buffers in shared memory if it must
            wait for earlier stores to free these buffers.
        store_rate: bytes of D per second that a CTA stores at the end, when nothing overlaps.
        split_store: time factor of stores if rows of D begin inside sectors of 32 bytes.
        odd_store: time factor of stores if rows of D begin inside cache lines and the TMA boxes of
            D are not swizzled.
        send_seconds: seconds to send a partial sum to another CTA.
        receive_seconds, receive_rate: adding a partial sum takes receive_seconds for each step in
            which a CTA reads a part of the sum (see `Shape.steps`), plus the sum's bytes divided by
            receive_rate (bytes per second).
        level_seconds: further seconds for each level of the `tree` reduction of partial sums.
        scatter_seconds, scatter_rate: a `scatter` reduction takes a CTA scatter_seconds, plus the
            bytes of the partial sums that it adds up divided by scatter_rate (bytes per second).
        skew: share of the main loop's time that the workgroups of a tile wait for the slowest of
            them in a `scatter` reduction, in which each needs a part of every sum.
        sum_rate: bytes per second of sums over a cluster whose CTAs divide k.
        power_flops: arithmetic operations per second at the power limit.
        sharpness: degree p of the p-norm that approximates the maximum of the main loop's time and
            the lower bounds of this time.
        step_seconds: seconds of an iteration besides its multiplications.
        twins: time factor of multiplications if two warpgroups have B as the left operand of wgmma.
        straddle: time factor of TMA requests for rows that begin inside a cache line of 128 bytes:
            the request for such a row reads one more line.
        empty_seconds: seconds to fill one row outside A or B with zeros in shared memory.
        band_seconds: further seconds of a launch with bands of tiles.
        tile_seconds: seconds at the end of a tile.
        handover_seconds: seconds between the main loops of two pingpong warpgroups.
        send_rate: bytes per second of sending a partial sum.
        sum_seconds: latency of a sum over a cluster whose CTAs divide k.
        power_shared, power_l2, power_dram: bytes per second of shared memory, L2 cache and memory
            that alone would reach the power limit.
        evenness: degree p of the p-norm that approximates the maximum of the times that resources,
            such as tensor cores and TMA, take in one iteration.
    """

    device: str
    processors: int
    pairs: int
    fours: int
    eights: int
    estimated: bool
    source: str
    clock: float = 1.55e9
    shared_bytes: float = 128.0
    l2_bytes: float = 50e6
    dram_rate: float = 4.32e12
    lone_rate: float = 66e9
    tall: float = 1.03
    short: float = 1.05
    reach_seconds: float = 0.45e-6
    turn_seconds: float = 90e-9
    copy_seconds: float = 8e-9
    ingest_rate: float = 200e9
    ask_rate: float = 210e9
    split: float = 2.3
    narrow: float = 1.5
    paired: float = 1.4
    beside: float = 1.1
    l2_rate: float = 11e12
    merged: float = 0.4
    pull_rate: float = 36e9
    again: float = 0.1
    dram_seconds: float = 1.2e-6
    launch_seconds: float = 0.2e-6
    cluster_seconds: float = 0.4e-6
    large_seconds: float = 0.3e-6
    meet_seconds: float = 0.25e-6
    stream_seconds: float = 0.25e-6
    shape_seconds: float = 1e-6
    fill_seconds: float = 1e-6
    box_seconds: float = 0.1e-6
    slot_rate: float = 180e9
    store_rate: float = 80e9
    split_store: float = 2.0
    odd_store: float = 1.6
    send_seconds: float = 1.6e-6
    receive_seconds: float = 60e-9
    receive_rate: float = 100e9
    level_seconds: float = 1e-6
    scatter_seconds: float = 0.7e-6
    scatter_rate: float = 28e9
    skew: float = 0.05
    sum_rate: float = 22e9
    power_flops: float = 900e12
    sharpness: float = 4.0
    step_seconds: float = 0.0
    twins: float = 1.0
    straddle: float = 2.0
    empty_seconds: float = 0.0
    band_seconds: float = 0.0
    tile_seconds: float = 0.0
    handover_seconds: float = 0.0
    send_rate: float = math.inf
    sum_seconds: float = 0.0
    power_shared: float = math.inf
    power_l2: float = math.inf
    power_dram: float = math.inf
    evenness: float = 8.0

    @property
    def kept_bytes(self) -> float:
        """Bytes of A and B that the L2 cache is assumed to keep."""
        return L2_KEPT * self.l2_bytes

    def slots(self, workgroups: Column) -> Column:
        """Number of clusters that are resident on the device at the same time.

        Args:
            workgroups: number of CTAs in a cluster.
        """
        larger = np.floor(self.processors / workgroups)
        found = np.where(workgroups == 1, self.processors, larger)
        for count, resident in ((2, self.pairs), (4, self.fours), (8, self.eights)):
            found = np.where(workgroups == count, resident, found)
        return found

    def to_json(self) -> str:
        """The constants as JSON, without constants of `DETAILS` that have their default value."""
        neutral = {f.name: f.default for f in fields(self) if f.name in DETAILS}
        known = {n: x for n, x in asdict(self).items() if n not in neutral or x != neutral[n]}
        return json.dumps(known, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Constants:
        """Parse the JSON text that `to_json` returned.

        Raises:
            ValueError, TypeError: the text is not JSON, or has other fields.
        """
        found = json.loads(text)
        if missing := [name for name in (*KNOWN, *FITTED) if name not in found]:
            raise ValueError(f"{', '.join(missing)} missing")
        return cls(**found)

    def with_figures(self, figures: Mapping[str, float]) -> Constants:
        """A copy of the constants with other values for some of them.

        Args:
            figures: the new values, by field name.
        """
        return replace(self, **cast(dict[str, Any], figures))


KNOWN = ("shared_bytes", "l2_bytes", "dram_rate", "lone_rate")
"""Names of constants of the cost model that are not fitted: they come from a data sheet or a
measurement."""
DETAILS = {
    "step_seconds": 20e-9,
    "twins": 1.03,
    "straddle": 1.3,
    "empty_seconds": 2e-9,
    "band_seconds": 0.1e-6,
    "tile_seconds": 0.8e-6,
    "handover_seconds": 0.15e-6,
    "send_rate": 30e9,
    "sum_seconds": 1.2e-6,
    "power_shared": 400e12,
    "power_l2": 40e12,
    "power_dram": 20e12,
    "evenness": 6.0,
}
"""Constants that did not improve the cost model's choice of plans on sizes not used in the fit.

The cost model uses the defaults of `Constants`. Most of these have no effect: a factor of 1, no
seconds, or an unlimited rate. The values here are first guesses for constants of the simulation,
which are fitted separately.
"""
FITTED = tuple(
    f.name
    for f in fields(Constants)
    if isinstance(f.default, float) and f.name not in (*KNOWN, *DETAILS)
)
"""Names of the constants that `passes.choosing.calibrate` fits."""


def user_folder() -> Path:
    """The folder of the files that `coordgraph calibrate` writes; it may not exist yet."""
    if chosen := os.environ.get(VARIABLE, "").strip():
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_config_dir("coordgraph", appauthor=False)) / "devices"


def file_of(device: str, folder: Path = FOLDER) -> Path:
    """The path of a device's file of constants in a folder.

    Args:
        device: name of the device, as the driver reports it.
        folder: the folder of the library, or that of the user.

    >>> file_of("NVIDIA H200").name
    'nvidia-h200.json'
    """
    return folder / f"{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.json"


def read_own(path: Path, read: Callable[[str], T], content: str, advice: str) -> T | None:
    """Read a file of the user about a device; None, with a warning, if it cannot be read.

    Args:
        path: the file.
        read: parses the text of the file.
        content: a phrase for the content of the file, which the warning quotes.
        advice: what the user can do about the file, as the end of the warning.
    """
    try:
        return read(path.read_text("utf-8"))
    except (OSError, ValueError, TypeError) as error:
        warnings.warn(
            f"{path} has no {content} of this version of coordgraph ({error}), so it is not used; "
            f"{advice}",
            RuntimeWarning,
            stacklevel=3,
        )
        return None


@cache
def known_devices() -> dict[str, Constants]:
    """The constants of every device that has a file, by the device's name.

    A file in the user's folder replaces the library's file of the same device. A file of the user
    that cannot be read is skipped with a warning.
    """
    found = [Constants.from_json(p.read_text("utf-8")) for p in sorted(FOLDER.glob("*.json"))]
    for path in sorted(user_folder().glob("*.json")):
        if path.name.endswith(TIMES):
            continue
        advice = "write it again by `coordgraph calibrate`, or delete it"
        own = read_own(path, Constants.from_json, "constants", advice)
        found += () if own is None else (own,)
    return {c.device: c for c in found}


def constants_of(device: str = MEASURED, processors: int | None = None) -> Constants:
    """The constants of a device; if it has no file, the H200's, scaled by the number of SMs.

    Rates and sizes of the whole device are scaled by the number of SMs; constants of one SM stay
    the same.

    Args:
        device: name of the device, as the driver reports it, or a short one such as `H100`.
        processors: number of SMs; None uses the number in the file. A partition of a device has
            fewer SMs than its file says.
    """
    known = known_devices()
    if device not in known:
        device = matching(device, known) or device
    found = known.get(device, known[MEASURED])
    if found.device == device and processors in (None, found.processors):
        return found
    return _scaled(found, device, processors or found.processors)


@cache
def _scaled(base: Constants, device: str, processors: int) -> Constants:
    """Constants of `base` scaled to `processors` SMs, as an estimate for the device `device`."""
    ratio = processors / base.processors
    shared = (
        *("l2_rate", "dram_rate", "l2_bytes"),
        *("power_flops", "power_shared", "power_l2", "power_dram"),
    )
    return replace(
        base,
        device=device,
        processors=processors,
        pairs=processors // 2,
        fours=int(base.fours * ratio),
        eights=int(base.eights * ratio),
        estimated=True,
        source=f"those of {base.device}, scaled by the number of SMs; differences in clock rate, "
        "memory and power limit are left out",
    ).with_figures({name: getattr(base, name) * ratio for name in shared})
