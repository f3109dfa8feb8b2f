"""Measure how much recording a timeline slows kernels down (`codegen.compile(timeline=True)`).

    python -m benchmarks timeline
    python -m benchmarks timeline --shapes 4096x4096x4096 --plans "128x256x64 stream-k on 132"

Every plan is compiled twice, with and without records, and both kernels are timed in turn on every
shape. The overhead is the ratio of their median times, minus 1; the goal is at most 3 %. One launch
with records also gives the fractions of the SMs' time: multiplying, epilogue, fix-up, waiting,
idle.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.options import (
    add_dtype,
    add_layouts,
    add_results,
    add_sampling,
    add_target,
    command_line,
    parse_for_gpu,
)
from benchmarks.peers.compete import compete, exit_if_wrong
from benchmarks.peers.ours import PlanKernel
from benchmarks.peers.plans import Plan, gemm_of_layout, loaded, parse_plan
from benchmarks.problems.problem import Problem
from benchmarks.problems.shapes import parse_shape
from benchmarks.reports.console import announce_files, make_console, progress_bars
from benchmarks.reports.record import environment, result_path, write
from benchmarks.timing.monitor import Monitor
from coordgraph import CoordGraphError

GOAL = 0.03
"""The largest overhead of recording a timeline that meets the goal, as a fraction."""
RECORDS = " + records"
"""Suffix of the name of a kernel that records a timeline."""
PLANS = (
    "128x256x64 data-parallel",
    "128x256x64 data-parallel{persistent=true} on 132",
    "128x256x64 stream-k on 132",
    "256x256x64@c2x1 two-tile-stream-k{owner=last} on 66",
    "128x128x64@pingpong data-parallel{persistent=true} on 132",
)
SHAPES = ("1024x1024x512", "2304x2304x4096", "4096x4096x4096", "8192x8192x8192")
SHARES = ("multiply", "finish", "send", "wait", "receive", "idle")
"""Activities of workgroups; the printed table has the fraction of the SMs' time for each."""


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks timeline`."""
    made = command_line("timeline", __doc__)
    made.add_argument(
        "--shapes",
        type=parse_shape,
        nargs="+",
        default=[parse_shape(text) for text in SHAPES],
        metavar="MxNxK",
        help=f"shapes to measure; default {' '.join(SHAPES)}",
    )
    made.add_argument(
        "--plans",
        type=parse_plan,
        nargs="+",
        default=[parse_plan(text) for text in PLANS],
        metavar="PLAN",
        help="plans to measure; default five of all kinds",
    )
    add_layouts(made, "nt")
    add_dtype(made)
    add_target(made)
    add_sampling(made, rounds=15, seconds=0.003, regime="sustained")
    add_results(made)
    return made


def kernels(plan: Plan, dtype: str, layout: str, target: str) -> Iterator[PlanKernel]:
    """Compile the kernel of a plan twice: without and with timeline records."""
    for timeline in (False, True):
        try:
            graph = plan.graph(gemm_of_layout(dtype, layout))
            kernel = loaded(plan, graph, target, timeline=timeline)
        except CoordGraphError as error:
            kernel = error
        made = PlanKernel(plan, kernel)
        made.name += RECORDS if timeline else ""
        yield made


def add_overheads(rows: Sequence[dict[str, Any]]) -> None:
    """Add `overhead` to the rows of the kernels that record a timeline.

    The overhead is the time with timeline records / the time without, minus 1. All rows are
    measurements of one shape.
    """
    seconds = {row["name"]: row["seconds"]["median"] for row in rows if "seconds" in row}
    for row in rows:
        plain = seconds.get(row["name"].removesuffix(RECORDS))
        if row["name"].endswith(RECORDS) and "seconds" in row and plain:
            row["overhead"] = row["seconds"]["median"] / plain - 1


def measure(options: argparse.Namespace, layout: str, progress: Progress) -> list[dict[str, Any]]:
    """Time all plans and shapes in one layout; returns the rows of the record."""
    task = progress.add_task(layout, total=len(options.shapes) * len(options.plans))
    made = [[*kernels(p, options.dtype, layout, options.target)] for p in options.plans]
    rows: list[dict[str, Any]] = []
    with Monitor() as monitor:
        for shape in options.shapes:
            problem = Problem(shape, layout, options.dtype)
            for pair in made:
                rows += _timed(pair, problem, options, monitor)
                progress.advance(task)
    return rows


def _timed(
    pair: Sequence[PlanKernel], problem: Problem, options: argparse.Namespace, monitor: Monitor
) -> list[dict[str, Any]]:
    """Time a plan's kernel on one shape, without and with timeline records; return two rows."""
    regimes, state = [options.regime], monitor.since
    rows = list(compete(pair, problem, options, regimes=regimes, device_state=state))
    add_overheads(rows)
    for one, row in zip(pair, rows, strict=True):
        row["plan"] = str(one.plan)
        if one.name.endswith(RECORDS) and "seconds" in row:
            a, b, out = problem.sets[0]
            found = one.kernel.timeline(a, b, out=out, workgroups=one.plan.workgroups)
            row["timeline"] = {k: v for k, v in found.summary().items() if k != "per_slot"}
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a table of the overheads of timeline records: a line for every plan on every shape."""
    table = Table("shape", "plan", "µs", "with records", "overhead", *SHARES)
    for row in rows:
        if "overhead" not in row:
            if "problem" in row:
                table.add_row(row["shape"], row["name"], row["problem"][:60], style="red")
            continue
        seconds, found = row["seconds"]["median"], row["timeline"]
        slots = found["slots"] * found["workgroups_per_slot"]
        total = found["makespan_seconds"] * slots or 1.0
        table.add_row(
            f"{row['m']}x{row['n']}x{row['k']}",
            row["plan"],
            f"{1e6 * seconds / (1 + row['overhead']):.1f}",
            f"{1e6 * seconds:.1f}",
            f"{row['overhead']:+.1%}",
            *(f"{found['slot_seconds'][name] / total:.0%}" for name in SHARES),
            style="red" if row["overhead"] > GOAL else "",
        )
    console.print(table)


def main() -> None:
    """Run `python -m benchmarks timeline`."""
    options = parse_for_gpu(parser())
    console = make_console()
    record: dict[str, Any] = {
        **environment("timeline"),
        "dtype": options.dtype,
        "goal": GOAL,
        "rows": [],
    }
    path = result_path(options.results, record)
    with progress_bars(console) as bar:
        for layout in options.layouts:
            record["rows"] += measure(options, layout, bar)
            write(path, record)
    show(record["rows"], console)
    announce_files(record, path, console)
    exit_if_wrong(record["rows"])


if __name__ == "__main__":
    main()
