"""A summary and a timeline of a schedule: which workgroup computes which part of which tile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from rich.table import Table
from rich.text import Text

from coordgraph.interpreter import Trace

__all__ = ["Summary", "timeline"]

WIDTH = 56
MOST_ROWS, HEAD, TAIL = 12, 8, 3
# The character and the styles of a segment (a workgroup's share of the iterations of one output
# tile) in the timeline, by the segment's role. Neighbouring segments alternate between two styles.
GLYPHS = {"whole": "█", "first": "▓", "middle": "▒", "final": "░"}
STYLES = {
    "whole": ("green", "bright_green"),
    "first": ("blue", "bright_blue"),
    "middle": ("magenta", "bright_magenta"),
    "final": ("yellow", "bright_yellow"),
}
MEANING = {
    "whole": "a whole tile",
    "first": "a shared tile's first iterations",
    "middle": "a shared tile's middle iterations",
    "final": "a shared tile's last iterations",
}


@dataclass(frozen=True)
class Summary:
    """Numbers of tiles, workgroups, iterations and segments of one launch of a schedule.

    Args:
        tiles: numbers of tiles in m, n and k; for a batch the number of products comes first.
        workgroups: number of workgroups of the launch.
        idle: number of workgroups without an iteration.
        least, most: fewest and most iterations of a workgroup.
        segments: numbers of segments by role: whole tiles, and first, middle and final parts.
        fix_ups: number of partial sums that one workgroup sends to another.
        utilisation: iterations of all workgroups, divided by `most` times `workgroups`.
    """

    tiles: tuple[int, ...]
    iterations: int
    workgroups: int
    idle: int
    least: int
    most: int
    segments: dict[str, int]
    fix_ups: int
    utilisation: float
    products: tuple[tuple[int, ...], ...] = ()
    """Numbers of tiles in m, n and k of each product; empty if all products have equal sizes."""

    @classmethod
    def of(cls, trace: Trace) -> Summary:
        """Count tiles, workgroups, segments and fix-ups in the trace of a launch."""
        roles = Counter(segment.role for segment in trace.segments)
        return cls(
            trace.tiles,
            trace.useful,
            len(trace.workgroups),
            len(trace.idle),
            min(trace.iterations, default=0),
            max(trace.iterations, default=0),
            {role: roles[role] for role in GLYPHS if roles[role]},
            len(trace.fix_ups),
            trace.utilisation,
            trace.shapes,
        )

    def lines(self) -> Iterator[tuple[str, str]]:
        """This summary of a launch as (label, text) pairs, one for each printed line."""
        work = f"{self.iterations} iteration{_s(self.iterations)}"
        yield "tiles", f"{self._output()} deep: {work}"
        share = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        idle = f", {self.idle} idle" if self.idle else ""
        yield "workgroups", f"{self.workgroups}{idle}, {share} iteration{_s(self.most)} each"
        shared = sum(count for role, count in self.segments.items() if role != "whole")
        whole = self.segments.get("whole", 0)
        parts = [f"{whole} whole tile{_s(whole)}"] if whole else []
        parts += [f"{shared} part{_s(shared)} of shared tiles"] if shared else []
        yield "segments", ", ".join(parts)
        yield "fix-ups", f"{self.fix_ups} partial sum{_s(self.fix_ups)} handed to another workgroup"
        yield "balance", f"{self.utilisation:.1%} of the workgroups' time is useful"

    def _output(self) -> str:
        """Text: the number of output tiles, and the number of k tiles that each one sums."""
        if not self.products:
            *output, depth = self.tiles
            return f"{' x '.join(map(str, output))} = {prod(output)} of the output, {depth}"
        count = sum(m * n for m, n, _ in self.products)
        depths = sorted({depth for *_, depth in self.products})
        deep = str(depths[0]) if len(depths) == 1 else f"{depths[0]} to {depths[-1]}"
        return f"{count} of the outputs of {len(self.products)} products, {deep}"

    def as_data(self) -> dict[str, Any]:
        """The counts of tiles, workgroups, segments and fix-ups, as plain data for JSON."""
        return {
            "tiles": self.tiles,
            "iterations": self.iterations,
            "workgroups": self.workgroups,
            "idle_workgroups": self.idle,
            "iterations_per_workgroup": [self.least, self.most],
            "segments": self.segments,
            "fix_ups": self.fix_ups,
            "utilisation": self.utilisation,
        }


def timeline(trace: Trace) -> Table:
    """A table with a row for each workgroup, in which time runs to the right, and a legend.

    If there are many workgroups, the rows in the middle are left out.
    """
    busiest = max(trace.iterations, default=0)
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column(no_wrap=True)
    for workgroup in _rows(len(trace.workgroups)):
        if workgroup is None:
            table.add_row("⋮", "")
        else:
            table.add_row(str(workgroup), _bar(trace, workgroup, busiest))
    roles = {segment.role for segment in trace.segments}
    legend = Text()
    for role in (role for role in GLYPHS if role in roles):
        legend.append(f"{GLYPHS[role]} ", STYLES[role][0]).append(f"{MEANING[role]}  ", "dim")
    table.add_row("", legend)
    return table


def _rows(count: int) -> Iterator[int | None]:
    if count <= MOST_ROWS:
        yield from range(count)
        return
    yield from range(HEAD)
    yield None
    yield from range(count - TAIL, count)


def _bar(trace: Trace, workgroup: int, busiest: int) -> Text:
    """A workgroup's row of the timeline; a segment's width is in proportion to its iterations.

    `busiest`, the number of iterations of the busiest workgroup, fills the whole width.
    """
    bar, done = Text(), 0
    if not trace.iterations[workgroup]:
        return Text("idle", "dim")
    for position, segment in enumerate(trace.of(workgroup)):
        start = done * WIDTH // busiest
        done += segment.iterations
        width = done * WIDTH // busiest - start
        bar.append(GLYPHS[segment.role] * width, STYLES[segment.role][position % 2])
    return bar


def _s(count: int) -> str:
    return "" if count == 1 else "s"
