"""Repeat the Stream-K paper's experiment: Stream-K against data-parallel, with the same tile.

    python -m benchmarks paper --simulate --jobs 16      # all 32,824 sizes, no GPU
    python -m benchmarks paper --count 1100 --time-limit 3
    python -m benchmarks paper --show FILE …             # tables of records, no GPU
    python -m benchmarks paper --show FILE … --figure paper.svg

m, n and k are drawn log-uniform from 128 to 8192 (arXiv:2301.03598), here as multiples of 8, as TMA
needs. A GPU run takes the first sizes of the list that `--simulate` uses. For each size,
data-parallel, Stream-K and two-tile Stream-K take turns in every round; the result of each is
checked first. Stream-K has one workgroup for each SM (`on W`), or the number of workgroups for
which the paper's cost model predicts the least time (`on g`); if there are fewer output tiles than
SMs, that number may be less than the number of SMs.

A row of the record has `us`, the microseconds of each schedule in the record's list `ways`, in
order. Row i is about size i of `log_uniform_shapes(count, seed)`. Rows of measured times also have
m, n, k, and the chosen grid `g`; rows of simulated times leave them out to keep the file small.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.options import (
    add_dtype,
    add_layouts,
    add_results,
    add_sampling,
    add_time_limit,
    command_line,
    require_positive,
)
from benchmarks.peers.compete import compete
from benchmarks.peers.ours import PlanKernel
from benchmarks.peers.plans import Plan, compile_plans, gemm_of_layout, parse_plan
from benchmarks.problems.log_uniform import log_uniform_shapes
from benchmarks.problems.paper import COUNT, WAYS, Costs, best_grid
from benchmarks.problems.problem import Problem
from benchmarks.problems.shapes import Shape, parse_triple
from benchmarks.reports.console import make_console, progress_bars
from benchmarks.reports.record import environment, header, load, result_path, write
from benchmarks.reports.speedups import summaries, table
from benchmarks.timing.budget import TimeBudget
from benchmarks.timing.monitor import Monitor
from codegen.targets.nvptx.driver import unavailable
from coordgraph import CoordGraphError, KernelGraph
from passes.simulation.launching import machine_named, simulate
from passes.simulation.work import Kernel, tile_works

__all__ = ["costs_of", "main", "simulated"]

Tile = tuple[int, int, int]
SAVED_EVERY = 50
"""Number of sizes after which the record is written again; it is also written at the end."""
CHUNK = 64
"""Number of sizes that a process simulates as one task of the process pool."""


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks paper`."""
    made = command_line("paper", __doc__)
    made.add_argument(
        "--count", type=int, default=COUNT, metavar="N", help=f"number of sizes; default {COUNT}"
    )
    made.add_argument("--seed", type=int, default=0, help="seed of the sizes; default 0")
    made.add_argument(
        "--tile", type=parse_triple, default=(128, 256, 64), metavar="MxNxK",
        help="the macro tile; default 128x256x64",
    )  # fmt: skip
    made.add_argument(
        "--machine", default="H200",
        help="the GPU to simulate, which also gives the costs by which grids are chosen; "
        "default H200",
    )  # fmt: skip
    made.add_argument("--simulate", action="store_true", help="simulate instead of measuring")
    made.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="processes that simulate; default 1"
    )
    made.add_argument(
        "--show", type=Path, nargs="+", metavar="FILE", help="print tables of records"
    )
    made.add_argument(
        "--figure",
        type=Path,
        metavar="FILE",
        help="with --show: draw the records, one above another",
    )
    made.add_argument(
        "--json", type=Path, metavar="FILE", help="file of the record, instead of --results"
    )
    add_layouts(made, "nt")
    add_dtype(made)
    add_sampling(made, rounds=5, seconds=0.001)
    add_time_limit(made, 8.0)
    add_results(made)
    return made


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check the command line; an invalid one ends the process with a message."""
    made = parser()
    options = made.parse_args(words)
    require_positive(made, options)
    if min(options.count, options.jobs) < 1:
        made.error("--count and --jobs must be positive")
    if len(options.layouts) != 1:
        made.error("--layouts must be one layout")
    options.layout = options.layouts[0]
    return options


@cache
def scheduled(schedule: str, tile: Tile, dtype: str, layout: str) -> KernelGraph:
    """Apply a schedule to a GEMM whose m, n, k and grid are launch arguments; return the graph."""
    return Plan(tile, pipeline=schedule).graph(gemm_of_layout(dtype, layout))


@cache
def costs_of(tile: Tile, dtype: str, layout: str, machine: str) -> Costs:
    """The time of each kind of step of a Stream-K workgroup on a simulated GPU, in seconds."""
    graph = scheduled("stream-k", tile, dtype, layout)
    sizes = dict.fromkeys("mnk", 4096)
    work = tile_works(graph, sizes, machine_named(machine), Kernel())[0]
    return Costs(work.crowded, work.send, work.receive)


def grid_of(shape: Shape, options: argparse.Namespace, processors: int) -> int:
    """The number of workgroups that the Stream-K paper's cost model chooses for a problem."""
    costs = costs_of(options.tile, options.dtype, options.layout, options.machine)
    return best_grid(shape, options.tile, processors, costs)


def plans_of(shape: Shape, options: argparse.Namespace, processors: int) -> tuple[int, list[Plan]]:
    """The grid that the Stream-K paper's cost model chooses, and a plan for each schedule."""
    costs = costs_of(options.tile, options.dtype, options.layout, options.machine)
    chosen = best_grid(shape, options.tile, processors, costs)
    return chosen, [parse_plan(way.plan(options.tile, processors, chosen)) for way in WAYS]


def microseconds(plans: Iterable[Plan], seconds: Mapping[str, float]) -> list[float | None]:
    """The time of each plan in microseconds; None for a plan that is not a key of `seconds`."""
    found = (seconds.get(str(plan)) for plan in plans)
    return [None if time is None else float(f"{1e6 * time:.4g}") for time in found]


def simulated(shapes: Sequence[Shape], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Simulate all schedules on each shape; return one row of the record per shape."""
    machine, rows = machine_named(options.machine), list[dict[str, Any]]()
    for shape in shapes:
        _, plans = plans_of(shape, options, machine.processors)
        seconds: dict[str, float] = {}
        for plan in dict.fromkeys(plans):
            graph = scheduled(plan.pipeline, options.tile, options.dtype, options.layout)
            grid = {} if plan.workgroups is None else {"workgroups": plan.workgroups}
            problem = {"m": shape.m, "n": shape.n, "k": shape.k, **grid}
            seconds[str(plan)] = simulate(graph, problem, machine).makespan
        rows.append({"us": microseconds(plans, seconds)})
    return rows


def simulate_all(
    shapes: Sequence[Shape], options: argparse.Namespace, console: Console
) -> Iterator[dict[str, Any]]:
    """Simulate all shapes in `--jobs` processes; yield their rows of the record in order."""
    chunks = [shapes[at : at + CHUNK] for at in range(0, len(shapes), CHUNK)]
    work = partial(simulated, options=options)
    with ExitStack() as stack:
        progress = stack.enter_context(progress_bars(console))
        task = progress.add_task("simulating", total=len(shapes))
        found = map(work, chunks)
        if options.jobs > 1:
            # New processes are not forked, because the progress bar runs a thread.
            spawn = get_context("spawn")
            pool = stack.enter_context(ProcessPoolExecutor(options.jobs, mp_context=spawn))
            found = pool.map(work, chunks)
        for rows in found:
            yield from rows
            progress.advance(task, len(rows))


def measure(
    shapes: Sequence[Shape],
    options: argparse.Namespace,
    record: dict[str, Any],
    path: Path,
    console: Console,
) -> None:
    """Time all schedules on each shape, in order, until the time limit; add rows to the record."""
    processors, faults = record["processors"], record["faults"]
    kinds = {plan.kernel: plan for plan in plans_of(shapes[0], options, processors)[1]}
    with Monitor() as monitor, progress_bars(console) as progress:
        task = progress.add_task("compiling", total=len(shapes))
        compiled = compile_plans(
            [*kinds.values()], options.dtype, options.layout, "native", lambda: None
        )
        kernels = {plan.kernel: kernel for plan, kernel in compiled}
        progress.update(task, description="measuring")
        start, budget = time.monotonic(), TimeBudget(options.time_limit, len(shapes))
        for number, shape in enumerate(shapes):
            if budget.over:
                break
            deadline = budget.next_deadline()
            chosen, plans = plans_of(shape, options, processors)
            contenders = [PlanKernel(plan, kernels[plan.kernel]) for plan in dict.fromkeys(plans)]
            problem = Problem(shape, options.layout, options.dtype)
            timed = list(compete(contenders, problem, options, deadline=deadline, heat_seconds=0))
            del problem
            seconds = {row["name"]: row["seconds"]["median"] for row in timed if "seconds" in row}
            faults += [
                f"{shape.size} {row['name']}: {row['problem']}" for row in timed if "problem" in row
            ]
            sizes = {"m": shape.m, "n": shape.n, "k": shape.k, "g": chosen}
            record["rows"].append({**sizes, "us": microseconds(plans, seconds)})
            if number % SAVED_EVERY == 0:
                write(path, record)
            progress.advance(task)
        record["device_state"] = monitor.since(start)
    if budget.left:
        console.print(f"the time limit left out {budget.left} of {len(shapes)} sizes")


def new_record(options: argparse.Namespace) -> dict[str, Any]:
    """A record without rows: device, options, costs of a workgroup's steps, schedules' names."""
    machine = machine_named(options.machine)
    about = {"device": machine.name, "processors": machine.processors, "simulated": True}
    costs = costs_of(options.tile, options.dtype, options.layout, options.machine)
    return {
        **(header("paper") | about if options.simulate else environment("paper")),
        **{"dtype": options.dtype, "layout": options.layout, "tile": options.tile},
        **{"seed": options.seed, "costs": asdict(costs), "ways": [str(way) for way in WAYS]},
        **{"faults": [], "means": {}, "rows": []},
    }


def main() -> None:
    """Run `python -m benchmarks paper`."""
    options, console = read_options(), make_console()
    if options.show:
        show(options.show, options.figure)
        return
    if not options.simulate and (reason := unavailable()):
        sys.exit(f"no GPU: {reason}; add --simulate, or run it on a machine with an NVIDIA GPU")
    try:
        record = new_record(options)
    except CoordGraphError as error:
        sys.exit(str(error))
    path = options.json or result_path(options.results, record)
    shapes = log_uniform_shapes(options.count, options.seed)
    if options.simulate:
        record["rows"] += simulate_all(shapes, options, console)
    else:
        measure(shapes, options, record, path, console)
    record["means"] = {
        name: {way: asdict(one) for way, one in ways.items()}
        for name, ways in summaries(record).items()
    }
    write(path, record)
    print(table(record))
    console.print(f"written to {path}", highlight=False, soft_wrap=True)
    if record["faults"]:
        sys.exit("\n".join(record["faults"]))


def show(paths: Iterable[Path], figure: Path | None) -> None:
    """Print a table of speedups for each record; draw all records in the file `figure`, if any."""
    records: list[dict[str, Any]] = []
    for path in paths:
        try:
            record = load(path)
        except (OSError, ValueError) as error:
            sys.exit(f"{path} cannot be read as a record: {error}")
        if record.get("kind") != "paper":
            sys.exit(f"{path} is no record of `python -m benchmarks paper`")
        how = "simulated" if record.get("simulated") else f"measured, driver {record['driver']}"
        print(f"{record['device']}, {how}, {record['date'][:10]}: {record['command']}")
        print(table(record))
        records.append(record)
    if figure:
        from benchmarks.reports.plots import save
        from benchmarks.reports.speedup_plot import figure_of

        print(save(figure_of(records), figure))


if __name__ == "__main__":
    main()
