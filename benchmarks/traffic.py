"""What the order of tiles does to memory traffic: modelled, and measured where there is a GPU.

    python -m benchmarks traffic                  # modelled, and counters and times where a GPU is
    python -m benchmarks traffic --model-only --shapes 8192x8192x4096 --cache-mb 25
    python -m benchmarks traffic --orders none "rasterize{along=n}" --schedules stream-k

Workgroups that work on the same rows of A or columns of B at the same time find them in the L2
cache. Which do, is decided by the order in which a schedule counts the tiles: row by row, or as
passes before it say (`none` is no such pass).

Modelled, with no GPU: all workgroups advance in step, an iteration (a k tile) each, through a
simulated L2 cache; see `benchmarks.l2` for what is assumed. By default the cache is as large as the
model behind `codegen.matmul` found it to be of use. Bytes of A and B that come from memory.

Measured, on a GPU: bytes read from memory and in the L2 cache by the hardware counters, for one
launch that begins with an empty cache (`ncu` must be there and allowed to count); and the time, as
`benchmarks gemm` measures it, relative to the first order's; every result is checked first.
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
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks import ncu
from benchmarks.contenders import Ours, compete, exit_where_wrong
from benchmarks.counts import has_grid
from benchmarks.gemm import LAYOUTS, Allowance
from benchmarks.l2 import requests, through_cache
from benchmarks.monitor import Monitor
from benchmarks.options import add_measuring, command_line
from benchmarks.plans import WORKERS, Plan, compile_plans, parse_plan
from benchmarks.problem import Problem
from benchmarks.record import RESULTS, beginning, environment, result_path, write
from benchmarks.report import Row, aligned, console_here, draw_beside
from benchmarks.shapes import Shape, shape
from codegen.nvptx.driver import unavailable
from coordgraph import CoordGraphError
from passes.choosing import constants_of

__all__ = ["ORDERS", "columns", "legend", "main", "model", "plan_of", "with_relative_times"]

TILE = "256x256x64@c2x1"
SIZES = ("8192x8192x8192", "8192x28672x4096", "4096x57344x8192", "16384x16384x16384")
SCHEDULES = ("data-parallel{persistent=true}", "stream-k{owner=last}")
ROWS, NONE = "row by row", "none"
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
    ("modelled_bytes", 1e-9, ".2f", "GB of A and B from memory, modelled"),
    ("dram_read_bytes", 1e-9, ".2f", "GB read from memory, measured"),
    ("l2_read_bytes", 1e-9, ".2f", "GB read in the L2 cache, measured"),
    ("relative_time", 1.0, ".3f", "time by that of the first order, measured"),
)
"""What is shown: of a row, its scale and form, and what it is."""
COUNTING = 0.6
"""The share of the time for counters, of what is left when kernels are compiled."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("traffic", __doc__)
    made.add_argument(
        "--shapes", type=shape, nargs="+", default=[shape(size) for size in SIZES],
        metavar="MxNxK", help=f"default {' '.join(SIZES)}",
    )  # fmt: skip
    made.add_argument("--tile", default=TILE, help=f"with its cluster, default {TILE}")
    made.add_argument(
        "--schedules", nargs="+", default=list(SCHEDULES), metavar="PIPELINE",
        help=f"default {' '.join(SCHEDULES)}",
    )  # fmt: skip
    made.add_argument(
        "--orders", nargs="+", default=list(ORDERS), metavar="PASSES",
        help=f"passes before the schedule, or {NONE}; default {' '.join(ORDERS)}",
    )  # fmt: skip
    made.add_argument(
        "--cache-mb", type=float, metavar="MB",
        help="of the simulated cache, in 10^6 bytes; default what is of use of the device's",
    )  # fmt: skip
    made.add_argument("--layout", default="nt", choices=LAYOUTS)
    made.add_argument("--model-only", action="store_true", help="measure nothing")
    made.add_argument("--no-counters", action="store_true", help="times, but nothing by ncu")
    add_measuring(made, regime="sustained", rounds=5, seconds=0.002)
    made.add_argument("--time-limit", type=float, default=1.2, metavar="MINUTES")
    made.add_argument(
        "--results", type=Path, metavar="FOLDER",
        help=f"for JSON and plots; default {RESULTS.name}/ where anything is measured, else none",
    )  # fmt: skip
    return made


def read(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, checked; the program ends where they make no sense."""
    made = parser()
    options = made.parse_args(words)
    numbers = (options.rounds, options.seconds, options.time_limit)
    if min(numbers) <= 0 or (options.cache_mb or 0) < 0:
        made.error("--rounds, --seconds, --time-limit must be positive, --cache-mb not negative")
    for schedule, order in product(options.schedules, options.orders):
        try:
            plan_of(options.tile, order, schedule, 1, options.dtype)
        except (CoordGraphError, argparse.ArgumentTypeError) as error:
            made.error(f"{options.tile} {piped(order, schedule)}: {error}")
    return options


def piped(order: str, schedule: str) -> str:
    """The pipeline of an order and a schedule."""
    return schedule if order == NONE else f"{order},{schedule}"


def plan_of(tile: str, order: str, schedule: str, slots: int, dtype: str = "bf16") -> Plan:
    """The plan of an order and a schedule, with a workgroup in every slot where that can be chosen.

    Args:
        tile: with its cluster, as `256x256x64@c2x1`.

    Raises:
        argparse.ArgumentTypeError, PassError, ParseError: there is no such plan.
    """
    plan = parse_plan(f"{tile} {piped(order, schedule)}")
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
    """What the model says of an order, as a row.

    Args:
        tile: with its cluster, as `256x256x64@c2x1`.
        order: passes before the schedule; `none` where there are none.
        cache_bytes: of the simulated cache; by default what is of use of the device's.
    """
    constants = constants_of(device)
    cluster = prod(parse_plan(f"{tile} {schedule}").cluster)
    slots = int(constants.slots(np.array([cluster]))[0])
    plan = plan_of(tile, order, schedule, slots, dtype)
    cache_bytes = constants.l2_bytes if cache_bytes is None else cache_bytes
    asked = requests(plan.pipeline, plan.tile, (size.m, size.n, size.k), slots, dtype)
    found = through_cache(asked, cache_bytes)
    return {
        **{"shape": size.name, "m": size.m, "n": size.n, "k": size.k},
        **{"tile": tile, "schedule": schedule, "name": str(plan)},
        "order": ROWS if order == NONE else order,
        **{"slots": slots, "cache_bytes": cache_bytes},
        "asked_bytes": found.asked_bytes,
        "compulsory_bytes": found.compulsory_bytes,
        "modelled_bytes": found.read_bytes,
        "modelled_a_bytes": found.read_a,
        "modelled_b_bytes": found.read_b,
    }


def model_all(options: argparse.Namespace, device: str, step: Callable[[], None]) -> Iterator[Row]:
    """A row for every problem, schedule and order, in processes side by side."""
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
    """A figure as text: a line for each order, a column for each problem and schedule.

    Args:
        name: of the figure in a row, as `modelled_bytes`; rows that have it not are left blank.
        form: how a number is written, scaled.
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
    """What a column is of."""
    return f"{row['m']}x{row['n']}x{row['k']} {row['schedule']}"


def legend(rows: Sequence[Row]) -> str:
    """What the letters of the columns stand for."""
    firsts = {heading(row): row for row in reversed(rows)}
    heads = list(dict.fromkeys(heading(row) for row in rows))
    return "\n".join(
        f"{letter}: {head}, {1e-9 * firsts[head]['compulsory_bytes']:.2f} GB once, "
        f"{1e-9 * firsts[head]['asked_bytes']:.2f} GB asked of the cache"
        for letter, head in zip(LETTERS, heads, strict=False)
    )


def show(rows: Sequence[Row], console: Console) -> None:
    """All figures that there are."""
    plain = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    plain(legend(rows))
    for name, scale, form, what in FIGURES:
        if any(name in row for row in rows):
            plain(f"\n{what}\n{columns(rows, name, form, scale)}")
    for row in rows:
        if "problem" in row:
            plain(f"{heading(row)} {row['order']}: {row['problem']}", style="red")


def count(options: argparse.Namespace, rows: list[Row], seconds: float, console: Console) -> None:
    """Add hardware counters to the rows, as far as the time is enough for them."""
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
    return (row["m"], row["n"], row["k"]) == (size.m, size.n, size.k)


def with_relative_times(rows: Sequence[Row]) -> None:
    """Complete rows with times by that of the first order with the same schedule."""
    firsts: dict[str, float] = {}
    for row in rows:
        if "seconds" in row:
            seconds = row["seconds"]["median"]
            row["relative_time"] = seconds / firsts.setdefault(heading(row), seconds)


def measure(options: argparse.Namespace, record: dict[str, Any], path: Path, end: float,
            console: Console) -> None:  # fmt: skip
    """Add counters and times to the rows of a record, which is written after each problem.

    Args:
        end: when to be ready, by `time.monotonic()`.
    """
    rows: list[Row] = record["rows"]
    bars = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Monitor() as monitor, Progress(*bars, console=console) as progress:
        plans = [parse_plan(name) for name in dict.fromkeys(row["name"] for row in rows)]
        task = progress.add_task("compiling", total=len(plans))
        step = partial(progress.advance, task)
        compiled = compile_plans(plans, options.dtype, options.layout, options.target, step)
        kernels = [Ours(plan, kernel) for plan, kernel in compiled]
        if not options.no_counters:
            progress.update(task, description="counting", total=None)
            count(options, rows, COUNTING * max(0.0, end - time.monotonic()), console)
            write(path, record)
        left = max(0.0, end - time.monotonic()) / 60
        allowance = Allowance(left, len(options.shapes))
        progress.update(task, total=len(options.shapes), completed=0)
        for one in options.shapes:
            progress.update(task, description=one.size)
            mine = [row for row in rows if is_of(row, one)]
            problem = Problem(one, options.layout, options.dtype)
            for raced in compete(
                kernels,
                problem,
                options,
                regimes=[options.regime],
                deadline=allowance.deadline(),
                state=monitor.since,
            ):
                for row in mine:
                    row |= raced if row["name"] == raced["name"] else {}
            del problem
            with_relative_times(mine)
            write(path, record)
            progress.advance(task)


def main() -> None:
    options, console = read(), console_here()
    end = time.monotonic() + 60 * options.time_limit
    reason = unavailable()
    measures = not (options.model_only or reason)
    record = environment("traffic") if measures else beginning("traffic")
    record |= {"dtype": options.dtype, "layout": options.layout, "tile": options.tile, "rows": []}
    with Progress(console=console, transient=True) as progress:
        jobs = len(options.shapes) * len(options.schedules) * len(options.orders)
        task = progress.add_task("modelling", total=jobs)
        device = record.get("device", "NVIDIA H200")
        try:
            record["rows"] += model_all(options, device, partial(progress.advance, task))
        except CoordGraphError as error:
            sys.exit(f"not to be modelled: {error}")
    folder = options.results or (RESULTS if measures else None)
    path = result_path(folder, record) if folder else None
    if measures and path:
        measure(options, record, path, end, console)
    show(record["rows"], console)
    if reason and not options.model_only:
        console.print(f"nothing is measured: {reason}")
    if path:
        write(path, record)
        draw_beside(record, path, console)
    exit_where_wrong(record["rows"])


if __name__ == "__main__":
    main()
