"""Measure how fast layers of coordgraph are, relative to other ways to compute them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.reports.console import make_console, progress_bars
from benchmarks.reports.record import environment, result_path, write
from benchmarks.reports.summary import geometric_mean
from benchmarks.timing.budget import TimeBudget
from benchmarks.timing.ways import OURS, time_ways

__all__ = ["LayerProblem", "means", "measure", "show"]


class LayerProblem(Protocol):
    """The tensors of a layer, and by name the contenders' functions that compute it."""

    @property
    def ways(self) -> Mapping[str, Callable[[], Any]]:
        """The contenders' functions that compute the layer, by name."""
        ...

    @property
    def peak_bytes(self) -> Mapping[str, int]:
        """The most memory that each contender allocated at once; {} if it is not measured."""
        ...

    def fault(self, compute: Callable[[], Any], /) -> str | None:
        """What is wrong with the result of the contender `compute`; None if it is right."""
        ...


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
    peaks = list(dict.fromkeys(name for row in rows for name in row.get("peak_bytes", ())))
    for name in peaks:
        table.add_column(f"{name} MiB", justify="right")
    for row in rows:
        cells = [f"{row['speed'][name]:.3f}" if name in row["speed"] else "" for name in others]
        cells += [f"{row['peak_bytes'][name] / 2**20:.0f}" for name in peaks]
        table.add_row(row["name"], f"{1e6 * row['seconds'][OURS]['median']:.1f}", *cells)
    console.print(table)
    for name, of in means(rows).items():
        console.print(f"{name}: mean {of['mean']:.3f}, least {of['least']:.3f}", highlight=False)


def measure(
    kind: str,
    title: str,
    jobs: Mapping[str, Callable[[], LayerProblem]],
    options: argparse.Namespace,
) -> None:
    """Time all layers, print a table, and end the process with a message if a result is wrong.

    The record is written after each layer, so that a run that is cut leaves what it has measured.

    Args:
        kind: the name of the measure, under which the record is stored.
        title: the title of the table.
        jobs: for each layer, by the name under which it is shown, a function that makes its
            tensors.
        options: the options of the command line for sampling, the time limit and results.
    """
    import torch

    console = make_console()
    rows: list[dict[str, Any]] = []
    record: dict[str, Any] = {**environment(kind), "means": {}, "rows": rows}
    path = result_path(options.results, record)
    with progress_bars(console) as progress:
        task = progress.add_task("layers", total=len(jobs))
        budget = TimeBudget(options.time_limit, len(jobs))
        for name, make in jobs.items():
            progress.update(task, description=name)
            problem = make()
            row = time_ways(problem.ways, problem.fault, options, budget.next_deadline())
            rows.append({"name": name, **row, "peak_bytes": dict(problem.peak_bytes)})
            record["means"] = means(rows)
            write(path, record)
            del problem
            torch.cuda.empty_cache()
            progress.advance(task)
    show(rows, title, console)
    console.print(f"written to {path}", highlight=False, soft_wrap=True)
    if wrong := [f"{row['name']}: {row['faults']}" for row in rows if row["faults"]]:
        sys.exit("\n".join(wrong))
