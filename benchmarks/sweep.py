"""Many of our plans on many problems: what a model of costs is fitted to, and judged by.

    python -m benchmarks sweep                                # the six groups
    python -m benchmarks sweep --random 300 --likely 12 --layouts nt   # the Stream-K paper's corpus
    python -m benchmarks sweep --likely 8 --families 1.3      # and of every schedule its best plan
    python -m benchmarks sweep --random 300 --again FILE              # and what was best
    python -m benchmarks sweep --resume results/sweep-20261121T212858.json …   # what is left
    python -m passes.choosing.calibrate benchmarks/results/sweep-*.json --write
    python -m benchmarks chosen benchmarks/results/sweep-*.json

For every problem the plans of the best predictions are measured, beside cuBLAS, and what --plans
names besides; as `benchmarks gemm` does it, sustained. A row holds a problem, a plan and its
median. Predictions that are wrong are found by --families, the best plan of every schedule and
reduction, also of those that the model never prefers, and by --explore, plans drawn from those that
are predicted to be slower. After a fit its new favourites are to be measured beside what was best
before: --again takes the fastest plan of each problem from older files, where it was measured.

No problem begins after the time limit, which compiling counts in; --resume goes on with a file,
given the other options again.

--random draws m, n and k of every shape in turn, each exp(uniform(log 128, log 8192)) rounded to a
multiple of --step, from Python's Mersenne Twister with --seed (default 0); so the first shapes are
the same, however many are asked for. The step is 8 by default: rows are then multiples of 16 bytes,
as the copy engine wants them. --step 1 draws any sizes; where one of A's or B's rows is no such
multiple, the plan is that of `codegen.matmul`, which has no copy engine either.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from itertools import islice
from math import exp, inf, log
from pathlib import Path
from typing import Any

from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.contenders import CUBLAS, Ours, compete
from benchmarks.gemm import LAYOUTS, Allowance
from benchmarks.options import command_line
from benchmarks.peers import CuBlas
from benchmarks.plans import Plan, compile_plans, parse_plan
from benchmarks.plans import problem as any_size
from benchmarks.problem import DTYPES, Problem
from benchmarks.record import RESULTS, environment, key_of, load, result_path, write
from benchmarks.report import console_here
from benchmarks.shapes import GROUPS, Shape, chosen, shape
from codegen.nvptx.driver import unavailable
from coordgraph import CoordGraphError, Gemm
from passes.choosing import choices, constants_of, rank, sizes
from passes.choosing.calibrate import is_plan
from passes.choosing.simple import instructions_plan

__all__ = ["corpus", "fastest", "jobs", "main", "plans_for"]

SMALLEST, LARGEST, STEP = 128, 8192, 8
LIKELY = 24
UNLIKELY, CROWD = 2.0, 1000
"""Of what a plan may be predicted to take, over the best prediction; and plans to draw from."""


def corpus(count: int, seed: int = 0, step: int = STEP) -> list[Shape]:
    """Shapes with extents log-uniform from 128 to 8192 (arXiv:2301.03598), multiples of `step`.

    The same ones on every machine; see above for how they are drawn.

    >>> [found.name for found in corpus(2)] == [found.name for found in corpus(3)][:2]
    True
    """
    chance = random.Random(seed)

    def extent() -> int:
        return round(exp(chance.uniform(log(SMALLEST), log(LARGEST))) / step) * step

    sizes = [(extent(), extent(), extent()) for _ in range(count)]
    return [Shape("x".join(map(str, size)), *size) for size in sizes]


def plans_for(
    found: Shape,
    layout: str,
    dtype: str,
    count: int,
    explored: int = 0,
    seed: int = 0,
    families: float = 0.0,
) -> list[Plan]:
    """The plans to measure on a problem.

    Args:
        found: the problem.
        layout: whether A and B lie as they are (n) or as their transposes (t).
        dtype: of A, B and D.
        count: plans of the best predictions.
        explored: so many of the others, drawn at random, each of another tile.
        seed: of the drawing.
        families: of every family of schedules that is not among those of the best predictions, the
            best plan, where it is predicted to take no more than so many times the best; see
            `passes.choosing.schedules.family`.
    """
    gemm = replace(any_size(dtype, layout), m=found.m, n=found.n, k=found.k)
    if not has_boxes(gemm):
        return [instructions_plan(found.m, found.n, found.k, constants_of().processors)]
    likely = [choice.plan for choice in rank(gemm, None, count)]
    if families:
        likely += _families(gemm, families, {plan.family for plan in likely})
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


def _families(gemm: Gemm, factor: float, known: Set[str]) -> list[Plan]:
    """The best plan of each family that is not known yet, within a factor of the best."""
    found: dict[str, Plan] = {}
    best = inf
    for choice in choices(gemm, all_kinds=True):
        best = min(best, choice.seconds)
        if choice.seconds > factor * best:
            break
        found.setdefault(choice.plan.family, choice.plan)
    return [plan for name, plan in found.items() if name not in known]


def has_boxes(gemm: Gemm) -> bool:
    """Whether the copy engine takes the rows of A and B, of 16-bit elements."""
    m, n, k = sizes(gemm)
    rows = (m if gemm.transpose_a else k, k if gemm.transpose_b else n)
    return all(row % STEP == 0 for row in rows)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("sweep", __doc__)
    made.add_argument("--groups", nargs="+", choices=list(GROUPS))
    made.add_argument("--shapes", type=shape, nargs="+", help="m x n x k, as 4096x4096x64")
    made.add_argument("--random", type=int, default=0, metavar="N", help="shapes of the corpus")
    made.add_argument("--seed", type=int, default=0, help="of --random and --explore, default 0")
    made.add_argument("--step", type=int, default=STEP, help="they are multiples of, default 8")
    made.add_argument("--layouts", nargs="+", default=["nn", "nt"], choices=LAYOUTS)
    made.add_argument("--dtype", default="bf16", choices=list(DTYPES))
    made.add_argument("--likely", type=int, default=LIKELY, help=f"plans, default {LIKELY}")
    made.add_argument("--explore", type=int, default=0, metavar="N", help="others, at random")
    made.add_argument(
        "--families",
        type=float,
        default=0.0,
        metavar="FACTOR",
        help="and the best plan of every schedule within a factor of the best, as 1.3",
    )
    made.add_argument(
        "--again",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="and what was fastest in these sweeps",
    )
    made.add_argument(
        "--plans", type=parse_plan, nargs="+", default=[], help="and these, on every problem"
    )
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--seconds", type=float, default=0.002, help="about, for one sample")
    made.add_argument("--time-limit", type=float, default=8.0, metavar="MINUTES")
    made.add_argument("--resume", type=Path, metavar="FILE", help="measure what is not in it yet")
    made.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    made.set_defaults(graphs=True)
    return made


def short(row: dict[str, Any], group: str) -> dict[str, Any]:
    """What is kept of a row."""
    kept = {name: row[name] for name in ("m", "n", "k", "layout")}
    plan = CUBLAS.lower() if row["name"] == CUBLAS else row["name"]
    return {**kept, "group": group, "plan": plan, "t": float(f"{row['seconds']['median']:.5g}")}


def fastest(paths: Iterable[Path]) -> dict[tuple[int, int, int, str], list[Plan]]:
    """Of every problem and layout the fastest plan in each of these sweeps that has it.

    Raises:
        OSError, ValueError: a file cannot be read, or holds something else.
    """
    found: dict[tuple[int, int, int, str], list[Plan]] = {}
    for path in paths:
        best: dict[tuple[int, int, int, str], tuple[float, str]] = {}
        rows = load(path)["rows"]
        try:
            for row in filter(is_plan, rows):
                problem = key_of(row)
                best[problem] = min(best.get(problem, (inf, "")), (row["t"], row["plan"]))
            for problem, (_, plan) in best.items():
                found.setdefault(problem, []).append(Plan.parse(plan))
        except (CoordGraphError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not of a sweep: {error}") from error
    return found


Job = tuple[str, Shape, str]
"""A group, a problem of it, and the layout."""


def jobs(options: argparse.Namespace, measured: Sequence[dict[str, Any]] = ()) -> list[Job]:
    """What to measure: every problem in every layout, without those that have rows already."""
    known = {key_of(row) for row in measured}
    drawn = corpus(options.random, options.seed, options.step)
    problems = chosen(options.groups, [*(options.shapes or ()), *drawn])
    return [
        (group, found, layout)
        for layout in options.layouts
        for group, found in problems
        if (found.m, found.n, found.k, layout) not in known
    ]


def begun(options: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """The file to write and its record; that of --resume goes on.

    Raises:
        OSError, ValueError: that holds something else.
    """
    if options.resume:
        return options.resume, load(options.resume)
    record = {**environment("sweep"), "dtype": options.dtype, "rows": []}
    return result_path(options.results, record), record


def main() -> None:
    """The command."""
    options = parser().parse_args()
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}")
    try:
        path, record = begun(options)
        again = fastest(options.again)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    console = console_here()
    rows, wrong = record["rows"], list[str]()
    todo = jobs(options, rows)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        allowance = Allowance(options.time_limit, len(todo))
        task = progress.add_task("problems", total=allowance.left)
        for layout in options.layouts:
            here = [(group, found) for group, found, of in todo if of == layout]
            how = (options.likely, options.explore, options.seed, options.families)
            plans = {
                found: [
                    *plans_for(found, layout, options.dtype, *how),
                    *again.get((found.m, found.n, found.k, layout), ()),
                    *options.plans,
                ]
                for _, found in here
            }
            every = list(dict.fromkeys(plan for some in plans.values() for plan in some))
            compiling = progress.add_task(f"compiling ({layout})", total=len(every))

            def step(task: Any = compiling) -> None:
                progress.advance(task)

            kernels = dict(compile_plans(every, options.dtype, layout, "native", step))
            progress.remove_task(compiling)
            for group, found in here:
                if allowance.over:
                    break
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
    if allowance.left:
        console.print(f"{allowance.left} problems are left: the same with --resume {path}")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
