"""What a record says: tables, geometric means, and the shapes that are slower than cuBLAS."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.contenders import COORDGRAPH, CUBLAS
from benchmarks.shapes import GIVEN, title

__all__ = [
    "BEST",
    "Row",
    "aligned",
    "console_here",
    "draw_beside",
    "geometric_mean",
    "groups",
    "means",
    "problems",
    "report",
    "slower",
]

Row = dict[str, Any]
BEST = "best of ours"
BARS = (0.90, 0.95)
LONGEST, WIDTH = 12, 132


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive numbers; NaN of none.

    >>> round(geometric_mean([0.5, 2.0, 1.0]), 12)
    1.0
    """
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


def aligned(lines: Sequence[Sequence[str]], left: int = 0) -> str:
    """Cells as columns of text, the first few aligned to the left, the others to the right.

    >>> print(aligned([["order", "a"], ["bands", "12.5"]], left=1))
    order     a
    bands  12.5
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    places = ["<"] * left + [">"] * (len(widths) - left)
    forms = [f"{place}{width}" for place, width in zip(places, widths, strict=True)]
    return "\n".join(
        "  ".join(format(cell, form) for cell, form in zip(line, forms, strict=True)).rstrip()
        for line in lines
    )


def problems(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of one problem in one regime together, in the order in which they came."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = (row.get("group", GIVEN), row.get("regime"), row["layout"], row.get("shape"))
        found.setdefault((*key, row["m"], row["n"], row["k"]), []).append(row)
    return list(found.values())


def groups(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by group, in order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.get("group", GIVEN), []).append(row)
    return found


def names(rows: Iterable[Row]) -> list[str]:
    """Contenders in the order in which they came."""
    return list(dict.fromkeys(row["name"] for row in rows))


def ratios(rows: Iterable[Row]) -> dict[str, list[float]]:
    """Speed relative to cuBLAS (its time by theirs) of each contender, over its problems.

    Where several plans of ours compete, `BEST` is the fastest of them in each problem.
    """
    found: dict[str, list[float]] = {}
    for of_problem in problems(rows):
        ours: list[float] = []
        for row in of_problem:
            ratio = row.get("of_cublas")
            if ratio is None:
                continue
            if row["name"] != CUBLAS:
                found.setdefault(row["name"], []).append(ratio)
            if row.get("ours"):
                ours.append(ratio)
        if ours:
            found.setdefault(BEST, []).append(max(ours))
    plans = {row["name"] for row in rows_of_ours(rows)}
    if len(plans) < 2:
        found.pop(BEST, None)
    return found


def rows_of_ours(rows: Iterable[Row]) -> Iterator[Row]:
    return (row for row in rows if row.get("ours"))


def means(rows: Sequence[Row]) -> dict[str, tuple[float, int]]:
    """The geometric mean of every contender's ratios, and over how many problems."""
    return {name: (geometric_mean(values), len(values)) for name, values in ratios(rows).items()}


def ours_to_judge(rows: Sequence[Row]) -> str | None:
    """Which of our contenders the list of slow shapes is about: coordgraph, else the best."""
    ours = names(rows_of_ours(rows))
    if COORDGRAPH in ours or not ours:
        return COORDGRAPH if ours else None
    return BEST if len(ours) > 1 else ours[0]


def slower(rows: Sequence[Row], bar: float) -> list[tuple[float, Row]]:
    """Problems in which ours has less than this share of cuBLAS's speed, the slowest first.

    Problems where ours has no time count as zero.
    """
    judged = ours_to_judge(rows)
    found: list[tuple[float, Row]] = []
    for of_problem in problems(rows):
        ours = [r for r in rows_of_ours(of_problem) if judged in (BEST, r["name"])]
        if ours and any("of_cublas" in row for row in of_problem):
            best = max(ours, key=lambda row: row.get("of_cublas", 0.0))
            found.append((best.get("of_cublas", 0.0), best))
    return sorted(((r, row) for r, row in found if r < bar), key=lambda pair: pair[0])


def _short(everyone: Sequence[str]) -> dict[str, str]:
    """Names as headings: long ones, as plans have, become letters."""
    long = iter("abcdefghijklmnopqrstuvwxyz" * len(everyone))
    return {name: name if len(name) <= LONGEST else next(long) for name in everyone}


def _table(letter: str, rows: Sequence[Row], headings: dict[str, str]) -> Table:
    """A line for every problem: cuBLAS's time, then everybody's speed relative to it."""
    table = Table("shape", "m x n x k", "", title=title(letter), box=SIMPLE, pad_edge=False)
    for heading in (f"{CUBLAS} µs", "TFLOP/s", "of roof", *headings.values(), "spread"):
        table.add_column(heading, justify="right")
    for of_problem in problems(rows):
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
    """A speed relative to cuBLAS; a time where there is no cuBLAS."""
    if row is None:
        return ""
    if "problem" in row:
        return "[red]–[/red]"
    if alone:
        return f"{1e6 * row['seconds']['median']:.1f} µs"
    return f"{row['of_cublas']:.3f}"


def _faults(rows: Sequence[Row]) -> Iterator[str]:
    """Each contender's faults, once."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "problem" in row:
            where = f"{'x'.join(str(row[x]) for x in 'mnk')} {row['layout']}"
            found.setdefault((row["name"], row["problem"]), []).append(where)
    for (name, fault), places in found.items():
        places = list(dict.fromkeys(places))
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        yield f"{name}: {fault} ({places[0]}{more})"


def _means_table(rows: Sequence[Row], headings: dict[str, str]) -> Table:
    everyone = list(means(rows))
    table = Table("geometric mean", "problems", box=SIMPLE, pad_edge=False)
    for name in everyone:
        table.add_column(headings.get(name, name), justify="right")
    parts = [(title(letter), of_group) for letter, of_group in groups(rows).items()]
    for name, part in [*parts, ("all", list(rows))]:
        found, count = means(part), len(problems(part))
        cells: list[str] = []
        for one in everyone:
            mean, of = found.get(one, (math.nan, 0))
            cells.append(f"{mean:.3f}" + (f" ({of})" if of != count else "") if of else "")
        table.add_row(name, str(count), *cells)
    return table


def report(rows: Sequence[Row], console: Console) -> None:
    """Print all of it, each regime by itself; what matters most comes last."""
    headings = _short([name for name in names(rows) if name != CUBLAS])
    regimes = list(dict.fromkeys(row.get("regime") for row in rows))
    by_regime = {one: [row for row in rows if row.get("regime") == one] for one in regimes}
    for regime, found in by_regime.items():
        console.rule(f"{regime or 'times'}: speed relative to {CUBLAS} (its time by theirs)")
        for letter, of_group in groups(found).items():
            console.print(_table(letter, of_group, headings))
    for fault in _faults(rows):
        console.print(fault, style="red", markup=False, highlight=False)
    for name, heading in headings.items():
        if name != heading:
            console.print(f"{heading}: {name}", markup=False, highlight=False)
    for regime, found in by_regime.items():
        if means(found):
            console.rule(f"{regime or 'times'}: means")
            console.print(_means_table(found, headings))
            _slow(found, console)


def _slow(rows: Sequence[Row], console: Console) -> None:
    judged = ours_to_judge(rows)
    if judged is None:
        return
    low, high = (slower(rows, bar) for bar in BARS)
    console.print(
        f"{judged}: {len(low)} problems under {BARS[0]:.2f} of {CUBLAS}, "
        f"{len(high)} under {BARS[1]:.2f}",
        highlight=False,
    )
    for ratio, row in high:
        size = "x".join(str(row[x]) for x in "mnk")
        group, name = row.get("group", GIVEN), row.get("shape", size)
        line = f"  {ratio:.3f}  {group} {size} {row['layout']}"
        console.print(line + (f"  {name}" if name != size else ""), markup=False, highlight=False)


def console_here() -> Console:
    """The terminal; wide enough for tables where the output goes elsewhere."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDTH)


def draw_beside(record: dict[str, Any], path: Path, console: Console) -> None:
    """Say where a record is, and draw its pictures beside it, if matplotlib is there."""
    console.print(f"written to {path}")
    try:
        from benchmarks.plots import draw
    except ImportError as error:
        console.print(f"no plots: {error}; `python -m benchmarks plot {path}` draws them elsewhere")
        return
    for drawn in draw(record, path):
        console.print(f"drawn: {drawn}")
