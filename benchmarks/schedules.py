"""All schedules side by side, with the same tile, around one, two and three waves of tiles.

    python -m benchmarks schedules                  # counts, and times where there is a GPU
    python -m benchmarks schedules --count-only --counts 120 132 133 264 265
    python -m benchmarks schedules --tiles 256x128x64 --k 8192 --schedules "stream-k{owner=last}"

T output tiles on W SMs are T/W waves. Where tiles stay whole, the last wave is as long as
the others, however few tiles it has. Schedules that share tiles fill it, and pay with fix-ups:
partial tiles that are stored, waited for and added.

Counted, from the graph and exact, for every T and schedule:

  utilisation  all iterations (k tiles), by what W SMs could do in the time of the busiest
  fix-ups      partial tiles that are received from others and added
  workspace    bytes for partial tiles and flags

Measured, where there is a GPU: time and TFLOP/s of our kernels and of cuBLAS, as `benchmarks gemm`
does it; every result is checked first. A schedule whose grid can be chosen has a workgroup on every
SM. By default the GPU rests before every sample, so that the power limit, which lets fewer
busy SMs run faster, does not hide what schedules do. T tiles are as nearly a square as their
factors allow, so that neighbours in the scale read about as much.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from benchmarks.contenders import CUBLAS, Ours, compete, exit_where_wrong
from benchmarks.counts import Tile, count, has_grid, plane
from benchmarks.gemm import LAYOUTS, Allowance
from benchmarks.monitor import Monitor
from benchmarks.options import add_measuring, command_line
from benchmarks.peers import CuBlas
from benchmarks.plans import Plan, compile_plans, parse_plan
from benchmarks.problem import Problem
from benchmarks.record import RESULTS, environment, result_path, write
from benchmarks.report import aligned, console_here, draw_beside
from benchmarks.shapes import Shape, triple
from codegen.nvptx.driver import unavailable
from coordgraph import CoordGraphError

__all__ = ["COUNTS", "SCHEDULES", "columns", "main", "rows_of", "shape_of"]

PROCESSORS = 132
"""Of an H100 or H200; the device's own where there is one."""
TILES: tuple[Tile, ...] = ((128, 128, 64), (128, 256, 64))
# Half a wave, a little less than a wave, a wave, a little more, and so on to three and a half; all
# of them products of numbers that are not far apart.
COUNTS = (
    *(66, 99, 120, 130, 132, 133, 135, 144, 165, 198),
    *(231, 252, 260, 264, 266, 270, 288, 330),
    *(363, 384, 391, 396, 399, 408, 462),
)
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
    """The command line."""
    made = command_line("schedules", __doc__)
    made.add_argument(
        "--tiles", type=triple, nargs="+", default=list(TILES), metavar="MxNxK",
        help="macro tiles, each by itself; default 128x128x64 128x256x64",
    )  # fmt: skip
    made.add_argument(
        "--counts", type=int, nargs="+", default=list(COUNTS), metavar="T",
        help=f"of output tiles; by default {len(COUNTS)} of them, {COUNTS[0]} to {COUNTS[-1]}",
    )  # fmt: skip
    made.add_argument("--k", type=int, default=4096, help="depth of the products, default 4096")
    made.add_argument(
        "--schedules", nargs="+", default=list(SCHEDULES), metavar="PIPELINE",
        help="passes as text; `coordgraph explain` lists them and their options",
    )  # fmt: skip
    made.add_argument(
        "--sms", "--processors", dest="processors", type=int, metavar="W",
        help=f"workgroups at the same time; default the GPU's SMs, or {PROCESSORS}",
    )  # fmt: skip
    made.add_argument("--count-only", action="store_true", help="measure nothing, write nothing")
    made.add_argument("--layouts", nargs="+", default=["nt"], choices=LAYOUTS)
    add_measuring(made, regime="burst", rounds=9, seconds=0.002)
    made.add_argument("--time-limit", type=float, default=8.0, metavar="MINUTES")
    made.add_argument("--results", type=Path, default=RESULTS, help="folder for JSON and plots")
    return made


def read(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, checked; the program ends where they make no sense."""
    made = parser()
    options = made.parse_args(words)
    numbers = (*options.counts, options.k, options.rounds, options.processors or 1)
    if min(numbers) < 1 or options.seconds <= 0 or options.time_limit <= 0:
        made.error("--counts, --k, --sms, --rounds, --seconds, --time-limit must be positive")
    for tile in options.tiles:
        for schedule in options.schedules:
            try:
                has_grid(schedule, tile, options.dtype)
            except CoordGraphError as error:
                made.error(f"{name_of(tile)} {schedule}: {error}")
    return options


def name_of(tile: Sequence[int]) -> str:
    """`128x256x64`."""
    return "x".join(map(str, tile))


def shape_of(tiles: int, tile: Tile, k: int) -> Shape:
    """A product of so many whole tiles.

    >>> shape_of(133, (128, 256, 64), 4096).size
    '896x4864x4096'
    """
    rows, columns = plane(tiles)
    return Shape(f"{tiles} tiles", rows * tile[0], columns * tile[1], k)


def plan_of(schedule: str, tile: Tile, dtype: str, processors: int) -> Plan:
    """The plan of a schedule, with a workgroup for every SM where that can be chosen."""
    grid = f" on {processors}" if has_grid(schedule, tile, dtype) else ""
    return parse_plan(f"{name_of(tile)} {schedule}{grid}")


def rows_of(
    tile: Tile, tiles: int, k: int, schedules: Iterable[str], processors: int, dtype: str = "bf16"
) -> Iterator[dict[str, Any]]:
    """What is counted of each schedule, a row for each."""
    shape = shape_of(tiles, tile, k)
    for schedule in schedules:
        counts = count(schedule, tile, (shape.m, shape.n, k), processors, dtype)
        yield {
            "tile": name_of(tile),
            "shape": shape.name,
            **{"m": shape.m, "n": shape.n, "k": k},
            "name": str(plan_of(schedule, tile, dtype, processors)),
            "schedule": schedule,
            "processors": processors,
            **counts.json(),
        }


def measured(
    counted: Sequence[dict[str, Any]], raced: Iterable[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """What was measured with what is counted of the same plan; peers have no counts."""
    by_name = {row["name"]: row for row in counted}
    first = counted[0]
    shared = {name: first[name] for name in ("tile", "tiles", "processors")}
    for row in raced:
        yield {**by_name.get(row["name"], {}), **shared, **row}


def measure(
    options: argparse.Namespace, record: dict[str, Any], processors: int, console: Console
) -> Path:
    """All tiles, layouts and counts; the record is written after each. Returns where."""
    path, rows = result_path(options.results, record), record["rows"]
    jobs = [(tile, layout) for tile in options.tiles for layout in options.layouts]
    allowance = Allowance(options.time_limit, len(jobs) * len(options.counts))
    bars = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Monitor() as monitor, Progress(*bars, console=console) as progress:
        task = progress.add_task("counts", total=allowance.left)
        for tile, layout in jobs:
            plans = [plan_of(s, tile, options.dtype, processors) for s in options.schedules]
            compiling = progress.add_task(f"compiling {name_of(tile)}", total=len(plans))

            def step(task: Any = compiling) -> None:
                progress.advance(task)

            kernels = compile_plans(plans, options.dtype, layout, options.target, step)
            everyone = [CuBlas(), *(Ours(plan, kernel) for plan, kernel in kernels)]
            progress.remove_task(compiling)
            for tiles in options.counts:
                progress.update(task, description=f"{name_of(tile)} {layout} {tiles} tiles")
                problem = Problem(shape_of(tiles, tile, options.k), layout, options.dtype)
                raced = compete(
                    everyone,
                    problem,
                    options,
                    regimes=[options.regime],
                    deadline=allowance.deadline(),
                    state=monitor.since,
                )
                counted = list(
                    rows_of(tile, tiles, options.k, options.schedules, processors, options.dtype)
                )
                rows += measured(counted, raced)
                del problem
                write(path, record)
                progress.advance(task)
    return path


def columns(rows: Sequence[dict[str, Any]], name: str, form: str) -> str:
    """A figure as text: a line for each number of tiles, a column for each schedule.

    Args:
        rows: of one tile.
        name: `utilisation`, `fix_ups`, `workspace_bytes` or `busiest`.
        form: how a number is written, as `.3f`.
    """
    schedules = list(dict.fromkeys(row["schedule"] for row in rows))
    letters = [chr(ord("a") + place) for place in range(len(schedules))]
    by_place = {(row["tiles"], row["schedule"]): format(row[name], form) for row in rows}
    counts = list(dict.fromkeys(row["tiles"] for row in rows))
    table = [["T", "T/W", *letters]]
    for tiles in counts:
        waves = f"{tiles / rows[0]['processors']:.2f}"
        table.append([str(tiles), waves, *(by_place[tiles, schedule] for schedule in schedules)])
    return aligned(table)


def show_counts(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """The counts of a tile."""
    for place, schedule in enumerate(dict.fromkeys(row["schedule"] for row in rows)):
        console.print(f"{chr(ord('a') + place)}: {schedule}", highlight=False, markup=False)
    what = (("utilisation", ".3f"), ("fix_ups", "d"), ("workspace_bytes", "d"))
    for name, form in what:
        console.print(f"\n{name.replace('_', ' ')}\n{columns(rows, name, form)}", highlight=False)


def show_times(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """A line for every contender of every number of tiles."""
    heads = ("tile", "T", "T/W", "contender", "utilisation", "fix-ups", "µs", "TFLOP/s")
    table = Table(*heads, "of cuBLAS", title="counted, and measured")
    before = None
    for row in rows:
        place = (row["tile"], row["tiles"], row["layout"])
        waves = f"{row['tiles'] / row['processors']:.2f}"
        head = [row["tile"], str(row["tiles"]), waves] if place != before else [""] * 3
        if place != before:
            table.add_section()
        before = place
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
    """Print the counts of every tile."""
    for tile in options.tiles:
        console.rule(f"{name_of(tile)}, k = {options.k}, W = {processors}")
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
    options, console = read(), console_here()
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
    draw_beside(record, path, console)
    ours = [row for row in record["rows"] if row["name"] != CUBLAS]
    exit_where_wrong(ours)


if __name__ == "__main__":
    main()
