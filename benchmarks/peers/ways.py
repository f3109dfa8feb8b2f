"""Time several ways to compute one layer, in turn, after their results have been checked."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.reports.summary import geometric_mean
from benchmarks.timing.sampler import REGIMES, Sampler, Spread, sample_in_rounds

__all__ = ["OURS", "means", "show", "time_ways"]

OURS = "coordgraph"
"""The name of the way whose speed is compared with that of all others."""


def time_ways(
    ways: Mapping[str, Callable[[], Any]],
    fault: Callable[[Callable[[], Any]], str | None],
    options: argparse.Namespace,
    deadline: float,
) -> dict[str, Any]:
    """Check the result of every way, then time all ways in turn.

    Args:
        ways: functions that compute the layer, by name.
        fault: a function that calls a way, and returns what is wrong with its result, or None.
        options: the options `seconds`, `rounds` and `regime` of the command line.
        deadline: the time of `time.monotonic` after which no further round begins.

    Returns:
        Fields of a row of a record: `faults` by name, the `seconds` by name, and `speed`: each
        other way's median time divided by that of `OURS`, by the name of the other way.
    """
    faults = {name: found for name, way in ways.items() if (found := fault(way))}
    samplers = [Sampler(lambda _, way=way: way(), 1, options.seconds) for way in ways.values()]
    samples = sample_in_rounds(samplers, options.rounds, REGIMES[options.regime], deadline=deadline)
    spreads = {name: Spread.of(s) for name, s in zip(ways, samples, strict=True)}
    ours = spreads[OURS].median
    return {
        "faults": faults,
        "seconds": {name: spread.json() for name, spread in spreads.items()},
        "speed": {name: s.median / ours for name, s in spreads.items() if name != OURS},
    }


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Geometric mean and minimum of the speed relative to each other way, by its name."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, speed in row.get("speed", {}).items():
            found.setdefault(name, []).append(speed)
    return {name: {"mean": geometric_mean(s), "least": min(s)} for name, s in found.items()}


def show(rows: Sequence[Mapping[str, Any]], title: str, console: Console) -> None:
    """Print the times of every row, whose `name` is printed first, and the mean speeds."""
    table = Table("layer", f"{OURS} µs", box=SIMPLE, title=title)
    others = list(dict.fromkeys(name for row in rows for name in row["speed"]))
    for name in others:
        table.add_column(f"{name} / {OURS}", justify="right")
    for row in rows:
        cells = [f"{row['speed'][name]:.3f}" if name in row["speed"] else "" for name in others]
        table.add_row(row["name"], f"{1e6 * row['seconds'][OURS]['median']:.1f}", *cells)
    console.print(table)
    for name, of in means(rows).items():
        console.print(f"{name}: mean {of['mean']:.3f}, least {of['least']:.3f}", highlight=False)
