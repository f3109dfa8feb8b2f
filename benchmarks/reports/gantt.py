"""Gantt charts of traced launches: a line of activities for each SM, simulated above measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import coordgraph as cg
from passes import Pipeline
from passes.simulation import Simulation, simulate

__all__ = [
    "COLOURS",
    "COLUMNS",
    "PART",
    "PARTS",
    "WHOLE",
    "Row",
    "compact",
    "depth",
    "draw",
    "shares",
    "simulated",
    "size_text",
    "table",
]

Row = dict[str, Any]
"""One launch: the text `schedule`, and a list for each property of an event (`COLUMNS`: `begin`,
`workgroup`, `activity`, …), with an entry for each event. A measured launch also has the list
`stalled`: the time in each event that threads waited for a stage of shared memory."""
COLUMNS = ("begin", "end", "workgroup", "slot", "activity", "m", "n", "first", "count")
TIMES = ("begin", "end", "stalled")
"""Columns that hold times: in seconds in events of a launch, in whole nanoseconds in a `Row`."""
PARTS = {
    "multiplying": ("multiply",),
    "epilogue": ("finish",),
    "fix-up": ("send", "wait", "receive"),
    "start": ("start", "drain", "turn"),
}
"""Columns of the table of SM time (`table`), each with the activities whose times the column adds
up. SMs are idle in the rest of their time."""
WHOLE, PART = "multiplies a whole tile", "multiplies a part of a tile"
# The colours of Okabe and Ito, which people with any colour vision can tell apart.
COLOURS = {
    WHOLE: "#0072B2",
    PART: "#56B4E9",
    "sends a partial sum": "#D55E00",
    "waits for a partial sum": "#000000",
    "adds a partial sum": "#F0E442",
    "finishes a tile": "#009E73",
    "starts, ends": "#999999",
}
LABELS = {
    "send": "sends a partial sum",
    "wait": "waits for a partial sum",
    "receive": "adds a partial sum",
    "finish": "finishes a tile",
}
"""Legend labels by activity. `multiply` is labelled `WHOLE` or `PART`, depending on whether all k
tiles are summed; any other activity that has no entry is labelled `starts, ends`."""
WIDTH, HEIGHT, LEFT, PANEL = 9.0, 7.2, 0.07, 0.39
"""Width and height of a figure in inches; left edge of a panel as a fraction of that width, and its
height as a fraction of that height."""


def compact(schedule: str, events: Mapping[str, Sequence[Any]]) -> Row:
    """One launch as plain data for a JSON record; times are in nanoseconds.

    Events with `behind` (their workgroup multiplies another tile at the same time) are left out.

    Args:
        schedule: the text of the schedule, which `Pipeline.parse` can parse.
        events: by the name of a property (`begin`, `workgroup`, …), its value for each event; made
            by `Timeline.event_columns` or `Simulation.event_columns`.
    """
    kept = [i for i, behind in enumerate(events["behind"]) if not behind]
    row: Row = {"schedule": schedule}
    for name in (*COLUMNS, *(name for name in ("stalled",) if name in events)):
        values = [events[name][i] for i in kept]
        row[name] = [round(1e9 * x) for x in values] if name in TIMES else values
    return row


def simulated(record: Mapping[str, Any], schedule: str) -> tuple[Row, Simulation]:
    """Simulate a schedule for a record's problem and GPU.

    Returns:
        The launch as a `Row` for the charts, and the simulation itself.
    """
    graph = cg.Gemm(record["dtype"]).graph(tile=tuple(record["tile"]))
    sizes = {axis: record[axis] for axis in "mnk"}
    found = simulate(Pipeline.parse(schedule)(graph), sizes, record["device"])
    return compact(schedule, found.event_columns()), found


def depth(record: Mapping[str, Any]) -> int:
    """The number of k tiles of an output tile."""
    return -(-record["k"] // record["tile"][2])


def size_text(record: Mapping[str, Any]) -> str:
    """m, n, k and the element type as text, such as `2304 × 2304 × 4096, bf16`."""
    return f"{' × '.join(str(record[axis]) for axis in 'mnk')}, {record['dtype']}"


def shares(row: Row) -> dict[str, float]:
    """The duration of a launch and the percentages of SM time, by column of the table.

    The key `µs` has the duration in microseconds; each name in `PARTS`, and `idle`, has the
    percentage of the SMs' time.
    """
    makespan, slots = max(row["end"]), len(set(row["slot"]))
    spent: dict[str, int] = {}
    for begin, end, activity in zip(row["begin"], row["end"], row["activity"], strict=True):
        spent[activity] = spent.get(activity, 0) + end - begin
    percent = 100 / (makespan * slots)
    found = {part: percent * sum(spent.get(a, 0) for a in of) for part, of in PARTS.items()}
    return {"µs": makespan / 1000, **found, "idle": 100 - sum(found.values())}


def table(record: Mapping[str, Any]) -> str:
    """Text table: each schedule's duration and percentages of SM time, measured and simulated.

    `shares` computes them; each schedule has a line of measured and a line of simulated values.
    """
    heads = ("µs", *PARTS, "idle")
    lines = [f"{'':38}{''.join(f'{head:>13}' for head in heads)}"]
    for row in record["rows"]:
        schedule = row["schedule"]
        for how, one in (("measured", row), ("simulated", simulated(record, schedule)[0])):
            values = shares(one)
            cells = "".join(f"{values[head]:13.1f}" for head in heads)
            lines.append(f"{schedule.partition('{')[0]:28}{how:10}{cells}")
    return "\n".join(lines)


def draw(record: Mapping[str, Any], folder: Path, stem: str) -> Iterator[Path]:
    """Draw a chart for each launch in a results file; yield the path of each SVG file.

    All these charts have the same scale of time.
    """
    from matplotlib.figure import Figure

    from benchmarks.reports.plots import save

    pairs = [(simulated(record, row["schedule"])[0], row) for row in record["rows"]]
    longest = max(max(row["end"]) for pair in pairs for row in pair) / 1000
    for pair in pairs:
        schedule = pair[1]["schedule"]
        figure = Figure(figsize=(WIDTH, HEIGHT))
        figure.suptitle(f"{size_text(record)}: {schedule}", y=0.995, fontsize="medium")
        titles = ("simulated", f"measured, {record['device']}, {record['date'][:10]}")
        for place, (row, title) in enumerate(zip(pair, titles, strict=True)):
            axis = figure.add_axes((LEFT, 0.55 - 0.455 * place, 0.99 - LEFT, PANEL))
            _panel(axis, row, depth(record))
            axis.set_title(f"{title}: {max(row['end']) / 1000:.1f} µs", fontsize="small", pad=3)
            axis.set_xlim(0, 1.01 * longest)
            axis.set_ylabel("SMs", fontsize="small")
            axis.tick_params(labelsize="small")
        figure.axes[1].set_xlabel("µs", fontsize="small", labelpad=0, loc="right")
        handles = [figure.axes[0].plot([], [], color=c, linewidth=5)[0] for c in COLOURS.values()]
        figure.legend(
            handles, list(COLOURS), loc="lower center", ncols=4, fontsize="x-small",
            bbox_to_anchor=(0.5, -0.005), frameon=False,
        )  # fmt: skip
        yield save(figure, folder / f"{stem}-{schedule.partition('{')[0]}.svg")


def _panel(axis: Any, row: Row, k_tiles: int) -> None:
    """Draw the events of a launch: a line for each SM, in the order of its first workgroup.

    All events of one colour are drawn as one SVG path, which keeps the file small.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Lines

    first: dict[int, int] = {}
    for slot, workgroup in zip(row["slot"], row["workgroup"], strict=True):
        first[slot] = min(workgroup, first.get(slot, workgroup))
    places = {slot: place for place, slot in enumerate(sorted(first, key=first.__getitem__))}
    points: dict[str, list[tuple[float, float]]] = {label: [] for label in COLOURS}
    for begin, end, slot, activity, count in zip(
        *(row[name] for name in ("begin", "end", "slot", "activity", "count")), strict=True
    ):
        label = LABELS.get(activity, "starts, ends")
        if activity == "multiply":
            label = WHOLE if count == k_tiles else PART
        points[label] += [(begin / 1000, places[slot]), (end / 1000, places[slot])]
    thickness = 72 * HEIGHT * PANEL / len(places)
    for label, ends in points.items():
        if ends:
            codes = [Lines.MOVETO, Lines.LINETO] * (len(ends) // 2)
            axis.add_patch(
                PathPatch(
                    Lines(ends, codes), fill=False, edgecolor=COLOURS[label],
                    linewidth=thickness, capstyle="butt",
                )
            )  # fmt: skip
    axis.set_ylim(len(places) - 0.5, -0.5)
