"""Print tables: each contender's speed relative to cuBLAS, means, and slow problems."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.peers.contender import CUBLAS
from benchmarks.problems.shapes import UNGROUPED, group_title
from benchmarks.reports.summary import (
    Row,
    by_group,
    by_problem,
    judged_contender,
    mean_ratios,
    names,
    slower_than,
)

__all__ = ["aligned", "print_report"]

BOUNDS = (0.90, 0.95)
"""Speeds relative to cuBLAS. A report counts the problems below each, and lists those below the
larger one."""
LONGEST_HEADING = 12
"""A contender's name of at most this many characters is the heading of its column. For longer names
the heading is a letter, which a legend explains."""


def aligned(lines: Sequence[Sequence[str]], left: int = 0) -> str:
    """Lines of cells as text; the first `left` columns are aligned left, the others right.

    >>> print(aligned([["order", "a"], ["bands", "12.5"]], left=1))
    order     a
    bands  12.5
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = ["<"] * left + [">"] * (len(widths) - left)
    forms = [f"{side}{width}" for side, width in zip(sides, widths, strict=True)]
    return "\n".join(
        "  ".join(format(cell, form) for cell, form in zip(line, forms, strict=True)).rstrip()
        for line in lines
    )


def _headings(contenders: Sequence[str]) -> dict[str, str]:
    """For each contender, the heading of its column: its name, or a letter if the name is long."""
    letters = iter("abcdefghijklmnopqrstuvwxyz" * len(contenders))
    return {name: name if len(name) <= LONGEST_HEADING else next(letters) for name in contenders}


def _speeds(group: str, rows: Sequence[Row], headings: dict[str, str]) -> Table:
    """A table with a line per problem: cuBLAS's time, and each contender's speed relative to it."""
    table = Table("shape", "m x n x k", "", title=group_title(group), box=SIMPLE, pad_edge=False)
    for heading in (f"{CUBLAS} µs", "TFLOP/s", "of roof", *headings.values(), "spread"):
        table.add_column(heading, justify="right")
    for of_problem in by_problem(rows):
        first = of_problem[0]
        size = "x".join(str(first[x]) for x in "mnk")
        name = first.get("shape", size)
        by_name = {row["name"]: row for row in of_problem}
        measured = {name: row for name, row in by_name.items() if "seconds" in row}
        cells = [name if name != size else "", size, first["layout"]]
        if CUBLAS in measured:
            row = measured[CUBLAS]
            cells += [f"{1e6 * row['seconds']['median']:.1f}", f"{row['tflops']:.0f}"]
            cells.append(f"{row['of_floor']:.2f}" if "of_floor" in row else "")
        else:
            cells += [""] * 3
        for contender in headings:
            cells.append(_cell(by_name.get(contender), alone=CUBLAS not in measured))
        times = [row["seconds"] for row in measured.values()]
        spread = max(((t["high"] - t["low"]) / t["median"] for t in times), default=0.0)
        table.add_row(*cells, f"{spread:.1%}")
    return table


def _cell(row: Row | None, *, alone: bool) -> str:
    """The text of a cell: the speed relative to cuBLAS, or a time if cuBLAS was not measured.

    The text is a dash if the contender failed, and empty if the contender has no row.
    """
    if row is None:
        return ""
    if "problem" in row:
        return "[red]–[/red]"
    if alone:
        return f"{1e6 * row['seconds']['median']:.1f} µs"
    return f"{row['of_cublas']:.3f}"


def _faults(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each distinct error of each contender, with the first problem that has it."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "problem" in row:
            size = f"{'x'.join(str(row[x]) for x in 'mnk')} {row['layout']}"
            found.setdefault((row["name"], row["problem"]), []).append(size)
    for (name, fault), sizes in found.items():
        sizes = list(dict.fromkeys(sizes))
        more = f" and {len(sizes) - 1} more" if len(sizes) > 1 else ""
        yield f"{name}: {fault} ({sizes[0]}{more})"


def _means(rows: Sequence[Row], headings: dict[str, str]) -> Table:
    """A table of geometric means of speeds relative to cuBLAS, by group and for all problems."""
    contenders = list(mean_ratios(rows))
    table = Table("geometric mean", "problems", box=SIMPLE, pad_edge=False)
    for name in contenders:
        table.add_column(headings.get(name, name), justify="right")
    parts = [(group_title(group), part) for group, part in by_group(rows).items()]
    for name, part in [*parts, ("all", list(rows))]:
        found, count = mean_ratios(part), len(by_problem(part))
        cells: list[str] = []
        for contender in contenders:
            mean, problems = found.get(contender, (math.nan, 0))
            note = f" ({problems})" if problems != count else ""
            cells.append(f"{mean:.3f}{note}" if problems else "")
        table.add_row(name, str(count), *cells)
    return table


def print_report(rows: Sequence[Row], console: Console) -> None:
    """Print speeds for each problem, errors, mean speeds, and the problems that are slow.

    Speeds are relative to cuBLAS. A problem is slow if the speed of coordgraph is below the larger
    of `BOUNDS`.
    """
    headings = _headings([name for name in names(rows) if name != CUBLAS])
    regimes = list(dict.fromkeys(row.get("regime") for row in rows))
    by_regime = {one: [row for row in rows if row.get("regime") == one] for one in regimes}
    for regime, part in by_regime.items():
        console.rule(f"{regime or 'times'}: speed relative to {CUBLAS} (its time over theirs)")
        for group, of_group in by_group(part).items():
            console.print(_speeds(group, of_group, headings))
    for fault in _faults(rows):
        console.print(fault, style="red", markup=False, highlight=False)
    for name, heading in headings.items():
        if name != heading:
            console.print(f"{heading}: {name}", markup=False, highlight=False)
    for regime, part in by_regime.items():
        if mean_ratios(part):
            console.rule(f"{regime or 'times'}: means")
            console.print(_means(part, headings))
            _print_slow_problems(part, console)


def _print_slow_problems(rows: Sequence[Row], console: Console) -> None:
    judged = judged_contender(rows)
    if judged is None:
        return
    low, high = (slower_than(rows, bound) for bound in BOUNDS)
    console.print(
        f"{judged}: {len(low)} problems under {BOUNDS[0]:.2f} of {CUBLAS}, "
        f"{len(high)} under {BOUNDS[1]:.2f}",
        highlight=False,
    )
    for ratio, row in high:
        size = "x".join(str(row[x]) for x in "mnk")
        group, name = row.get("group", UNGROUPED), row.get("shape", size)
        line = f"  {ratio:.3f}  {group} {size} {row['layout']}"
        console.print(line + (f"  {name}" if name != size else ""), markup=False, highlight=False)
