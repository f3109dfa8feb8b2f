"""Print how fast a layer of coordgraph is, relative to other ways to compute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.reports.summary import geometric_mean
from benchmarks.timing.ways import OURS

__all__ = ["means", "show"]


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Geometric mean and minimum of coordgraph's speed relative to each contender, by name."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, speed in row.get("speed", {}).items():
            found.setdefault(name, []).append(speed)
    return {name: {"mean": geometric_mean(s), "least": min(s)} for name, s in found.items()}


def show(rows: Sequence[Mapping[str, Any]], title: str, console: Console) -> None:
    """Print coordgraph's time and relative speeds for each layer (a row), and the mean speeds."""
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
