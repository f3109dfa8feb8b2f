"""The events of a timeline in Chrome's trace format, which https://ui.perfetto.dev displays.

Each SM is shown as a process, and each role of a CTA on it as a thread (Trace Event Format,
"complete events"). Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from codegen.timeline.timeline import NONE, Timeline
from coordgraph.control.timeline import ROLES
from passes.simulation.events import Activity

__all__ = ["chrome_trace"]

MICROSECONDS = 1e6
TRACKS = 64
"""How many thread numbers the trace reserves for each CTA on an SM; each warpgroup has one."""
COLOURS = {
    Activity.START: "grey",
    Activity.MULTIPLY: "good",
    Activity.SEND: "rail_animation",
    Activity.WAIT: "terrible",
    Activity.RECEIVE: "rail_load",
    Activity.FINISH: "yellow",
    Activity.DRAIN: "olive",
    Activity.TURN: "bad",
    Activity.LOAD: "rail_idle",
}
"""For each activity, a colour name that viewers of Chrome traces know."""


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Convert a timeline to Chrome's trace format, as plain data for `json.dump`."""
    return {
        "traceEvents": [*_names(timeline), *_events(timeline)],
        "displayTimeUnit": "ns",
        "otherData": {
            "target": timeline.target,
            "name": timeline.name,
            "workgroups": timeline.workgroups,
            "dropped_records": timeline.dropped,
        },
    }


def _thread(timeline: Timeline, event: int) -> int:
    """The thread number in the trace under which an event is shown."""
    return int(timeline.lane[event]) * TRACKS + int(timeline.warpgroup[event])


def _names(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Events of the trace that name its processes (SMs) and threads (roles of CTAs)."""
    what = "thread" if timeline.target == "cpu" else "SM"
    for number in timeline.processors:
        yield _metadata("process_name", number, 0, name=f"{what} {number}")
        yield _metadata("process_sort_index", number, 0, sort_index=number)
    seen: set[tuple[int, int]] = set()
    for event in range(len(timeline)):
        key = int(timeline.slot[event]), _thread(timeline, event)
        if key in seen:
            continue
        seen.add(key)
        role = ROLES[int(timeline.role[event])] or "workgroup"
        number = f" {int(timeline.warpgroup[event])}" if role == "consumer" else ""
        yield _metadata("thread_name", *key, name=f"{role}{number}")
        yield _metadata("thread_sort_index", *key, sort_index=key[1])


def _metadata(kind: str, process: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": args}


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for event in range(len(timeline)):
        activity = Activity(int(timeline.activity[event]))
        args: dict[str, Any] = {"workgroup": int(timeline.workgroup[event])}
        if timeline.rank.any():
            args["cluster.rank"] = int(timeline.rank[event])
        name, (product, m, n) = activity.name.lower(), _tile(timeline, event)
        if m != NONE:
            name = f"{name} D tile ({m}, {n})"
            args |= {"product": product, "tile_m": m, "tile_n": n}
        if timeline.first[event] != NONE:
            first, count = int(timeline.first[event]), int(timeline.count[event])
            args |= {"tile_k": first, "k_tiles": count}
        if timeline.stalled[event]:
            args["stalled_us"] = float(timeline.stalled[event]) * MICROSECONDS
        begin, end = float(timeline.begin[event]), float(timeline.end[event])
        yield {
            "name": name,
            "cat": activity.name.lower(),
            "ph": "X",
            "ts": begin * MICROSECONDS,
            "dur": (end - begin) * MICROSECONDS,
            "pid": int(timeline.slot[event]),
            "tid": _thread(timeline, event),
            "cname": COLOURS[activity],
            "args": args,
        }


def _tile(timeline: Timeline, event: int) -> tuple[int, int, int]:
    """An event's output tile: number of its product, position along m and n in unit tiles; or -1.

    A unit tile is the largest tile that divides all shapes of output tiles of the kernel.
    """
    return int(timeline.product[event]), int(timeline.m[event]), int(timeline.n[event])
