"""What a schedule makes of a last wave that is not full, on a GPU.

    python -m benchmarks waves
    python -m benchmarks waves --tile 256x256x64 --cluster 2x1 --layouts nn nt --regime sustained

T output tiles on W workgroups take ⌈T/W⌉ waves where tiles stay whole, so T/(⌈T/W⌉·W) of the
workgroups' time is used. The measured utilisation is a kernel's rate divided by the rate of the
same kernel on a shape of ⌈T/W⌉ full waves with the same k. All schedules have the same tile. By
default the GPU rests before every sample, so that the power limit, which lets fewer busy SMs run
faster, does not hide what schedules do.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

from benchmarks.contenders import CUBLAS, FAILED, Ours, compete
from benchmarks.monitor import Monitor
from benchmarks.options import add_measuring, command_line
from benchmarks.peers import CuBlas
from benchmarks.plans import Plan, compile_plans, parse_plan
from benchmarks.problem import Problem
from benchmarks.record import RESULTS, environment, result_path, write
from benchmarks.report import console_here, draw_beside, problems
from benchmarks.shapes import Shape, chosen, shape, triple
from codegen.nvptx.driver import unavailable

SCHEDULES = ("data-parallel{persistent=true}", "stream-k", "two-tile-stream-k")
TILE = (128, 256, 64)


def tiles_of(shape: Shape, tile: Sequence[int]) -> int:
    """Output tiles, with those at the border.

    >>> tiles_of(Shape("", 896, 4864, 4096), (128, 256, 64))
    133
    """
    return -(-shape.m // tile[0]) * -(-shape.n // tile[1])


def ideal(tiles: int, workgroups: int) -> float:
    """The share of the workgroups' time that whole tiles can use.

    >>> ideal(133, 132), ideal(264, 132)
    (0.5037878787878788, 1.0)
    """
    return tiles / (math.ceil(tiles / workgroups) * workgroups)


def whole_waves(tiles: int, workgroups: int, tile: Sequence[int], k: int) -> Shape:
    """A nearly square shape of exactly as many full waves as the tiles begin.

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
    """The command line."""
    made = command_line("waves", __doc__)
    made.add_argument("--shapes", type=shape, nargs="+", help="instead of the group B, as MxNxK")
    made.add_argument("--tile", type=triple, default=TILE, help="default 128x256x64")
    made.add_argument("--cluster", default="1x1", help="workgroups of a cluster, as 2x1")
    made.add_argument("--schedules", nargs="+", default=list(SCHEDULES))
    made.add_argument("--layouts", nargs="+", default=["nt"], choices=["nn", "nt", "tn", "tt"])
    add_measuring(made, regime="burst", rounds=9, seconds=0.003)
    made.add_argument("--results", type=Path, default=RESULTS, help="folder for JSON and plot")
    return made


def plans_of(options: argparse.Namespace) -> list[Plan]:
    """Every schedule with the tile."""
    tile = "x".join(map(str, options.tile)) + f"@c{options.cluster}"
    return [parse_plan(f"{tile} {schedule}") for schedule in options.schedules]


def add_utilisation(
    rows: list[dict[str, Any]], whole: list[dict[str, Any]], workgroups: int, tiles: int
) -> None:
    """Complete our rows of a shape by the rates of the same kernels on whole waves."""
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
    """Rows of a layout."""
    plans = plans_of(options)
    task = progress.add_task(f"compiling ({layout})", total=len(plans))
    compiled = compile_plans(
        plans, options.dtype, layout, options.target, lambda: progress.advance(task)
    )
    ours = [Ours(plan, kernel) for plan, kernel in compiled]
    counts = {one.details["resident"] for one in ours if one.details}
    if not counts:
        return [{"name": one.name, "layout": layout, "problem": str(one.kernel)} for one in ours]
    workgroups = min(counts)
    everyone = [CuBlas(), *ours]
    shapes = [found for _, found in chosen(None if options.shapes else ["B"], options.shapes)]
    progress.update(task, description=layout, total=len(shapes), completed=0)
    known: dict[Shape, list[dict[str, Any]]] = {}
    rows: list[dict[str, Any]] = []

    def race(what: Shape) -> list[dict[str, Any]]:
        problem = Problem(what, layout, options.dtype)
        regimes = [options.regime]
        return list(compete(everyone, problem, options, regimes=regimes, state=monitor.since))

    with Monitor() as monitor:
        for found in shapes:
            tiles = tiles_of(found, options.tile)
            reference = whole_waves(tiles, workgroups, options.tile, found.k)
            if reference not in known:
                known[reference] = race(reference)
            of_shape = race(found)
            add_utilisation(of_shape, known[reference], workgroups, tiles)
            rows += of_shape
            progress.advance(task)
    return rows


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """A line for every contender of every shape."""
    columns = ("shape", "T", "T/W", "whole tiles", "contender", "µs", "of cuBLAS", "utilisation")
    table = Table(*columns, title="utilisation: rate by the rate in whole waves of the same k")
    for of_problem in problems(rows):
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
    made = parser()
    options = made.parse_args()
    try:
        tile = str(plans_of(options)[0]).partition(" ")[0]
    except argparse.ArgumentTypeError as error:
        made.error(str(error))
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}")
    console = console_here()
    record: dict[str, Any] = {
        **environment("waves"),
        "dtype": options.dtype,
        "tile": tile,
        "rows": [],
    }
    path = result_path(options.results, record)
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=console) as bar:
        for layout in options.layouts:
            record["rows"] += measure(options, layout, bar)
            write(path, record)
    measured = [row for row in record["rows"] if "shape" in row]
    show(measured, console)
    for row in record["rows"]:
        if "shape" not in row:
            console.print(f"{row['name']}: {row['problem']}", style="red")
    draw_beside(record, path, console)
    faults = [row.get("problem", "") for row in record["rows"] if row["name"] != CUBLAS]
    if any(fault.startswith(("WRONG", FAILED)) for fault in faults):
        sys.exit("some results are wrong, or contenders failed")


if __name__ == "__main__":
    main()
