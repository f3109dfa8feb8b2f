"""Memory traffic by the order of tiles: simulated, and measured if there is a GPU.

    python -m benchmarks traffic                  # simulated; counters and times with a GPU
    python -m benchmarks traffic --model-only --shapes 8192x8192x4096 --cache-mb 25
    python -m benchmarks traffic --orders none "rasterize{along=n}" --schedules stream-k

Workgroups that read the same rows of A or columns of B at the same time share them in the L2 cache.
The order of tiles determines which workgroups run at the same time. The order is row by row
(`--orders none`), or the order that a pass before the schedule sets.

Simulated, without a GPU: all workgroups advance in step, one iteration (a k tile) each, and read
through a simulated L2 cache; `benchmarks.counting.l2` says what is assumed. The figure is bytes of
A and B that come from memory. By default the cache has as many bytes as the cost model assumes that
the device's L2 cache keeps of A and B: `Constants.kept_bytes`.

Measured on a GPU: bytes read from memory and from the L2 cache by the hardware counters, in one
launch that begins with an empty cache (`ncu` must be installed and permitted to count); and the
time as `benchmarks gemm` measures it, relative to that of the first order. Every result is checked
first.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks.counting import ncu
from benchmarks.counting.counts import has_grid
from benchmarks.counting.l2 import requests, through_cache
from benchmarks.options import (
    add_dtype,
    add_sampling,
    add_target,
    add_time_limit,
    command_line,
    require_positive,
)
from benchmarks.peers.compete import compete, exit_if_wrong
from benchmarks.peers.ours import PlanKernel
from benchmarks.peers.plans import WORKERS, Plan, compile_plans, parse_plan
from benchmarks.problems.problem import LAYOUTS, Problem
from benchmarks.problems.shapes import Shape, parse_shape
from benchmarks.reports.console import announce_files, make_console, progress_bars
from benchmarks.reports.record import RESULTS, environment, header, result_path, write
from benchmarks.reports.summary import Row
from benchmarks.reports.tables import aligned
from benchmarks.timing.budget import TimeBudget
from benchmarks.timing.monitor import Monitor
from codegen.targets.nvptx.driver import unavailable
from coordgraph import CoordGraphError
from passes.choosing import constants_of

__all__ = ["ORDERS", "columns", "legend", "main", "model", "plan_of", "with_relative_times"]

TILE = "256x256x64@c2x1"
SIZES = ("8192x8192x8192", "8192x28672x4096", "4096x57344x8192", "16384x16384x16384")
SCHEDULES = ("data-parallel{persistent=true}", "stream-k{owner=last}")
ROW_BY_ROW, NONE = "row by row", "none"
"""Names of the tile order without an ordering pass: in results files, and on the command line."""
ORDERS = (
    NONE,
    "rasterize{width=4}",
    "rasterize{width=8}",
    "rasterize{width=16}",
    "rasterize{snake=true}",
    "rasterize{order=hilbert}",
    "rasterize{order=morton}",
    "grouped",
)
FIGURES = (
    ("modelled_bytes", 1e-9, ".2f", "GB of A and B from memory, simulated"),
    ("dram_read_bytes", 1e-9, ".2f", "GB read from memory, measured"),
    ("l2_read_bytes", 1e-9, ".2f", "GB read from the L2 cache, measured"),
    ("relative_time", 1.0, ".3f", "time relative to the first order, measured"),
)
"""The quantities to print: name in the results file, factor, number format and heading."""
COUNTING_SHARE = 0.6
"""The fraction of the time left after compilation that may be spent on hardware counters."""


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks traffic`."""
    made = command_line("traffic", __doc__)
    made.add_argument(
        "--shapes", type=parse_shape, nargs="+", default=[parse_shape(size) for size in SIZES],
        metavar="MxNxK", help=f"problem sizes; default {' '.join(SIZES)}",
    )  # fmt: skip
    made.add_argument("--tile", default=TILE, help=f"macro tile and cluster; default {TILE}")
    made.add_argument(
        "--schedules", nargs="+", default=list(SCHEDULES), metavar="PIPELINE",
        help=f"schedules; default {' '.join(SCHEDULES)}",
    )  # fmt: skip
    made.add_argument(
        "--orders", nargs="+", default=list(ORDERS), metavar="PASSES",
        help=f"passes before the schedule, or {NONE}; default {' '.join(ORDERS)}",
    )  # fmt: skip
    made.add_argument(
        "--cache-mb", type=float, metavar="MB",
        help="size of the simulated cache in 10^6 bytes; default that of the cost model",
    )  # fmt: skip
    made.add_argument("--layout", default="nt", choices=LAYOUTS)
    add_dtype(made)
    add_target(made)
    made.add_argument("--model-only", action="store_true", help="simulate without measuring")
    made.add_argument("--no-counters", action="store_true", help="measure times without counters")
    add_sampling(made, rounds=5, seconds=0.002, regime="sustained")
    add_time_limit(made, 1.2)
    made.add_argument(
        "--results", type=Path, metavar="FOLDER",
        help=f"folder of the record and plots; default benchmarks/{RESULTS.name} if anything is "
        "measured, else none is written",
    )  # fmt: skip
    return made


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check the command line; an invalid one ends the process with a message."""
    made = parser()
    options = made.parse_args(words)
    require_positive(made, options)
    if (options.cache_mb or 0) < 0:
        made.error("--cache-mb must not be negative")
    for schedule, order in product(options.schedules, options.orders):
        try:
            plan_of(options.tile, order, schedule, 1, options.dtype)
        except (CoordGraphError, argparse.ArgumentTypeError) as error:
            made.error(f"{options.tile} {pipeline_of(order, schedule)}: {error}")
    return options


def pipeline_of(order: str, schedule: str) -> str:
    """The text of the pipeline of an ordering pass (or `none`) and a schedule."""
    return schedule if order == NONE else f"{order},{schedule}"


def plan_of(tile: str, order: str, schedule: str, slots: int, dtype: str = "bf16") -> Plan:
    """The plan of an order of tiles and a schedule.

    Args:
        tile: the macro tile and the cluster, as `256x256x64@c2x1`.
        order: the passes before the schedule, or `none`.
        schedule: the pipeline of the schedule.
        slots: how many workgroups, or clusters, the GPU runs at the same time; the number to launch
            if the schedule takes it as a launch argument.
        dtype: the element type of A, B and D.

    Raises:
        argparse.ArgumentTypeError, ParseError: the plan is malformed.
        PassError: a pass of the plan cannot be applied to a GEMM graph with this tile.
    """
    plan = parse_plan(f"{tile} {pipeline_of(order, schedule)}")
    if not has_grid(plan.pipeline, plan.tile, dtype):
        return plan
    return parse_plan(f"{plan} on {slots}")


def model(
    size: Shape,
    tile: str,
    order: str,
    schedule: str,
    *,
    cache_bytes: float | None = None,
    device: str = "NVIDIA H200",
    dtype: str = "bf16",
) -> Row:
    """Simulate an order of tiles; returns a row of results with the bytes read from memory.

    Args:
        size: the problem's m, n and k.
        tile: the macro tile and the cluster, as `256x256x64@c2x1`.
        order: the passes before the schedule, or `none`.
        schedule: the pipeline of the schedule.
        cache_bytes: the size of the simulated L2 cache; by default `kept_bytes` of the GPU's
            cost model.
        device: the GPU whose number of resident workgroups and cost model are used.
        dtype: the element type of A, B and D.
    """
    constants = constants_of(device)
    cluster = prod(parse_plan(f"{tile} {schedule}").cluster)
    slots = int(constants.slots(np.array([cluster]))[0])
    plan = plan_of(tile, order, schedule, slots, dtype)
    cache_bytes = constants.kept_bytes if cache_bytes is None else cache_bytes
    asked = requests(plan.pipeline, plan.tile, (size.m, size.n, size.k), slots, dtype)
    found = through_cache(asked, cache_bytes)
    return {
        **{"shape": size.name, "m": size.m, "n": size.n, "k": size.k},
        **{"tile": tile, "schedule": schedule, "name": str(plan)},
        "order": ROW_BY_ROW if order == NONE else order,
        **{"slots": slots, "cache_bytes": cache_bytes},
        "asked_bytes": found.asked_bytes,
        "compulsory_bytes": found.compulsory_bytes,
        "modelled_bytes": found.read_bytes,
        "modelled_a_bytes": found.read_a,
        "modelled_b_bytes": found.read_b,
    }


def model_all(options: argparse.Namespace, device: str, step: Callable[[], None]) -> Iterator[Row]:
    """Simulate every combination of problem, schedule and tile order, in worker processes.

    Yields a row of results for each combination, and calls `step` after it.
    """
    how = {
        "cache_bytes": None if options.cache_mb is None else 1e6 * options.cache_mb,
        "device": device,
        "dtype": options.dtype,
    }
    jobs = list(product(options.shapes, options.schedules, options.orders))
    workers = min(WORKERS, os.cpu_count() or 1, len(jobs))
    if workers == 1:
        for size, schedule, order in jobs:
            yield model(size, options.tile, order, schedule, **how)
            step()
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        waiting = [
            pool.submit(model, size, options.tile, order, schedule, **how)
            for size, schedule, order in jobs
        ]
        for one in waiting:
            yield one.result()
            step()


def columns(rows: Sequence[Row], name: str, form: str = ".2f", scale: float = 1e-9) -> str:
    """One quantity as a text table: a line per order of tiles, a column per problem and schedule.

    Args:
        rows: the rows of the record.
        name: the name of the column, such as `modelled_bytes`; cells without a value are blank.
        form: the format of a number, such as `.2f`.
        scale: the factor that values are multiplied by.
    """
    cells = {(heading(row), row["order"]): row for row in rows}
    heads = list(dict.fromkeys(heading(row) for row in rows))
    table = [["order", *(letter for letter, _ in zip(LETTERS, heads, strict=False))]]
    for order in dict.fromkeys(row["order"] for row in rows):
        found = [cells.get((head, order), {}).get(name) for head in heads]
        line = ["" if value is None else format(scale * value, form) for value in found]
        table.append([order, *line])
    return aligned(table, left=1)


LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")


def heading(row: Row) -> str:
    """The problem and the schedule of a result, as text: `8192x8192x4096 stream-k`."""
    return f"{row['m']}x{row['n']}x{row['k']} {row['schedule']}"


def legend(rows: Sequence[Row]) -> str:
    """The legend of a table: which problem and schedule each letter above a column stands for."""
    firsts = {heading(row): row for row in reversed(rows)}
    heads = list(dict.fromkeys(heading(row) for row in rows))
    return "\n".join(
        f"{letter}: {head}, {1e-9 * firsts[head]['compulsory_bytes']:.2f} GB once, "
        f"{1e-9 * firsts[head]['asked_bytes']:.2f} GB asked of the cache"
        for letter, head in zip(LETTERS, heads, strict=False)
    )


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the legend, a table for each simulated or measured quantity, and all errors."""
    plain = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    plain(legend(rows))
    for name, scale, form, title in FIGURES:
        if any(name in row for row in rows):
            plain(f"\n{title}\n{columns(rows, name, form, scale)}")
    for row in rows:
        if "problem" in row:
            plain(f"{heading(row)} {row['order']}: {row['problem']}", style="red")


def count(options: argparse.Namespace, rows: list[Row], seconds: float, console: Console) -> None:
    """Add hardware counters to rows of results; no kernel is launched after `seconds` from now."""
    jobs = {
        **{name: getattr(options, name) for name in ("dtype", "layout", "target")},
        "problems": [
            {
                **{"size": one.size, "m": one.m, "n": one.n, "k": one.k},
                "plans": [row["name"] for row in rows if is_of(row, one)],
            }
            for one in options.shapes
        ],
    }
    try:
        found = ncu.count(jobs, seconds)
    except ncu.NoCounters as error:
        console.print(f"no counters: {error}", highlight=False, markup=False, soft_wrap=True)
        return
    for row in rows:
        counters = found.get((f"{row['m']}x{row['n']}x{row['k']}", row["name"]))
        row |= counters.json() if counters else {}
    if len(found) < len(rows):
        console.print(f"counters of {len(found)} launches; {len(rows) - len(found)} are left out")


def is_of(row: Row, size: Shape) -> bool:
    """Whether the row of a results file was measured with the m, n and k of `size`."""
    return (row["m"], row["n"], row["k"]) == (size.m, size.n, size.k)


def with_relative_times(rows: Sequence[Row]) -> None:
    """Add `relative_time` to each row of results that has a time.

    `relative_time` is the time divided by that of the first tile order for the same problem and
    schedule."""
    firsts: dict[str, float] = {}
    for row in rows:
        if "seconds" in row:
            seconds = row["seconds"]["median"]
            row["relative_time"] = seconds / firsts.setdefault(heading(row), seconds)


def measure(options: argparse.Namespace, record: dict[str, Any], path: Path, end: float,
            console: Console) -> None:  # fmt: skip
    """Add counters and times to the results, and write the results file after each problem.

    Args:
        options: the parsed command line.
        record: the record, with rows that have been simulated.
        path: the path of the record's file.
        end: the time to finish by, as of `time.monotonic()`.
        console: the console for progress and messages.
    """
    rows: list[Row] = record["rows"]
    with Monitor() as monitor, progress_bars(console) as progress:
        plans = [parse_plan(name) for name in dict.fromkeys(row["name"] for row in rows)]
        task = progress.add_task("compiling", total=len(plans))
        step = partial(progress.advance, task)
        compiled = compile_plans(plans, options.dtype, options.layout, options.target, step)
        kernels = [PlanKernel(plan, kernel) for plan, kernel in compiled]
        if not options.no_counters:
            progress.update(task, description="counting", total=None)
            count(options, rows, COUNTING_SHARE * max(0.0, end - time.monotonic()), console)
            write(path, record)
        left = max(0.0, end - time.monotonic()) / 60
        budget = TimeBudget(left, len(options.shapes))
        progress.update(task, total=len(options.shapes), completed=0)
        for one in options.shapes:
            progress.update(task, description=one.size)
            mine = [row for row in rows if is_of(row, one)]
            problem = Problem(one, options.layout, options.dtype)
            for timed in compete(
                kernels,
                problem,
                options,
                regimes=[options.regime],
                deadline=budget.next_deadline(),
                device_state=monitor.since,
            ):
                for row in mine:
                    row |= timed if row["name"] == timed["name"] else {}
            del problem
            with_relative_times(mine)
            write(path, record)
            progress.advance(task)


def main() -> None:
    """Run `python -m benchmarks traffic`."""
    options, console = read_options(), make_console()
    end = time.monotonic() + 60 * options.time_limit
    reason = unavailable()
    measures = not (options.model_only or reason)
    record = environment("traffic") if measures else header("traffic")
    record |= {"dtype": options.dtype, "layout": options.layout, "tile": options.tile, "rows": []}
    with Progress(console=console, transient=True) as progress:
        jobs = len(options.shapes) * len(options.schedules) * len(options.orders)
        task = progress.add_task("simulating", total=jobs)
        device = record.get("device", "NVIDIA H200")
        try:
            record["rows"] += model_all(options, device, partial(progress.advance, task))
        except CoordGraphError as error:
            sys.exit(f"the traffic of a schedule cannot be simulated: {error}")
    folder = options.results or (RESULTS if measures else None)
    path = result_path(folder, record) if folder else None
    if measures and path:
        measure(options, record, path, end, console)
    show(record["rows"], console)
    if reason and not options.model_only:
        console.print(f"nothing is measured: {reason}")
    if path:
        write(path, record)
        announce_files(record, path, console)
    exit_if_wrong(record["rows"])


if __name__ == "__main__":
    main()
