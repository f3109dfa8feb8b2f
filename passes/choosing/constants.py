"""`Constants`: what a device can do, as far as plans depend on it; one JSON file a device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from passes.choosing.table import Column

__all__ = ["FITTED", "Constants", "constants_of", "known_devices"]

FOLDER = Path(__file__).with_name("devices")
MEASURED = "NVIDIA H200"


@dataclass(frozen=True)
class Constants:
    """Facts of a device, and figures that `passes.choosing.calibrate` fits to measured times.

    Args:
        device: its name, as the driver says it.
        processors: SMs.
        pairs, fours: clusters of 2 and of 4 workgroups that it holds at a time.
        estimated: scaled from another device, not measured.
        source: where the figures are from.
        clock: cycles a second while multiplying.
        shared_bytes: bytes a cycle that the tensor cores of an SM read from shared memory.
        twins: what multiplications take longer where two warpgroups have B as the left operand,
            and `short` where the ring has fewer than four stages.
        step_seconds: of an iteration besides its multiplications.
        reach_seconds: from a free stage to a full one: what bounds iterations of few stages.
        turn_seconds, copy_seconds: of the producer, for an iteration and for each box of it.
        ingest_rate: bytes a second into an SM's shared memory, and `ask_rate` those of them that it
            asks for itself, without what others of its cluster bring.
        straddle: what asking for a box takes longer where its rows begin inside cache lines, and
            `split` where inside sectors of 32 bytes; `narrow` where they are shorter than a line.
        paired: what asking and bringing in take longer where more than half of the SMs are busy:
            then two of them seem to share a way to the L2 cache. `beside`: the same for clusters on
            fewer of them, whose workgroups lie side by side.
        empty_seconds: of a row outside A or B that is filled with zeros.
        l2_rate, dram_rate: bytes a second of all.
        merged: of what neighbours ask the L2 cache for at the same time, the share that is asked
            for once.
        pull_rate: those of one workgroup that come from memory, where more than half of the SMs are
            busy, and `lone_rate` where fewer are.
        again: of the larger operand, what asking twice as often for it costs as if it were read.
        dram_seconds: until the first bytes come from memory.
        l2_bytes: of the L2 cache: what it keeps of A and B within a call.
        mixed_loss: the share of what others have read that streamed shares do not find there.
        launch_seconds: of a launch, where launches overlap.
        cluster_seconds, band_seconds: of one with clusters, and of one in bands, besides;
            `stream_seconds` where tiles are streamed, `shape_seconds` where they have two shapes.
        fill_seconds: until the first box is in shared memory, besides the time it takes alone.
        tile_seconds, box_seconds: the end of a tile, and of each box that a warpgroup stores.
        slot_rate, store_rate: bytes of D a second of a workgroup: while boxes wait for each other's
            slots in shared memory, and until the last ones have left.
        split_store: what storing takes longer where rows of D begin inside sectors, and `odd_store`
            where they begin inside lines and boxes are not swizzled.
        handover_seconds: from one main loop to the next where warpgroups take turns.
        send_seconds, send_rate: a partial sum, sent.
        receive_seconds, receive_rate: one added: a step of it, and its bytes a second.
        level_seconds: of a level of a tree of partial sums, besides what is received.
        scatter_seconds, scatter_rate: of the sum of all pieces of a share, where every workgroup
            that has a piece finishes one.
        sum_seconds, sum_rate: the sum over a cluster that divides k.
        power_flops, power_shared, power_l2, power_dram: operations and bytes a second that the
            power limit allowed if there were nothing else.
        sharpness: the degree of the norm that stands for the largest of loop and floors, and
            `evenness` of the one for what bounds an iteration: the more even, the higher.
    """

    device: str
    processors: int
    pairs: int
    fours: int
    estimated: bool
    source: str
    clock: float = 1.755e9
    shared_bytes: float = 128.0
    twins: float = 1.03
    short: float = 1.05
    step_seconds: float = 20e-9
    reach_seconds: float = 0.7e-6
    turn_seconds: float = 40e-9
    copy_seconds: float = 35e-9
    ingest_rate: float = 110e9
    ask_rate: float = 100e9
    straddle: float = 1.3
    split: float = 1.5
    narrow: float = 1.2
    paired: float = 1.3
    beside: float = 1.2
    empty_seconds: float = 2e-9
    l2_rate: float = 7.5e12
    merged: float = 0.6
    dram_rate: float = 4.3e12
    pull_rate: float = 36e9
    lone_rate: float = 60e9
    again: float = 0.2
    dram_seconds: float = 0.5e-6
    l2_bytes: float = 40e6
    mixed_loss: float = 0.2
    launch_seconds: float = 2e-6
    cluster_seconds: float = 0.3e-6
    band_seconds: float = 0.1e-6
    stream_seconds: float = 0.1e-6
    shape_seconds: float = 0.2e-6
    fill_seconds: float = 0.3e-6
    tile_seconds: float = 0.8e-6
    box_seconds: float = 0.1e-6
    slot_rate: float = 200e9
    store_rate: float = 60e9
    split_store: float = 1.5
    odd_store: float = 1.3
    handover_seconds: float = 0.15e-6
    send_seconds: float = 1e-6
    send_rate: float = 30e9
    receive_seconds: float = 0.1e-6
    receive_rate: float = 70e9
    level_seconds: float = 1e-6
    scatter_seconds: float = 3e-6
    scatter_rate: float = 40e9
    sum_seconds: float = 1.2e-6
    sum_rate: float = 80e9
    power_flops: float = 1000e12
    power_shared: float = 400e12
    power_l2: float = 40e12
    power_dram: float = 20e12
    sharpness: float = 6.0
    evenness: float = 6.0

    def slots(self, workgroups: Column) -> Column:
        """Clusters of so many workgroups that the device holds at a time."""
        larger = np.floor(self.processors / workgroups)
        found = np.where(workgroups == 1, self.processors, larger)
        return np.where(workgroups == 2, self.pairs, np.where(workgroups == 4, self.fours, found))

    def to_json(self) -> str:
        """Text to be kept in a file."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Constants:
        """Read what `to_json` gave. TypeError where it is something else."""
        return cls(**json.loads(text))

    def with_figures(self, figures: Mapping[str, float]) -> Constants:
        """With other fitted figures."""
        return replace(self, **cast(dict[str, Any], figures))


FITTED = tuple(f.name for f in fields(Constants) if isinstance(f.default, float))


@cache
def known_devices() -> dict[str, Constants]:
    """Every device that there is a file of, by its name."""
    found = (Constants.from_json(p.read_text("utf-8")) for p in sorted(FOLDER.glob("*.json")))
    return {c.device: c for c in found}


def constants_of(device: str = MEASURED, processors: int | None = None) -> Constants:
    """The constants of a device; of one without a file, those of the measured one, scaled.

    What all share grows with the number of processors; what each has for itself is taken to be the
    same.

    Args:
        device: its name, as the driver says it.
        processors: its SMs, where they differ from those of the file: partitioned devices have
            fewer.
    """
    known = known_devices()
    found = known.get(device, known[MEASURED])
    if found.device == device and processors in (None, found.processors):
        return found
    return _scaled(found, device, processors or found.processors)


@cache
def _scaled(base: Constants, device: str, processors: int) -> Constants:
    ratio = processors / base.processors
    shared = ("l2_rate", "dram_rate", "l2_bytes", *(n for n in FITTED if n.startswith("power_")))
    return replace(
        base,
        device=device,
        processors=processors,
        pairs=processors // 2,
        fours=int(base.fours * ratio),
        estimated=True,
        source=f"scaled from {base.device} by the number of SMs, an estimate",
    ).with_figures({name: getattr(base, name) * ratio for name in shared})
