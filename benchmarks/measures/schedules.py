"""Compare all schedules with the same macro tile, around one, two and three waves of tiles.

    python -m benchmarks schedules                  # counts, and times if there is a GPU
    python -m benchmarks schedules --count-only --counts 120 132 133 264 265
    python -m benchmarks schedules --tiles 256x128x64 --k 8192 --schedules "stream-k{owner=last}"

T output tiles on W SMs are T/W waves. If tiles are not split, the last wave takes as long as the
others, however few tiles it has. Schedules that split tiles among workgroups fill the last wave, at
the cost of fix-ups: partial tiles that are stored, waited for and added.

Counted from the graph, exactly, for every T and schedule:

  utilisation  all iterations (k tiles) over W times the iterations of the busiest SM
  fix-ups      partial tiles that a workgroup receives from others and adds
  workspace    bytes for partial tiles and flags

Measured if there is a GPU: time and TFLOP/s of coordgraph's kernels and of cuBLAS, as by
`benchmarks gemm`; every result is checked first. If the number of workgroups is a launch argument,
it is the number of SMs. By default the GPU rests before every sample: under the power limit fewer
busy SMs run faster, which would hide the difference between schedules. T tiles are arranged as
nearly in a square as their factors allow, so that problems of similar T read about as much.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.counting.counts import Tile, count, has_grid, plane
from benchmarks.options import (
    add_dtype,
    add_layouts,
    add_results,
    add_sampling,
    add_target,
    add_time_limit,
    command_line,
    require_positive,
)
from benchmarks.peers.compete import compete, exit_if_wrong
from benchmarks.peers.contender import CUBLAS
from benchmarks.peers.libraries import CuBlas
from benchmarks.peers.ours import PlanKernel
from benchmarks.peers.plans import Plan, compile_plans, parse_plan
from benchmarks.problems.problem import Problem
from benchmarks.problems.shapes import Shape, parse_triple
from benchmarks.reports.console import announce_files, make_console, progress_bars
from benchmarks.reports.record import environment, result_path, write
from benchmarks.reports.tables import aligned
from benchmarks.timing.budget import TimeBudget
from benchmarks.timing.monitor import Monitor
from codegen.targets.nvptx.driver import unavailable
from coordgraph import CoordGraphError

__all__ = ["COUNTS", "SCHEDULES", "columns", "main", "rows_of", "shape_of"]

PROCESSORS = 132
"""The number of SMs of an H100 or H200, used for counting if there is no GPU."""
TILES: tuple[Tile, ...] = ((128, 128, 64), (128, 256, 64))
COUNTS = (
    *(66, 99, 120, 130, 132, 133, 135, 144, 165, 198),
    *(231, 252, 260, 264, 266, 270, 288, 330),
    *(363, 384, 391, 396, 399, 408, 462),
)
"""Default numbers of output tiles, around 0.5, 1, 1.5, … 3.5 waves on 132 SMs.

Each is a product of two factors that are close to each other, so that problems are nearly square.
"""
SCHEDULES = (
    "data-parallel",
    "data-parallel{persistent=true}",
    "split-k{splits=2}",
    "stream-k{owner=last}",
    "stream-k{owner=last,least_segment=8}",
    "two-tile-stream-k{owner=last}",
    "hybrid-stream-k{owner=last}",
    "hybrid-stream-k{owner=last,least_segment=8}",
    "heterogeneous-tiles",
    "stream-k{reduction=scatter}",
    "stream-k{owner=last,reduction=atomic}",
)


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks schedules`."""
    made = command_line("schedules", __doc__)
    made.add_argument(
        "--tiles", type=parse_triple, nargs="+", default=list(TILES), metavar="MxNxK",
        help="macro tiles, measured one after another; default 128x128x64 128x256x64",
    )  # fmt: skip
    made.add_argument(
        "--counts", type=int, nargs="+", default=list(COUNTS), metavar="T",
        help=f"numbers of output tiles; default {len(COUNTS)} from {COUNTS[0]} to {COUNTS[-1]}",
    )  # fmt: skip
    made.add_argument("--k", type=int, default=4096, help="k of all problems; default 4096")
    made.add_argument(
        "--schedules", nargs="+", default=list(SCHEDULES), metavar="PIPELINE",
        help="schedules with their options; `coordgraph passes` lists them",
    )  # fmt: skip
    made.add_argument(
        "--sms", "--processors", dest="processors", type=int, metavar="W",
        help=f"SMs to count for; default those of the GPU, or {PROCESSORS}",
    )  # fmt: skip
    made.add_argument(
        "--count-only", action="store_true", help="count without measuring, and write no file"
    )
    add_layouts(made, "nt")
    add_dtype(made)
    add_target(made)
    add_sampling(made, rounds=9, seconds=0.002, regime="burst")
    add_time_limit(made, 8.0)
    add_results(made)
    return made


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check the command line; an invalid one ends the process with a message."""
    made = parser()
    options = made.parse_args(words)
    require_positive(made, options)
    if min(*options.counts, options.k, options.processors or 1) < 1:
        made.error("--counts, --k and --sms must be positive")
    for tile in options.tiles:
        for schedule in options.schedules:
            try:
                has_grid(schedule, tile, options.dtype)
            except CoordGraphError as error:
                made.error(f"{tile_text(tile)} {schedule}: {error}")
    return options


def tile_text(tile: Sequence[int]) -> str:
    """A macro tile as text, such as `128x256x64`."""
    return "x".join(map(str, tile))


def shape_of(tiles: int, tile: Tile, k: int) -> Shape:
    """A nearly square problem of exactly `tiles` output tiles.

    >>> shape_of(133, (128, 256, 64), 4096).size
    '896x4864x4096'
    """
    rows, columns = plane(tiles)
    return Shape(f"{tiles} tiles", rows * tile[0], columns * tile[1], k)


def plan_of(schedule: str, tile: Tile, dtype: str, processors: int) -> Plan:
    """The plan with this schedule and tile.

    If the number of workgroups is a launch argument, the plan has `processors` workgroups.
    """
    grid = f" on {processors}" if has_grid(schedule, tile, dtype) else ""
    return parse_plan(f"{tile_text(tile)} {schedule}{grid}")


def rows_of(
    tile: Tile, tiles: int, k: int, schedules: Iterable[str], processors: int, dtype: str = "bf16"
) -> Iterator[dict[str, Any]]:
    """Count the work of every schedule on a problem of `tiles` output tiles; a row for each."""
    shape = shape_of(tiles, tile, k)
    for schedule in schedules:
        counts = count(schedule, tile, (shape.m, shape.n, k), processors, dtype)
        yield {
            "tile": tile_text(tile),
            "shape": shape.name,
            **{"m": shape.m, "n": shape.n, "k": k},
            "name": str(plan_of(schedule, tile, dtype, processors)),
            "schedule": schedule,
            "processors": processors,
            **counts.json(),
        }


def merged(
    counted: Sequence[dict[str, Any]], timed: Iterable[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The rows of `timed`, each with the counts of its plan added; cuBLAS has no counts."""
    by_name = {row["name"]: row for row in counted}
    first = counted[0]
    shared = {name: first[name] for name in ("tile", "tiles", "processors")}
    for row in timed:
        yield {**by_name.get(row["name"], {}), **shared, **row}


def measure(
    options: argparse.Namespace, record: dict[str, Any], processors: int, console: Console
) -> Path:
    """Time all macro tiles, layouts and numbers of output tiles; returns the record's path.

    The record is written after each problem.
    """
    path, rows = result_path(options.results, record), record["rows"]
    jobs = [(tile, layout) for tile in options.tiles for layout in options.layouts]
    budget = TimeBudget(options.time_limit, len(jobs) * len(options.counts))
    with Monitor() as monitor, progress_bars(console) as progress:
        task = progress.add_task("counts", total=budget.left)
        for tile, layout in jobs:
            plans = [plan_of(s, tile, options.dtype, processors) for s in options.schedules]
            compiling = progress.add_task(f"compiling {tile_text(tile)}", total=len(plans))

            def step(task: Any = compiling) -> None:
                progress.advance(task)

            kernels = compile_plans(plans, options.dtype, layout, options.target, step)
            contenders = [CuBlas(), *(PlanKernel(plan, kernel) for plan, kernel in kernels)]
            progress.remove_task(compiling)
            for tiles in options.counts:
                progress.update(task, description=f"{tile_text(tile)} {layout} {tiles} tiles")
                problem = Problem(shape_of(tiles, tile, options.k), layout, options.dtype)
                timed = compete(
                    contenders,
                    problem,
                    options,
                    regimes=[options.regime],
                    deadline=budget.next_deadline(),
                    device_state=monitor.since,
                )
                counted = list(
                    rows_of(tile, tiles, options.k, options.schedules, processors, options.dtype)
                )
                rows += merged(counted, timed)
                del problem
                write(path, record)
                progress.advance(task)
    return path


def columns(rows: Sequence[dict[str, Any]], name: str, form: str) -> str:
    """One count as a text table: a line per number of output tiles, a column per schedule.

    Args:
        rows: the rows of one macro tile.
        name: the count: `utilisation`, `fix_ups`, `workspace_bytes` or `busiest`.
        form: the format of a number, such as `.3f`.
    """
    schedules = list(dict.fromkeys(row["schedule"] for row in rows))
    letters = [chr(ord("a") + index) for index in range(len(schedules))]
    cells = {(row["tiles"], row["schedule"]): format(row[name], form) for row in rows}
    counts = list(dict.fromkeys(row["tiles"] for row in rows))
    table = [["T", "T/W", *letters]]
    for tiles in counts:
        waves = f"{tiles / rows[0]['processors']:.2f}"
        table.append([str(tiles), waves, *(cells[tiles, schedule] for schedule in schedules)])
    return aligned(table)


def show_counts(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a table for each counted quantity (utilisation, fix-ups, …), for one macro tile."""
    for index, schedule in enumerate(dict.fromkeys(row["schedule"] for row in rows)):
        console.print(f"{chr(ord('a') + index)}: {schedule}", highlight=False, markup=False)
    figures = (("utilisation", ".3f"), ("fix_ups", "d"), ("workspace_bytes", "d"))
    for name, form in figures:
        console.print(f"\n{name.replace('_', ' ')}\n{columns(rows, name, form)}", highlight=False)


def show_times(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a table of times with a line per contender and number of output tiles."""
    heads = ("tile", "T", "T/W", "contender", "utilisation", "fix-ups", "µs", "TFLOP/s")
    table = Table(*heads, "of cuBLAS", title="counts and times")
    before = None
    for row in rows:
        problem = (row["tile"], row["tiles"], row["layout"])
        waves = f"{row['tiles'] / row['processors']:.2f}"
        head = [row["tile"], str(row["tiles"]), waves] if problem != before else [""] * 3
        if problem != before:
            table.add_section()
        before = problem
        counted = "utilisation" in row
        cells = [
            row.get("schedule", row["name"]),
            f"{row['utilisation']:.3f}" if counted else "",
            str(row["fix_ups"]) if counted else "",
        ]
        if "problem" in row:
            table.add_row(*head, *cells, "", "", row["problem"][:60], style="red")
            continue
        ratio = row.get("of_cublas")
        table.add_row(
            *head,
            *cells,
            f"{1e6 * row['seconds']['median']:.1f}",
            f"{row['tflops']:.0f}",
            "" if ratio is None else f"{ratio:.3f}",
        )
    console.print(table)


def count_all(options: argparse.Namespace, processors: int, console: Console) -> None:
    """Count the work of all schedules with every macro tile, and print tables of the counts."""
    for tile in options.tiles:
        console.rule(f"{tile_text(tile)}, k = {options.k}, W = {processors}")
        with Progress(console=console, transient=True) as progress:
            counts = progress.track(options.counts, description="counting")
            rows = [
                row
                for tiles in counts
                for row in rows_of(
                    tile, tiles, options.k, options.schedules, processors, options.dtype
                )
            ]
        show_counts(rows, console)


def main() -> None:
    """Run `python -m benchmarks schedules`."""
    options, console = read_options(), make_console()
    reason = unavailable()
    if options.count_only or reason:
        count_all(options, options.processors or PROCESSORS, console)
        if reason and not options.count_only:
            console.print(f"nothing is measured: {reason}")
        return
    record: dict[str, Any] = {**environment("schedules"), "dtype": options.dtype, "rows": []}
    processors = options.processors or record["processors"]
    count_all(options, processors, console)
    path = measure(options, record, processors, console)
    show_times(record["rows"], console)
    announce_files(record, path, console)
    ours = [row for row in record["rows"] if row["name"] != CUBLAS]
    exit_if_wrong(ours)


if __name__ == "__main__":
    main()
