"""Measure the CPU time to generate a kernel, and to choose the plan of a call with a new size.

    python -m benchmarks generation
    python -m benchmarks generation --targets sm_90a --plans "128x128x64 stream-k" --runs 5

The first table has, for each target and plan, the CPU milliseconds from a plan to PTX, without
ptxas: `schedule`, building and scheduling the graph; `lower`, checking and lowering it; `emit`,
generating LLVM IR; `llvm`, LLVM's optimisation and code generation; and `total`. Each is the least
of several runs. Every run is a new process, forked from one that has generated small other kernels,
so imports are not timed. `calls` is the number of calls of Python functions in a run, in thousands;
it is the same in every run and on every machine.

The second table has the CPU milliseconds to choose the first plan for a size that the process has
not seen: among all plans, and among the kernels of a family (see `codegen.warm`). The GPU's name
selects the constants of the cost model. No GPU is needed.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

from rich.console import Console
from rich.table import Table

import codegen
from benchmarks.options import command_line
from benchmarks.peers.plans import parse_plan
from codegen.call import families
from codegen.call.choose import plans
from codegen.call.request import PlanRequest
from codegen.targets.nvptx import CudaKernel
from coordgraph import Gemm
from coordgraph.collection import collection_paused
from passes.choosing import Plan, constants_of
from passes.choosing.kernel_family import choose_family
from passes.lowering import architecture_of

__all__ = ["choosing_times", "main", "measure", "parser", "python_calls", "stages_of", "warm_up"]

STAGES = ("schedule", "lower", "emit", "llvm")
PLANS = (
    "128x256x64 data-parallel",
    "128x128x64 split-k{splits=4,reduction=scatter}",
    "128x128x64 stream-k{owner=last}",
    "128x128x64 stream-k{reduction=scatter}",
    "128x128x64 stream-k{owner=last,k_order=interleaved}",
    "128x256x64 two-tile-stream-k",
    "128x256x64 two-tile-stream-k{owner=last}",
    "128x128x64 two-tile-stream-k{reduction=scatter}",
    "128x128x64 hybrid-stream-k{owner=last}",
)
TARGETS = ("sm_90a", "sm_80")
WARM = ("64x64x32 data-parallel{persistent=true}", "64x64x32 stream-k{workgroups=3}")
"""Plans of kernels that are generated to warm up a process before times are measured."""
PROBLEM = Gemm("bf16")
DEVICE, PROCESSORS = "NVIDIA H200", 132
"""The GPU for which plans are chosen, and its number of SMs."""
RUNS, SIZES = 3, 100
"""RUNS: default number of processes that measure a row of the first table. SIZES: default number of
sizes for which a plan is chosen."""
DRAWN = 60
"""Number of random sizes for which `choose_family` selects a family of kernels; few, to save
time."""


def stages_of(plan: Plan, target: str, clock: Callable[[], float] = process_time) -> list[float]:
    """The seconds to schedule, lower, emit LLVM IR and run LLVM, from a plan to PTX.

    Args:
        plan: the plan of a kernel for all sizes.
        target: an NVIDIA architecture, such as `sm_90a`.
        clock: a function that returns seconds; tests replace it.
    """
    with collection_paused():
        times = [clock()]
        graph = plan.graph(PROBLEM)
        times.append(clock())
        fastest = architecture_of(target).lowerings[0]
        lowering = fastest.options(target, **plan.options) if plan.options else None
        kernel = codegen.compile(graph, target, lowering=lowering, verify=False)
        assert isinstance(kernel, CudaKernel)
        program = kernel.program()
        program.lowered  # noqa: B018 - lowers the graph
        times.append(clock())
        program.module  # noqa: B018 - generates LLVM IR
        times.append(clock())
        program.ptx  # noqa: B018 - compiles the LLVM IR
        times.append(clock())
    return [after - before for before, after in pairwise(times)]


def python_calls(step: Callable[[], object]) -> int:
    """The number of calls of Python functions during a call of `step`."""
    count = 0

    def counted(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        step()
    finally:
        sys.setprofile(before)
    return count


@cache
def warm_up(target: str) -> None:
    """Import and initialise what generating kernels needs, and turn the cache of kernels off."""
    os.environ["COORDGRAPH_CACHE"] = "off"
    for text in WARM:
        stages_of(Plan.parse(text), target)


def measure(plan: Plan, target: str, runs: int = RUNS) -> dict[str, float]:
    """The seconds of each step from a plan to PTX, their `total`, and the number of Python `calls`.

    The keys of the result are the steps `schedule`, `lower`, `emit` and `llvm`, then `total` and
    `calls`.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["benchmarks.warm_generator"])
    with ProcessPoolExecutor(1, mp_context=server, max_tasks_per_child=1) as pool:
        found = list(pool.map(time_in_process, *zip(*[(plan, target)] * runs, strict=True)))
        (calls,) = pool.map(count_in_process, [plan], [target])
    times = [min(each) for each in zip(*found, strict=True)]
    total = min(map(sum, found))
    return {**dict(zip(STAGES, times, strict=True)), "total": total, "calls": calls}


def time_in_process(plan: Plan, target: str) -> list[float]:
    warm_up(target)
    gc.collect()  # else garbage of earlier steps might be collected while this step is timed
    return stages_of(plan, target)


def count_in_process(plan: Plan, target: str) -> int:
    warm_up(target)
    return python_calls(lambda: stages_of(plan, target))


def choosing_times(count: int = SIZES, seed: int = 0) -> dict[str, dict[str, float]]:
    """Measure the CPU time to choose the first plan for sizes that this process has not seen.

    Args:
        count: number of sizes.
        seed: the seed of the random sizes. Plans for sizes that this process has used before come
            from a cache, so each call needs another seed.

    Returns:
        For the choice among `all plans` and among the kernels of `a family`: the `median` and the
        quartiles `low` and `high` of the CPU seconds, and `calls`, the number of calls of Python
        functions in one choice.
    """
    drawn = random.Random(seed)
    problem = Gemm("bf16", transpose_b=True)

    def request() -> PlanRequest:
        sizes = {axis: drawn.randrange(128, 8192) for axis in "mnk"}
        return PlanRequest(replace(problem, **sizes), "sm_90a", DEVICE, PROCESSORS)

    found: dict[str, dict[str, float]] = {}
    families.forget()
    for name in ("all plans", "a family"):
        if name == "a family":
            families.add(request(), choose_family(problem, constants_of(DEVICE), drawn=DRAWN))
        for _ in range(3):
            next(plans(request()))
        times: list[float] = []
        for one in [request() for _ in range(count)]:
            start = process_time()
            next(plans(one))
            times.append(process_time() - start)
        low, median, high = statistics.quantiles(times, n=4, method="inclusive")
        again = request()
        calls = python_calls(lambda again=again: next(plans(again)))
        found[name] = {"median": median, "low": low, "high": high, "calls": calls}
    families.forget()
    return found


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks generation`."""
    made = command_line("generation", __doc__)
    made.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="TARGET")
    made.add_argument(
        "--plans", nargs="+", type=parse_plan, default=[*map(Plan.parse, PLANS)], metavar="PLAN"
    )
    made.add_argument(
        "--runs", type=int, default=RUNS, help="processes that measure a row; default 3"
    )
    made.add_argument(
        "--sizes", type=int, default=SIZES, help="sizes for which a plan is chosen; default 100"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE too")
    return made


def main() -> None:
    """Run `python -m benchmarks generation`."""
    options = parser().parse_args()
    console = Console()
    table = Table("target", "plan", *STAGES, "total", "calls", title="CPU ms from plan to PTX")
    rows: list[dict[str, object]] = []
    for target in options.targets:
        for plan in options.plans:
            found = measure(plan, target, options.runs)
            rows.append({"target": target, "plan": str(plan), **found})
            shown = (f"{1000 * found[name]:.0f}" for name in (*STAGES, "total"))
            table.add_row(target, str(plan), *shown, f"{found['calls'] / 1000:.0f}k")
    console.print(table)
    choosing = choosing_times(options.sizes)
    table = Table("choice among", "ms", "quartiles", "calls", title="CPU ms to choose a plan")
    for name, figures in choosing.items():
        low, high = (f"{1000 * figures[which]:.2f}" for which in ("low", "high"))
        table.add_row(
            name, f"{1000 * figures['median']:.2f}", f"{low}–{high}", f"{figures['calls']:.0f}"
        )
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "choosing": choosing}, indent=2) + "\n")


if __name__ == "__main__":
    main()
