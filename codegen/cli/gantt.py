"""A timeline (Gantt chart) of a run in the terminal: a row for each slot, time to the right.

The run is simulated, or measured by a kernel that records its timeline. A slot holds one workgroup
at a time in a simulated run, and is an SM in a measured run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from passes.simulation import Activity

__all__ = ["gantt", "shown_rows"]

WIDTH = 64
MOST_ROWS, HEAD, TAIL = 12, 8, 3
GLYPHS = {
    Activity.START: ("·", "dim", "starts"),
    Activity.MULTIPLY: ("█", "green", "multiplies"),
    Activity.SEND: ("▲", "magenta", "sends a partial sum"),
    Activity.WAIT: ("w", "red", "waits"),
    Activity.RECEIVE: ("▼", "blue", "adds partial sums"),
    Activity.FINISH: ("▒", "yellow", "finishes a tile"),
    Activity.DRAIN: ("░", "yellow", "stores"),
    Activity.TURN: ("t", "cyan", "changes warpgroups"),
    Activity.LOAD: ("l", "blue", "loads"),
}
"""For each activity its character, style and name in the legend of the chart."""


class Drawn(Protocol):
    """Protocol: the events of a simulated or measured run, as arrays with an entry per event."""

    @property
    def begin(self) -> NDArray[Any]:
        """Beginning of each event, in seconds since the launch began."""
        ...

    @property
    def end(self) -> NDArray[Any]:
        """End of each event, in seconds since the launch began."""
        ...

    @property
    def slot(self) -> NDArray[Any]:
        """For each event, the number of its SM, or in a simulated run of its CTA slot on an SM."""
        ...

    @property
    def activity(self) -> NDArray[Any]:
        """The `Activity` of each event, as an integer."""
        ...

    @property
    def behind(self) -> NDArray[Any]:
        """For each event, whether other threads of its workgroup multiply at the same time."""
        ...


def gantt(events: Drawn, slots: Sequence[int], makespan: float) -> Table:
    """The rows of a Gantt chart: a character shows the longest activity in a time interval.

    A row shows one slot. In a simulated run, a slot is room on an SM for one workgroup at a time;
    in a measured run, a slot is a whole SM.

    Args:
        events: the events of the run.
        slots: the numbers of the slots to show, one for each row.
        makespan: duration of the run, in seconds.
    """
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column(no_wrap=True)
    shown = set[Activity]()
    for place in shown_rows(len(slots)):
        if place is None:
            table.add_row("⋮", "")
            continue
        row = Text()
        for activity in _cells(events, slots[place], makespan):
            glyph, style, _ = GLYPHS[activity] if activity is not None else (" ", "", "")
            row.append(glyph, style)
            shown |= set() if activity is None else {activity}
        table.add_row(str(slots[place]), row)
    legend = Text()
    for activity in (a for a in Activity if a in shown):
        glyph, style, name = GLYPHS[activity]
        legend.append(f"{glyph} ", style).append(f"{name}  ", "dim")
    table.add_row("", legend)
    return table


def shown_rows(count: int) -> Iterator[int | None]:
    """Indices of the rows that a chart of `count` rows shows.

    If `count` is more than MOST_ROWS, rows in the middle are left out; None stands for these rows.
    """
    if count <= MOST_ROWS:
        yield from range(count)
        return
    yield from range(HEAD)
    yield None
    yield from range(count - TAIL, count)


def _cells(e: Drawn, slot: int, makespan: float) -> list[Activity | None]:
    """For each of `WIDTH` equal parts of the makespan: the longest activity of one chart row.

    The entry is None for a part in which the row was idle for longer than any activity took.
    `slot` is the number of the row's SM or simulated CTA slot.
    """
    part = makespan / WIDTH
    own = (e.slot == slot) & (e.behind == 0)
    begin, end, kind = e.begin[own] / part, e.end[own] / part, e.activity[own]
    edges = np.arange(WIDTH)
    found: list[Activity | None] = []
    for left in edges:
        inside = np.clip(np.minimum(end, left + 1) - np.maximum(begin, left), 0, None)
        seconds = np.bincount(kind, inside, len(Activity))
        longest = int(seconds.argmax()) if len(inside) else 0
        idle = 1 - seconds.sum()
        found.append(Activity(longest) if len(inside) and seconds[longest] > idle else None)
    return found
