"""A schedule in a few lines: how the work is shared, and who does what when."""

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
# What a column of the timeline shows, by the role of the segment there; styles alternate, so that
# neighbours can be told apart.
GLYPHS = {"whole": "█", "first": "▓", "middle": "▒", "final": "░"}
STYLES = {
    "whole": ("green", "bright_green"),
    "first": ("blue", "bright_blue"),
    "middle": ("magenta", "bright_magenta"),
    "final": ("yellow", "bright_yellow"),
}
MEANING = {
    "whole": "a whole tile",
    "first": "the start of a shared tile",
    "middle": "its middle",
    "final": "its end",
}


@dataclass(frozen=True)
class Summary:
    """The numbers of a schedule."""

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
    """Tiles in m, n and k of each product, where they have numbers of their own."""

    @classmethod
    def of(cls, trace: Trace) -> Summary:
        """Count."""
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
        """Label and text."""
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
        yield "fix-ups", f"{self.fix_ups} partial tile{_s(self.fix_ups)} passed on"
        yield "balance", f"{self.utilisation:.1%} of the workgroups' time is useful"

    def _output(self) -> str:
        """How many output tiles there are, and how many k tiles each of them takes."""
        if not self.products:
            *output, depth = self.tiles
            return f"{' x '.join(map(str, output))} = {prod(output)} of the output, {depth}"
        count = sum(m * n for m, n, _ in self.products)
        depths = sorted({depth for *_, depth in self.products})
        deep = str(depths[0]) if len(depths) == 1 else f"{depths[0]} to {depths[-1]}"
        return f"{count} of the outputs of {len(self.products)} products, {deep}"

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
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
    """A row for each workgroup, time to the right; the middle is left out where there are many."""
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
    """Columns in proportion to iterations; a segment has at least one where there is room."""
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
