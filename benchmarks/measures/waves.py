"""Measure how much of the GPU each schedule uses if the last wave of tiles is not full.

    python -m benchmarks waves
    python -m benchmarks waves --tile 256x256x64 --cluster 2x1 --layouts nn nt --regime sustained

T output tiles on W workgroups take ⌈T/W⌉ waves if tiles are not split, so a share T/(⌈T/W⌉·W) of
the workgroups' time is used. The measured utilisation is a kernel's rate divided by the rate of the
same kernel on a shape of ⌈T/W⌉ full waves with the same k. All schedules have the same macro tile.
By default the GPU rests before every sample: under the power limit fewer busy SMs run faster, which
would hide the difference between schedules.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
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
    require_positive,
)
from benchmarks.peers.compete import compete, exit_if_wrong
from benchmarks.peers.contender import CUBLAS
from benchmarks.peers.libraries import CuBlas
from benchmarks.peers.ours import PlanKernel
from benchmarks.peers.plans import Plan, compile_plans, parse_plan
from benchmarks.problems.problem import Problem
from benchmarks.problems.shapes import Shape, parse_shape, parse_triple, select_shapes
from benchmarks.reports.console import announce_files, make_console, progress_bars
from benchmarks.reports.record import environment, result_path, write
from benchmarks.reports.summary import by_problem
from benchmarks.timing.monitor import Monitor
from codegen.targets.nvptx.driver import unavailable

SCHEDULES = ("data-parallel{persistent=true}", "stream-k", "two-tile-stream-k")
TILE = (128, 256, 64)


def tiles_of(shape: Shape, tile: Sequence[int]) -> int:
    """The number of output tiles of a shape, including tiles that reach beyond its edges.

    >>> tiles_of(Shape("", 896, 4864, 4096), (128, 256, 64))
    133
    """
    return -(-shape.m // tile[0]) * -(-shape.n // tile[1])


def ideal(tiles: int, workgroups: int) -> float:
    """The fraction of time that W workgroups use for T tiles that are not split: T/(⌈T/W⌉·W).

    >>> ideal(133, 132), ideal(264, 132)
    (0.5037878787878788, 1.0)
    """
    return tiles / (math.ceil(tiles / workgroups) * workgroups)


def whole_waves(tiles: int, workgroups: int, tile: Sequence[int], k: int) -> Shape:
    """A nearly square shape whose tiles fill ⌈tiles / workgroups⌉ waves exactly.

    >>> whole_waves(133, 132, (128, 256, 64), 4096).size
    '3072x2816x4096'
    """
    count = math.ceil(tiles / workgroups) * workgroups
    wanted = math.sqrt(count * tile[1] / tile[0])
    rows = min(
        (d for d in range(1, count + 1) if count % d == 0),
        key=lambda d: abs(math.log(d / wanted)),
    )
    return Shape(f"{count} whole tiles", rows * tile[0], count // rows * tile[1], k)


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks waves`."""
    made = command_line("waves", __doc__)
    made.add_argument(
        "--shapes",
        type=parse_shape,
        nargs="+",
        metavar="MxNxK",
        help="shapes to measure; default group B",
    )
    made.add_argument(
        "--tile",
        type=parse_triple,
        default=TILE,
        metavar="MxNxK",
        help="macro tile; default 128x256x64",
    )
    made.add_argument("--cluster", default="1x1", help="workgroups of a cluster, as 2x1")
    made.add_argument("--schedules", nargs="+", default=list(SCHEDULES), metavar="PIPELINE")
    add_layouts(made, "nt")
    add_dtype(made)
    add_target(made)
    add_sampling(made, rounds=9, seconds=0.003, regime="burst")
    add_results(made)
    return made


def plans_of(options: argparse.Namespace) -> list[Plan]:
    """The plans to measure: one per schedule, all with the tile and cluster of the command line."""
    tile = "x".join(map(str, options.tile)) + f"@c{options.cluster}"
    return [parse_plan(f"{tile} {schedule}") for schedule in options.schedules]


def add_utilisation(
    rows: list[dict[str, Any]], whole: list[dict[str, Any]], workgroups: int, tiles: int
) -> None:
    """Add the utilisation to each result row of a coordgraph kernel on one shape.

    Args:
        rows: the result rows of the shape, which are changed.
        whole: result rows of the same kernels on a shape whose waves are all full.
        workgroups: how many workgroups, or clusters, the GPU runs at the same time.
        tiles: the number of output tiles of the shape.
    """
    rates = {row["name"]: row["tflops"] for row in whole if row["ours"] and "tflops" in row}
    for row in rows:
        if row["name"] in rates and "tflops" in row:
            row |= {
                "tiles": tiles,
                "workgroups": workgroups,
                "ideal": ideal(tiles, workgroups),
                "whole_tflops": rates[row["name"]],
                "utilisation": row["tflops"] / rates[row["name"]],
            }


def measure(options: argparse.Namespace, layout: str, progress: Progress) -> list[dict[str, Any]]:
    """Time every schedule on every shape in one layout; returns the rows of the record."""
    plans = plans_of(options)
    task = progress.add_task(f"compiling ({layout})", total=len(plans))
    compiled = compile_plans(
        plans, options.dtype, layout, options.target, lambda: progress.advance(task)
    )
    ours = [PlanKernel(plan, kernel) for plan, kernel in compiled]
    counts = {one.details["resident"] for one in ours if one.details}
    if not counts:
        return [{"name": one.name, "layout": layout, "problem": str(one.kernel)} for one in ours]
    workgroups = min(counts)
    contenders = [CuBlas(), *ours]
    shapes = [
        found for _, found in select_shapes(None if options.shapes else ["B"], options.shapes)
    ]
    progress.update(task, description=layout, total=len(shapes), completed=0)
    references: dict[Shape, list[dict[str, Any]]] = {}
    rows: list[dict[str, Any]] = []

    def timed(what: Shape) -> list[dict[str, Any]]:
        problem = Problem(what, layout, options.dtype)
        regimes, state = [options.regime], monitor.since
        return list(compete(contenders, problem, options, regimes=regimes, device_state=state))

    with Monitor() as monitor:
        for found in shapes:
            tiles = tiles_of(found, options.tile)
            reference = whole_waves(tiles, workgroups, options.tile, found.k)
            if reference not in references:
                references[reference] = timed(reference)
            of_shape = timed(found)
            add_utilisation(of_shape, references[reference], workgroups, tiles)
            rows += of_shape
            progress.advance(task)
    return rows


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """Print a table of utilisation and speed, a line for every contender on every shape."""
    columns = ("shape", "T", "T/W", "whole tiles", "contender", "µs", "of cuBLAS", "utilisation")
    table = Table(*columns, title="utilisation: rate over the rate in full waves of the same k")
    for of_problem in by_problem(rows):
        shown = next((row for row in of_problem if "ideal" in row), None)
        first = of_problem[0]
        head = [f"{first['shape']} {first['layout']}", "", "", ""]
        if shown:
            waves = shown["tiles"] / shown["workgroups"]
            head[1:] = [str(shown["tiles"]), f"{waves:.2f}", f"{shown['ideal']:.2f}"]
        for row in of_problem:
            if "problem" in row:
                table.add_row(*head, f"{row['name']}: {row['problem'][:60]}", style="red")
            else:
                ratio, used = row.get("of_cublas"), row.get("utilisation")
                table.add_row(
                    *head,
                    row["name"],
                    f"{1e6 * row['seconds']['median']:.1f}",
                    f"{ratio:.3f}" if ratio else "",
                    f"{used:.2f}" if used else "",
                )
            head = [""] * 4
        table.add_section()
    console.print(table)


def main() -> None:
    """Run `python -m benchmarks waves`."""
    made = parser()
    options = made.parse_args()
    require_positive(made, options)
    try:
        tile = str(plans_of(options)[0]).partition(" ")[0]
    except argparse.ArgumentTypeError as error:
        made.error(str(error))
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}; run this measure on a machine with an NVIDIA GPU")
    console = make_console()
    record: dict[str, Any] = {
        **environment("waves"),
        "dtype": options.dtype,
        "tile": tile,
        "rows": [],
    }
    path = result_path(options.results, record)
    with progress_bars(console) as bar:
        for layout in options.layouts:
            record["rows"] += measure(options, layout, bar)
            write(path, record)
    measured = [row for row in record["rows"] if "shape" in row]
    show(measured, console)
    for row in record["rows"]:
        if "shape" not in row:
            console.print(f"{row['name']}: {row['problem']}", style="red")
    announce_files(record, path, console)
    exit_if_wrong([row for row in record["rows"] if row["name"] != CUBLAS])


if __name__ == "__main__":
    main()
