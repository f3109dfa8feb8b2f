"""`Simulation`: the events of a simulated launch, and the quantities computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgraph.interpreter.lockstep import StepKind, Steps
from passes.simulation.events import Activity, Events
from passes.simulation.machine import Machine

__all__ = ["Simulation"]


@dataclass(frozen=True)
class Simulation:
    """The result of a simulated launch: events, times and memory traffic.

    Args:
        machine: the GPU.
        instructions: the instructions that multiply, `wgmma` or `mma.sync`. On a machine whose
            constants were fitted to measured times, `mma.sync` is simulated as fast as `wgmma`.
        steps: each step of every workgroup (multiply, send, receive, …), in program order.
        events: the activities of each workgroup, with begin, end and slot.
        makespan: seconds from the begin of the launch until the last workgroup has ended.
        slots: number of workgroups that can run at the same time.
        launch_seconds: seconds before the first workgroup begins.
        flops: number of multiplications and additions of all products.
        asked_bytes: bytes of A and B that are requested from the L2 cache.
        read_a_bytes, read_b_bytes: bytes of A and of B that are read from DRAM.
        compulsory_bytes: size of A and B in bytes, which at least must be read from DRAM.
        stored_bytes: bytes of D that are stored.
        workspace_bytes: bytes of memory for partial sums and flags.
        refusals: why faster instructions than `instructions` cannot multiply, a sentence for each.
    """

    machine: Machine
    instructions: str
    steps: Steps
    events: Events
    makespan: float
    slots: int
    launch_seconds: float
    flops: float
    asked_bytes: float
    read_a_bytes: float
    read_b_bytes: float
    compulsory_bytes: float
    stored_bytes: float
    workspace_bytes: int
    refusals: tuple[str, ...] = ()

    @property
    def read_bytes(self) -> float:
        """Bytes of A and B that are read from DRAM."""
        return self.read_a_bytes + self.read_b_bytes

    @property
    def fix_ups(self) -> int:
        """Number of partial sums that workgroups receive from other workgroups in the launch."""
        s = self.steps
        sends = np.flatnonzero(s.kind == StepKind.SEND)
        receives = np.isin(s.kind, (StepKind.RECEIVE, StepKind.AWAIT))
        first, count = s.first[receives], s.count[receives]
        turns = int((s.first + s.count).max(initial=0)) + 1
        # Each partial sum gets an integer, from its workspace slot and its position in the slot.
        # `sent` has the integers of the partial sums that are sent, sorted.
        sent = s.slot[sends] * turns + s.first[sends]
        order = np.argsort(sent, kind="stable")
        sent, sender = sent[order], s.workgroup[sends][order]
        # `received` has the integers of the partial sums that are received.
        position = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        received = np.repeat(s.slot[receives] * turns + first, count) + position
        at = np.searchsorted(sent, received, side="right") - 1
        own = (at >= 0) & (sent[at] == received) if len(sent) else np.zeros(len(at), bool)
        own[own] = sender[at[own]] == np.repeat(s.workgroup[receives], count)[own]
        return int((~own).sum())

    def seconds(self, activity: Activity) -> float:
        """Seconds of an activity, summed over workgroups, except while it overlaps multiplying."""
        return self.events.seconds(activity)

    @property
    def waiting(self) -> float:
        """Seconds that workgroups wait for partial sums, summed over workgroups."""
        return self.seconds(Activity.WAIT)

    @property
    def busy(self) -> float:
        """Seconds that workgroups run without waiting for partial sums, summed over workgroups."""
        return sum(self.seconds(a) for a in Activity if a is not Activity.WAIT)

    @property
    def idle(self) -> float:
        """Seconds in which a slot has no workgroup, from the begin of the launch, over all slots.

        A slot runs one workgroup at a time: it is an SM, a part of an SM, or a cluster of SMs.
        """
        return self.slots * self.makespan - self.busy - self.waiting

    @property
    def utilisation(self) -> float:
        """The fraction of the makespan in which a slot multiplies, averaged over all slots.

        A slot runs one workgroup at a time: it is an SM, a part of an SM, or a cluster of SMs.
        """
        total = self.slots * self.makespan
        return self.seconds(Activity.MULTIPLY) / total if total else 0.0

    @cached_property
    def waiting_of(self) -> NDArray[np.float64]:
        """For each workgroup, the seconds that it waits for partial sums."""
        e, found = self.events, np.zeros(self.steps.workgroups)
        waits = e.activity == Activity.WAIT
        np.add.at(found, e.workgroup[waits], (e.end - e.begin)[waits])
        return found

    @property
    def flops_per_second(self) -> float:
        """Multiplications and additions of the products per second, over the whole makespan."""
        return self.flops / self.makespan if self.makespan else 0.0

    def summary(self) -> dict[str, Any]:
        """The results as plain data for JSON, without the events."""
        return {
            "machine": self.machine.name,
            "instructions": self.instructions,
            "makespan_seconds": self.makespan,
            "flops_per_second": self.flops_per_second,
            "slots": self.slots,
            "workgroups": self.steps.workgroups,
            "utilisation": self.utilisation,
            "slot_seconds": {
                **{a.name.lower(): self.seconds(a) for a in Activity},
                "idle": self.idle,
            },
            "longest_wait_seconds": float(self.waiting_of.max(initial=0.0)),
            "waiting_workgroups": int((self.waiting_of > 0).sum()),
            "fix_ups": self.fix_ups,
            "workspace_bytes": self.workspace_bytes,
            "asked_bytes": self.asked_bytes,
            "read_bytes": self.read_bytes,
            "read_a_bytes": self.read_a_bytes,
            "read_b_bytes": self.read_b_bytes,
            "compulsory_bytes": self.compulsory_bytes,
            "stored_bytes": self.stored_bytes,
        }

    def event_columns(self) -> dict[str, list[Any]]:
        """The events as columns of plain data, with the output tile and k tiles of each.

        `product`, `m`, `n`, `first` and `count` are None in events that belong to no tile.
        """
        e, s = self.events, self.steps
        found: dict[str, list[Any]] = {
            "begin": e.begin.tolist(),
            "end": e.end.tolist(),
            "workgroup": e.workgroup.tolist(),
            "slot": e.slot.tolist(),
            "activity": [Activity(a).name.lower() for a in e.activity.tolist()],
            "behind": e.behind.astype(bool).tolist(),
        }
        of_tile = (e.step >= 0).tolist()
        for name in ("product", "m", "n", "first", "count"):
            values = getattr(s, name)[np.maximum(e.step, 0)].tolist() if len(s) else []
            found[name] = [
                value if there else None for value, there in zip(values, of_tile, strict=True)
            ]
        return found
