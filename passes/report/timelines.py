"""Timelines for the HTML report: events in integer nanoseconds, and total time of each activity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from coordgraph.errors import VerifyError
from coordgraph.interpreter.lockstep import StepKind
from passes.report.rows import numbered_like_slots
from passes.simulation.events import Activity
from passes.simulation.simulation import Simulation

__all__ = [
    "ACTIVITIES",
    "BUCKETS",
    "EventColumns",
    "Grid",
    "Measured",
    "buckets_of",
    "dropped_records",
    "measured_run",
    "simulated_run",
    "tilings_of",
]

Columns = Mapping[str, Any]
"""Type: events as columns, by name: each column (`begin`, `slot`, …) has a value for each event."""
NANOSECONDS = 1e9
ACTIVITIES = tuple(a.name.lower() for a in Activity)
"""Names of the activities. For each event, the report's data has an index into this tuple."""
IN_BUCKET: Mapping[str, tuple[Activity, ...]] = {
    "multiply": (Activity.MULTIPLY,),
    "fix-up": (Activity.SEND, Activity.RECEIVE),
    "epilogue": (Activity.FINISH, Activity.DRAIN),
    "hand-over": (Activity.TURN,),
    "wait": (Activity.WAIT,),
    "start": (Activity.START,),
}
"""For each bucket (kind of time): the activities of a workgroup that count for it. If events of a
slot overlap, their common time counts for the bucket that is listed first."""
OUTSIDE = "outside D"
BUCKETS = (*IN_BUCKET, OUTSIDE, "launch", "gap", "tail")
"""Names of the kinds of time (buckets) into which the time of each slot is divided. A slot (an SM,
a part of one, or a cluster of SMs) runs one workgroup at a time. `outside D` is the time of
multiplying output tiles that lie entirely outside D, which does not count as `multiply`. `launch`
is the time before the slot's first event, `gap` the time between events, and `tail` the time after
the last one. The time of a slot without events is `tail`."""
OF_TILE = ("product", "m", "n", "first", "count")
NEEDED = ("begin", "end", "workgroup", "slot", "activity")
KNOWN = (*NEEDED, *OF_TILE, "behind", "role", "rank", "tiling")


@runtime_checkable
class EventColumns(Protocol):
    """Type of objects that have events as columns: a `Simulation` or a measured timeline."""

    def event_columns(self) -> dict[str, list[Any]]:
        """The events as lists, by column name: each list has one value for each event."""
        ...


Measured = EventColumns | Columns
"""Type of a measured timeline: events as columns by name, or an object that returns such
columns."""


@dataclass(frozen=True)
class Grid:
    """How D is divided into output tiles.

    Args:
        shapes: extents along m, n and k of each tile shape, in the order of the graph's `tilings`.
        m, n: extents of D.
    """

    shapes: Sequence[tuple[int, ...]]
    m: int
    n: int

    def outside(self, events: Columns) -> list[bool]:
        """For each event, whether its output tile lies entirely outside D."""
        found = list[bool]()
        for tiling, m, n in zip(events["tiling"], events["m"], events["n"], strict=True):
            rows, columns = self.shapes[tiling][:2] if 0 <= tiling < len(self.shapes) else (0, 0)
            found.append(m * rows >= self.m or n * columns >= self.n)
        return found


def simulated_run(simulation: Simulation, grid: Grid | None = None) -> dict[str, Any]:
    """Report data of a simulated run: events, duration in ns, and seconds of each kind of time."""
    columns = simulation.event_columns()
    step = simulation.events.step
    tiling = simulation.steps.tiling[np.maximum(step, 0)] if len(simulation.steps) else step
    columns["tiling"] = np.where(step >= 0, tiling, -1).tolist()
    run = _run("simulated", columns, simulation.slots, simulation.makespan, grid)
    return {**run, "launch": round(simulation.launch_seconds * NANOSECONDS)}


def measured_run(
    measured: Measured, simulated: Mapping[str, Any] | None, grid: Grid | None = None
) -> dict[str, Any]:
    """Report data of a measured run, in the same form as `simulated_run` returns.

    Args:
        measured: events as columns (`begin`, `end`, `slot` and so on, as `Simulation.event_columns`
            returns them); times in seconds.
        simulated: the data of the simulated run of the same launch, from which the tile shapes of
            measured events are taken; None if no run was simulated.
        grid: the tiles of D; None counts no tile as outside D.

    Returns:
        The run; `processors` has the numbers of the SMs of each slot.

    Raises:
        VerifyError: `measured` has no columns of events, is a Chrome trace, a column is missing,
            columns differ in length, or an activity is unknown.
    """
    found = measured.event_columns() if isinstance(measured, EventColumns) else measured
    if not isinstance(found, Mapping):
        raise VerifyError(
            f"the argument 'measured' has the type {type(measured).__name__}; give a Timeline, or "
            "the columns that Timeline.event_columns() returns"
        )
    columns = dict(found["events"]) if "events" in found else dict(found)
    if "traceEvents" in columns:
        raise VerifyError(
            "the argument 'measured' is a Chrome trace, which has no columns; give the file that "
            "'coordgraph trace --events FILE' writes, or Timeline.event_columns()"
        )
    if missing := [name for name in NEEDED if name not in columns]:
        raise VerifyError(
            f"the argument 'measured' has no column {', '.join(map(repr, missing))}; give the "
            "columns of Simulation.event_columns()"
        )
    columns = {name: columns[name] for name in KNOWN if name in columns}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise VerifyError(
            f"the columns of the argument 'measured' differ in length: {lengths}; give one value "
            "per event in each"
        )
    if unknown := set(columns["activity"]) - set(ACTIVITIES):
        raise VerifyError(
            f"the argument 'measured' has unknown activities {sorted(map(str, unknown))}; use "
            f"{', '.join(ACTIVITIES)}"
        )
    makespan = max(columns["end"], default=0.0)
    columns, processors = numbered_like_slots(columns)
    slots = max(len(processors), 0 if simulated is None else int(simulated["slots"]))
    if "tiling" not in columns:
        columns["tiling"] = _tilings_like(columns, simulated)
    return {**_run("measured", columns, slots, makespan, grid), "processors": processors}


def dropped_records(measured: Measured) -> int:
    """Number of timeline records for which the buffer of a launch was too small; 0 if unknown."""
    if isinstance(measured, EventColumns):
        return int(getattr(measured, "dropped", 0))
    return int(measured.get("dropped_records", 0))


def _tilings_like(columns: Columns, simulated: Mapping[str, Any] | None) -> list[int]:
    """For each measured event, the index of its tile's shape; -1 for an event without a tile.

    The index is copied from a simulated event of the same workgroup on the same tile; it is 0 if
    there is no such event.
    """
    count = len(columns["begin"])
    if simulated is None or "m" not in columns:
        return [0] * count
    keys = ("workgroup", "product", "m", "n")
    rows = zip(*(simulated["events"][key] for key in keys), strict=True)
    known = dict(zip(rows, simulated["events"]["tiling"], strict=True))
    own = zip(*(columns.get(key, [0] * count) for key in keys), strict=True)
    return [-1 if row[2] is None else known.get(row, 0) for row in own]


def _run(
    name: str, columns: Columns, slots: int, makespan: float, grid: Grid | None
) -> dict[str, Any]:
    count = len(columns["begin"])
    events: dict[str, list[Any]] = {
        side: np.rint(np.asarray(columns[side], float) * NANOSECONDS).astype(int).tolist()
        for side in ("begin", "end")
    }
    events["workgroup"] = [int(x) for x in columns["workgroup"]]
    events["slot"] = [int(x) for x in columns["slot"]]
    number = {activity: place for place, activity in enumerate(ACTIVITIES)}
    events["activity"] = [number[a] for a in columns["activity"]]
    events["behind"] = [int(bool(x)) for x in columns.get("behind", [0] * count)]
    for key in (*OF_TILE, "tiling"):
        events[key] = [-1 if x is None else int(x) for x in columns.get(key, [-1] * count)]
    if roles := columns.get("role"):
        events["role"] = [str(role) for role in roles]
    span = round(makespan * NANOSECONDS)
    kept = _consumers(events)
    buckets = buckets_of(kept, slots, span, None if grid is None else grid.outside(kept))
    return {"name": name, "slots": slots, "makespan": span, "events": events, "buckets": buckets}


def _consumers(events: Mapping[str, list[Any]]) -> Mapping[str, list[Any]]:
    """The events without the events of producer warps (on Hopper), which only load tiles."""
    kept = [role != "producer" for role in events.get("role", ())]
    if all(kept):
        return events
    return {
        name: [x for x, keep in zip(column, kept, strict=True) if keep]
        for name, column in events.items()
    }


def buckets_of(
    events: Columns, slots: int, makespan: int, outside: Sequence[bool] | None = None
) -> dict[str, float]:
    """Seconds of each kind of time in `BUCKETS`, such as `multiply` or `wait`, over all slots.

    A slot (an SM, a part of one, or a cluster of SMs) runs one workgroup at a time. All seconds add
    up to `slots` times `makespan`.

    Args:
        events: events as columns: times in nanoseconds, activities as indices into `ACTIVITIES`.
        slots: number of slots.
        makespan: nanoseconds from the begin of the launch to its end.
        outside: for each event, whether its output tile lies outside D; None if no tile does.
    """
    begin, end, slot, activity = (
        np.asarray(events[name], np.int64) for name in ("begin", "end", "slot", "activity")
    )
    found: dict[str, float] = {}
    taken, covered = np.zeros(len(begin), bool), 0
    empty = np.zeros(len(begin), bool) if outside is None else np.asarray(outside, bool)
    empty &= activity == Activity.MULTIPLY
    for name in (*IN_BUCKET, OUTSIDE):
        taken |= empty if name == OUTSIDE else np.isin(activity, IN_BUCKET[name]) & ~empty
        total = _union(begin[taken], end[taken], slot[taken], makespan)
        found[name], covered = float(total - covered), total
    first, last = np.full(slots, makespan), np.zeros(slots, np.int64)
    np.minimum.at(first, slot, begin)
    np.maximum.at(last, slot, end)
    used = last > 0
    found["launch"] = float(first[used].sum())
    found["tail"] = float((makespan - last[used]).sum() + makespan * (~used).sum())
    found["gap"] = slots * makespan - covered - found["launch"] - found["tail"]
    return {name: max(found[name], 0.0) / NANOSECONDS for name in BUCKETS}


def _union(
    begin: NDArray[np.int64], end: NDArray[np.int64], slot: NDArray[np.int64], makespan: int
) -> int:
    """Nanoseconds in which a slot (an SM or a cluster of SMs) has an event, summed over slots."""
    if not len(begin):
        return 0
    apart = slot * (2 * makespan + 1)
    order = np.argsort(begin + apart, kind="stable")
    starts, ends = (begin + apart)[order], np.maximum.accumulate((end + apart)[order])
    before = np.concatenate([[starts[0]], ends[:-1]])
    return int(np.maximum(ends - np.maximum(starts, before), 0).sum())


def tilings_of(simulation: Simulation, shapes: list[tuple[int, ...]]) -> dict[str, Any]:
    """Report data: extents of tiles and products in elements, and the number of output tiles.

    Args:
        simulation: the simulated run.
        shapes: m, n and k of each tile shape, in the order of the graph's `tilings`.

    Returns:
        A dict with `shapes` (as given), `products` (m, n and k of each product, rounded up to whole
        tiles) and `count` (number of output tiles).
    """
    s = simulation.steps
    m, n, k = shapes[0]
    each = [t[-3:] for t in s.shapes] or [s.tiles[-3:]]
    products = [(rows * m, columns * n, depth * k) for rows, columns, depth in each]
    count = int(s.product.max(initial=0)) + 1
    if len(products) < count:
        products = products * count
    multiplies = s.kind == StepKind.MULTIPLY
    tiles = np.stack([s.tiling, s.product, s.m, s.n])[:, multiplies]
    return {
        "shapes": [list(shape) for shape in shapes],
        "products": [list(p) for p in products],
        "count": int(np.unique(tiles, axis=1).shape[1]),
    }
