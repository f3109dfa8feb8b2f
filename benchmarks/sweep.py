"""Many of our plans on many problems: what a model of costs is fitted to, and judged by.

    python -m benchmarks sweep                                # the six groups
    python -m benchmarks sweep --random 300 --likely 12 --layouts nt   # the Stream-K paper's corpus
    python -m passes.choosing.calibrate benchmarks/results/sweep-*.json --write
    python -m benchmarks chosen benchmarks/results/sweep-*.json

For every problem the plans of the best predictions are measured, beside cuBLAS, and what --plans
names besides; as `benchmarks gemm` does it, sustained. A row holds a problem, a plan and its
median. Predictions that are wrong are found by --explore: plans drawn from those that are predicted
to be slower.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from itertools import islice
from math import exp, inf, log
from pathlib import Path
from typing import Any

from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.contenders import CUBLAS, Ours, compete
from benchmarks.gemm import LAYOUTS, Allowance
from benchmarks.peers import CuBlas
from benchmarks.plans import Plan, compile_plans, parse_plan
from benchmarks.plans import problem as any_size
from benchmarks.problem import DTYPES, Problem
from benchmarks.record import RESULTS, environment, result_path, write
from benchmarks.report import console_here
from benchmarks.shapes import GROUPS, Shape, chosen, shape
from codegen.nvptx.driver import unavailable
from passes.choosing import rank
from passes.choosing.ranking import choices

__all__ = ["corpus", "main", "plans_for"]

SMALLEST, LARGEST, STEP = 128, 8192, 8
LIKELY = 24
UNLIKELY, CROWD = 2.0, 1000
"""Of what a plan may be predicted to take, over the best prediction; and plans to draw from."""


def corpus(count: int, seed: int = 0, step: int = STEP) -> list[Shape]:
    """Shapes with extents log-uniform from 128 to 8192 (arXiv:2301.03598), multiples of `step`.

    >>> [found.name for found in corpus(2)] == [found.name for found in corpus(3)][:2]
    True
    """
    chance = random.Random(seed)

    def extent() -> int:
        return round(exp(chance.uniform(log(SMALLEST), log(LARGEST))) / step) * step

    sizes = [(extent(), extent(), extent()) for _ in range(count)]
    return [Shape("x".join(map(str, size)), *size) for size in sizes]


def plans_for(
    found: Shape, layout: str, dtype: str, count: int, explored: int = 0, seed: int = 0
) -> list[Plan]:
    """The plans of the best predictions, and some drawn from the others, each of another tile."""
    gemm = replace(any_size(dtype, layout), m=found.m, n=found.n, k=found.k)
    likely = [choice.plan for choice in rank(gemm, None, count)]
    if not explored:
        return likely
    others: dict[object, Plan] = {}
    best = inf
    for choice in islice(choices(gemm), CROWD):
        best = min(best, choice.seconds)
        if choice.seconds > UNLIKELY * best:
            break
        plan = choice.plan
        others.setdefault((plan.tile, plan.cluster, plan.consumers), plan)
    crowd = [plan for plan in others.values() if plan not in likely]
    chance = random.Random(f"{found.size} {layout} {seed}")
    return [*likely, *chance.sample(crowd, min(explored, len(crowd)))]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--groups", nargs="+", choices=list(GROUPS))
    made.add_argument("--shapes", type=shape, nargs="+", help="m x n x k, as 4096x4096x64")
    made.add_argument("--random", type=int, default=0, metavar="N", help="shapes of the corpus")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--step", type=int, default=STEP, help="they are multiples of, default 8")
    made.add_argument("--layouts", nargs="+", default=["nn", "nt"], choices=LAYOUTS)
    made.add_argument("--dtype", default="bf16", choices=list(DTYPES))
    made.add_argument("--likely", type=int, default=LIKELY, help=f"plans, default {LIKELY}")
    made.add_argument("--explore", type=int, default=0, metavar="N", help="others, at random")
    made.add_argument("--plans", type=parse_plan, nargs="+", default=[], help="and these")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--seconds", type=float, default=0.002, help="about, for one sample")
    made.add_argument("--time-limit", type=float, default=8.0, metavar="MINUTES")
    made.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    made.set_defaults(graphs=True)
    return made


def short(row: dict[str, Any], group: str) -> dict[str, Any]:
    """What is kept of a row."""
    kept = {name: row[name] for name in ("m", "n", "k", "layout")}
    plan = CUBLAS.lower() if row["name"] == CUBLAS else row["name"]
    return {**kept, "group": group, "plan": plan, "t": float(f"{row['seconds']['median']:.5g}")}


def main() -> None:
    """The command."""
    options = parser().parse_args()
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}")
    console = console_here()
    record: dict[str, Any] = {**environment("sweep"), "dtype": options.dtype, "rows": []}
    path, rows, wrong = result_path(options.results, record), record["rows"], []
    drawn = corpus(options.random, options.seed, options.step)
    problems = chosen(options.groups, [*(options.shapes or ()), *drawn])
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        allowance = Allowance(options.time_limit, len(problems) * len(options.layouts))
        task = progress.add_task("problems", total=allowance.left)
        for layout in options.layouts:
            how = (options.likely, options.explore, options.seed)
            plans = {
                found: [*plans_for(found, layout, options.dtype, *how), *options.plans]
                for _, found in problems
            }
            every = list(dict.fromkeys(plan for some in plans.values() for plan in some))
            compiling = progress.add_task(f"compiling ({layout})", total=len(every))

            def step(task: Any = compiling) -> None:
                progress.advance(task)

            kernels = dict(compile_plans(every, options.dtype, layout, "native", step))
            progress.remove_task(compiling)
            for group, found in problems:
                progress.update(task, description=f"{group} {found.name} {layout}")
                ours = [Ours(plan, kernels[plan]) for plan in dict.fromkeys(plans[found])]
                problem = Problem(found, layout, options.dtype)
                deadline = allowance.deadline()
                for row in compete([CuBlas(), *ours], problem, options, deadline=deadline):
                    if "seconds" in row:
                        rows.append(short(row, group))
                    elif str(row["problem"]).startswith(("WRONG", "FAILED")):
                        wrong.append(f"{found.size} {layout} {row['name']}: {row['problem']}")
                del problem
                write(path, record)
                progress.advance(task)
    console.print(f"written to {path}")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
