"""`Timeline`: the events of a measured launch, with the columns of a simulated timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgraph.control.timeline import ROLES
from passes.simulation.events import Activity

__all__ = ["Timeline"]

NONE = -1
FIX_UP = (Activity.SEND, Activity.WAIT, Activity.RECEIVE)
"""The activities of the fix-up, in which workgroups exchange partial sums of a tile."""
PRODUCER = ROLES.index("producer")
TILE_COLUMNS = ("product", "m", "n", "first", "count")
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Timeline:
    """A measured launch: the activities of its workgroups, with times and SMs.

    Events of the same threads follow each other without a gap. The producer of a Hopper kernel
    loads while consumers multiply, and with ping-pong consumers one warpgroup finishes a tile while
    another one multiplies. The column `behind` marks events that overlap multiplications by other
    threads of the same CTA.

    Attributes:
        begin, end: seconds since the first workgroup began.
        workgroup: the number of the workgroup, which is a cluster in kernels with clusters.
        slot: the number of the SM, or on a CPU the number of the thread.
        activity: the number of the `Activity`: what the workgroup did, such as MULTIPLY.
        behind: True for all events of a producer, and for an event of a consumer that is no
            multiplication, if another warpgroup of the CTA multiplies during most of the event.
        role: the position in `coordgraph.control.timeline.ROLES` of the threads' role.
        rank: the rank of the CTA in its cluster; 0 without clusters.
        warpgroup: the number of the warpgroup that recorded the event; 0 without roles.
        stalled: seconds of the event in which its threads waited for a shared-memory stage.
        product, m, n: the output tile: the number of its matrix product, and its position along m
            and n in unit tiles (the largest tiles that divide all shapes of output tiles); -1 in
            events that belong to no tile.
        first, count: the first k tile and the number of k tiles; -1 in events that sum no k tiles.
        target: the target of the kernel, such as `sm_90a`.
        name: the name of the kernel: its schedule.
        workgroups: number of workgroups of the launch.
        dropped: number of records that were not kept because the memory for them was full.
    """

    begin: Floats
    end: Floats
    workgroup: Integers
    slot: Integers
    activity: Integers
    behind: NDArray[np.bool_]
    role: Integers
    rank: Integers
    warpgroup: Integers
    stalled: Floats
    product: Integers
    m: Integers
    n: Integers
    first: Integers
    count: Integers
    target: str
    name: str
    workgroups: int
    dropped: int

    @classmethod
    def of(
        cls,
        columns: Mapping[str, NDArray[Any]],
        *,
        target: str,
        name: str,
        workgroups: int,
        dropped: int,
    ) -> Timeline:
        """Make a timeline from all columns except `behind`, which is computed from the others."""
        behind = _behind(columns)
        return cls(
            **columns,
            behind=behind,
            target=target,
            name=name,
            workgroups=workgroups,
            dropped=dropped,
        )

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def makespan(self) -> float:
        """Seconds from the beginning of the first workgroup to the end of the last workgroup."""
        return float(self.end.max(initial=0.0))

    @cached_property
    def processors(self) -> tuple[int, ...]:
        """The ids of the SMs (on a CPU, of the threads) that executed a workgroup, ascending."""
        return tuple(map(int, np.unique(self.slot)))

    @cached_property
    def lane(self) -> Integers:
        """For each event, the number of its CTA among the CTAs that ran on the SM at the same time.

        Numbers start at 0 on each SM, and a number is reused after its CTA has ended.
        """
        found = np.zeros(len(self), np.int64)
        free: dict[int, list[float]] = {}
        ctas = self.workgroup * (int(self.rank.max(initial=0)) + 1) + self.rank
        order = np.lexsort((self.begin, ctas))
        borders = np.flatnonzero(np.r_[True, np.diff(ctas[order]) != 0]) if len(order) else order
        groups = np.split(order, borders[1:])
        for group in sorted((g for g in groups if len(g)), key=lambda g: self.begin[g].min()):
            ends = free.setdefault(int(self.slot[group[0]]), [])
            begin, end = self.begin[group].min(), float(self.end[group].max())
            lane = next((i for i, until in enumerate(ends) if until <= begin), len(ends))
            ends[lane : lane + 1] = [end]
            found[group] = lane
        return found

    @property
    def lanes(self) -> int:
        """Largest number of CTAs that ran on one SM at the same time."""
        return int(self.lane.max(initial=-1)) + 1

    def seconds(self, activity: Activity) -> float:
        """Total seconds of an activity, without events marked `behind`.

        Events marked `behind` overlap multiplications by other threads of the same CTA.
        """
        return float(self._seconds(activity, ~self.behind).sum())

    def _seconds(self, activity: Activity, chosen: NDArray[np.bool_]) -> Floats:
        """For each SM, the seconds of an activity: a sum over the events where `chosen` is true."""
        there = chosen & (self.activity == activity)
        places = np.searchsorted(self.processors, self.slot[there])
        spent = (self.end - self.begin)[there]
        return np.bincount(places, spent, len(self.processors)).astype(np.float64)

    @cached_property
    def per_processor(self) -> tuple[dict[str, Any], ...]:
        """For each SM: seconds of each activity, of the fix-up, of the tail and of stalls.

        `Timeline.summary` describes the keys of the dictionaries.
        """
        spent = {a: self._seconds(a, ~self.behind) for a in Activity}
        found: list[dict[str, Any]] = []
        for place, number in enumerate(self.processors):
            own = self.slot == number
            parts = {a.name.lower(): float(seconds[place]) for a, seconds in spent.items()}
            found.append(
                {
                    "slot": number,
                    "workgroups": len(np.unique(self.workgroup[own])),
                    "slot_seconds": {
                        **parts,
                        "idle": self.lanes * self.makespan - sum(parts.values()),
                    },
                    "fix_up_seconds": sum(parts[a.name.lower()] for a in FIX_UP),
                    "tail_seconds": self.makespan - float(self.end[own].max()),
                    "stalled_seconds": {
                        role: float(self.stalled[own & (self.role == code)].sum())
                        for code, role in enumerate(ROLES)
                        if role and (self.role == code).any()
                    },
                }
            )
        return tuple(found)

    def summary(self) -> dict[str, Any]:
        """Total times as plain data: for all SMs together, and for each SM (key `per_slot`).

        `slot_seconds` has the seconds of each activity, without events marked `behind`, and of
        `idle`: the time without a workgroup. If an SM runs several CTAs at the same time, the time
        of each CTA is counted.

        `fix_up_seconds` is the sum of the activities send, wait and receive. `tail_seconds` is the
        time from the last event of an SM to the end of the launch. `stalled_seconds` has, for each
        role, the time in which the role's threads waited for a shared-memory stage.
        """
        rows = self.per_processor
        total = self.lanes * self.makespan * len(rows)
        seconds = _sums([row["slot_seconds"] for row in rows])
        return {
            "target": self.target,
            "name": self.name,
            "makespan_seconds": self.makespan,
            "workgroups": self.workgroups,
            "slots": len(rows),
            "workgroups_per_slot": self.lanes,
            "utilisation": seconds.get("multiply", 0.0) / total if total else 0.0,
            "slot_seconds": seconds,
            "fix_up_seconds": sum(row["fix_up_seconds"] for row in rows),
            "tail_seconds": sum(row["tail_seconds"] for row in rows),
            "stalled_seconds": _sums([row["stalled_seconds"] for row in rows]),
            "events": len(self),
            "dropped_records": self.dropped,
            "per_slot": [dict(row) for row in rows],
        }

    def event_columns(self) -> dict[str, list[Any]]:
        """The events as columns: lists of numbers and strings.

        The columns up to the one named `count` are also those of `Simulation.event_columns`.

        `product`, `m` and `n` are None in events that belong to no tile, `first` and `count` in
        events that sum no k tiles.
        """
        found: dict[str, list[Any]] = {
            "begin": self.begin.tolist(),
            "end": self.end.tolist(),
            "workgroup": self.workgroup.tolist(),
            "slot": self.slot.tolist(),
            "activity": [Activity(a).name.lower() for a in self.activity.tolist()],
            "behind": self.behind.tolist(),
        }
        for name in TILE_COLUMNS:
            values: list[int] = getattr(self, name).tolist()
            found[name] = [None if value == NONE else value for value in values]
        found["role"] = [ROLES[code] for code in self.role.tolist()]
        for name in ("rank", "warpgroup", "stalled"):
            found[name] = getattr(self, name).tolist()
        return found


def _sums(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """For each key of the dictionaries `rows`, the sum of its values in all of them."""
    return {name: sum(row[name] for row in rows) for name in (rows[0] if rows else ())}


def _behind(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """The column `behind`: whether an event overlaps multiplications by other threads of its CTA.

    The value is True for all events of a producer. For a consumer's event other than a
    multiplication, the value is True if another warpgroup multiplies during more than half of it.
    """
    producer = columns["role"] == PRODUCER
    found = producer.copy()
    multiplies = columns["activity"] == Activity.MULTIPLY
    consumers = np.flatnonzero(~producer)
    cta = columns["workgroup"] * (int(columns["rank"].max(initial=0)) + 1) + columns["rank"]
    if len(np.unique(columns["warpgroup"][consumers])) < 2:
        return found
    order = consumers[np.argsort(cta[consumers], kind="stable")]
    borders = np.flatnonzero(np.diff(cta[order])) + 1
    begins, ends, warpgroup = (columns[name] for name in ("begin", "end", "warpgroup"))
    for own in np.split(order, borders):
        main = own[multiplies[own]]
        for event in own[~multiplies[own]]:
            begin, end = begins[event], ends[event]
            other = main[warpgroup[main] != warpgroup[event]]
            shared = np.minimum(ends[other], end) - np.maximum(begins[other], begin)
            found[event] = shared.clip(min=0).sum() > 0.5 * (end - begin)
    return found
