"""Measure how long the checks of a graph take, compared with building its kernel.

    python -m benchmarks checking --targets cpu sm_90a --json checking.json

Columns: `build`, a first build without checks; `check`, the default checks of the same graph;
`share`, the ratio `check` / `build`; `again`, the checks at a second build of the graph in the same
process; `all`, `graph.check(level="all")`. Times are CPU seconds, summed over all cores and
including ptxas, and each is the least of several runs. Every run is a new process that reads the
graph from its text, so its caches hold nothing from passes or from other rows. The
process is forked from one that has built small other graphs, so imports are not timed.
The on-disk cache of kernels is off. No GPU is needed.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from time import process_time

from rich.console import Console
from rich.table import Table

import codegen
from benchmarks.options import command_line
from codegen.targets.nvptx import CudaKernel
from codegen.toolchain import assemble
from codegen.verified import check_once
from coordgraph import Gemm, KernelGraph, parse
from coordgraph.interpreter.program import program
from passes import Pipeline

COLUMNS = ("build", "check", "share", "again", "all")
SCHEDULES = (
    "data-parallel",
    "data-parallel{persistent=true,workgroups=132}",
    "stream-k",
    "stream-k{owner=last,workgroups=132}",
    "stream-k{least_segment=3}",
    "stream-k{reduction=tree}",
    "stream-k{reduction=turnstile}",
    "stream-k{reduction=atomic}",
    "stream-k{reduction=scatter}",
    "two-tile-stream-k",
    "hybrid-stream-k",
    "split-k{splits=4}",
    "heterogeneous-tiles",
    "reorder{group=3},stream-k",
    "rasterize{width=4},stream-k",
    "rasterize{width=4,order=morton},stream-k",
    "rasterize{width=4,order=hilbert},stream-k",
)
TILE = (128, 128, 64)
WARM = "data-parallel{persistent=true}", "stream-k{workgroups=3}"
"""Schedules of the graphs that are built to warm up a process before times are measured."""
WARM_TILE = (64, 32, 32)
"""Macro tile (m, n, k) of the graphs that are built to warm up a process before times are measured.
"""
TARGETS = ("cpu", "sm_80", "sm_90a")
RUNS = 3
"""Default number of processes in which each pair of schedule and target is measured."""


def measure(
    schedule: str, target: str, *, thorough: bool = True, runs: int = RUNS
) -> dict[str, float]:
    """Measure how long the build and the checks of one schedule take on one target, in CPU seconds.

    The keys of the result are `build`, `check`, `share` (`check` divided by `build`), `again` (the
    same checks repeated) and, if `thorough`, `all`.

    Args:
        schedule: the text of the pipeline.
        target: a target of `codegen.compile`.
        thorough: whether to time the checks of the level `all` too.
        runs: the number of processes; the least of their times is returned.
    """
    text = graph_text(schedule)
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["benchmarks.measures.checking_warm"])
    with ProcessPoolExecutor(1, mp_context=server, max_tasks_per_child=1) as pool:
        found = [*pool.map(_measured, *zip(*[(text, target, thorough)] * runs, strict=True))]
    times = {name: min(times[name] for times in found) for name in found[0]}
    shared = {"build": times["build"], "check": times["check"]}
    return {**shared, "share": times["check"] / times["build"], **times}


def graph_text(schedule: str, tile: tuple[int, int, int] = TILE) -> str:
    """Apply a pipeline of passes to the graph of a GEMM; return the scheduled graph as text.

    Args:
        schedule: the text of the pipeline.
        tile: the macro tile, in elements along m, n and k.
    """
    return Pipeline.parse(schedule)(Gemm("f16").graph(tile), verify="structure").text()


def _measured(text: str, target: str, thorough: bool) -> dict[str, float]:
    warm_up(target)
    return times_of(text, target, thorough=thorough)


@cache
def warm_up(target: str) -> None:
    """Import and initialise what builds and checks need, and turn the cache of kernels off."""
    os.environ["COORDGRAPH_CACHE"] = "off"
    for schedule in WARM:
        times_of(graph_text(schedule, WARM_TILE), target, thorough=False)


def times_of(text: str, target: str, *, thorough: bool) -> dict[str, float]:
    """CPU seconds in this process of a graph's build and of its checks, by name.

    `build` is a build without checks, `check` the default checks, `again` the same checks repeated,
    and `all` the checks of the level `all`.

    Args:
        text: the text of the graph.
        target: a target of `codegen.compile`.
        thorough: whether to time the checks of the level `all` too.
    """
    plain, checked = (parse(f'{text}log "{note} {target}"\n') for note in ("plain", "checked"))
    found = {"build": _seconds(lambda: _build(plain, target))}
    found["check"] = _seconds(lambda: check_once(checked))
    found["again"] = _seconds(lambda: check_once(checked))
    if thorough:
        program.cache_clear()
        found["all"] = _seconds(lambda: checked.check(level="all").raise_if_refuted())
    return found


def _build(graph: KernelGraph, target: str) -> None:
    kernel = codegen.compile(graph, target, verify=False)
    # ptxas is timed because the CUDA driver assembles PTX in the same way
    if isinstance(kernel, CudaKernel):
        assemble(kernel.ptx, target)


def _seconds(step: Callable[[], object]) -> float:
    gc.collect()  # else garbage of earlier steps might be collected while this step is timed
    start = _clock()
    step()
    return _clock() - start


def _clock() -> float:
    """CPU seconds of this process since it began, and of its child processes that have ended."""
    return process_time() + sum(os.times()[2:4])


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks checking`."""
    made = command_line("checking", __doc__)
    made.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="TARGET")
    made.add_argument("--schedules", nargs="+", default=list(SCHEDULES), metavar="PIPELINE")
    made.add_argument("--runs", type=int, default=RUNS, help="the number of processes of each row")
    made.add_argument("--quick", action="store_true", help="leave the level 'all' out")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE too")
    return made


def main() -> None:
    """Run `python -m benchmarks checking`."""
    options = parser().parse_args()
    table = Table("target", "schedule", *COLUMNS, title="seconds of all cores")
    rows: list[dict[str, object]] = []
    for target in options.targets:
        for schedule in options.schedules:
            times = measure(schedule, target, thorough=not options.quick, runs=options.runs)
            rows.append({"target": target, "schedule": schedule, **times})
            shown = (
                f"{times[name]:.0%}" if name == "share" else f"{times[name]:.3f}"
                for name in COLUMNS
                if name in times
            )
            table.add_row(target, schedule, *shown)
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
