"""Time many plans of coordgraph's kernels on many problems, to fit the cost model to the times.

    python -m benchmarks sweep                                # the six groups
    python -m benchmarks sweep --regimes --random 70 --likely 30       # drawn sizes of all kinds
    python -m benchmarks sweep --random 300 --likely 12 --layouts nt   # the Stream-K paper's corpus
    python -m benchmarks sweep --likely 8 --families 1.3      # and the best plan of every schedule
    python -m benchmarks sweep --random 300 --again FILE      # and the fastest plans of FILE
    python -m benchmarks sweep --random 60 --m-high 1200 --n-high 1200 --k-high 65536  # deep k
    python -m benchmarks sweep --clusters 16 --random 60 --m-high 1200 --n-high 1200 --k-high 65536
    python -m benchmarks sweep --shapes-of-clusters 5 --random 60 --m-high 2000 --n-high 2000
    python -m benchmarks sweep --resume FILE …   # the problems that a run left
    python -m passes.choosing.calibrate benchmarks/results/fit/dense-h200-*.json.gz --write
    python -m benchmarks chosen benchmarks/results/fit/dense-h200-*.json.gz

For every problem, the plans with the best predicted times are measured, together with cuBLAS and
the plans of --plans, in the same way as by `benchmarks gemm --regime sustained`. A row of the
record has a problem, a plan and its median time in seconds. Four options add plans that the model
does not prefer, since some are faster than predicted: --families adds the best plan of every
schedule and reduction, including those that the model never chooses; --clusters adds plans with
clusters of four and eight CTAs, which the model chooses only for products with few tiles;
--shapes-of-clusters adds plans of every shape of cluster; and --explore adds random plans that are
predicted to be slower. After a new fit, --again measures the fastest plan of each problem in older
files together with the plans that the model prefers now.

The time limit includes compiling; no problem is started after it. --resume continues a file; the
other options must be the same as in the run that wrote it.

--regimes draws 35 sizes of five regimes by --seed: squares, a little more than whole waves of
tiles, deep k with few tiles, decoding, and layers of language models.

--random draws m, n and k of every shape in turn, each exp(uniform(log 128, log 8192)) rounded to a
multiple of --step, by --seed; --low, --high and the options for single axes change the range. See
`benchmarks.problems.log_uniform`. The default step is 8: rows are then multiples of 16 bytes, as
TMA needs. With --step 1 some rows are not; their problems are measured with the plan of
`codegen.matmul`, which uses no TMA for them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.options import (
    add_dtype,
    add_extents,
    add_layouts,
    add_results,
    add_sampling,
    add_shapes,
    add_time_limit,
    command_line,
    extent_ranges,
    require_positive,
)
from benchmarks.peers.compete import compete, is_wrong
from benchmarks.peers.contender import CUBLAS
from benchmarks.peers.libraries import CuBlas
from benchmarks.peers.ours import PlanKernel
from benchmarks.peers.plans import Plan, compile_plans, parse_plan
from benchmarks.peers.swept_plans import LIKELY, Selection
from benchmarks.problems.log_uniform import log_uniform_shapes
from benchmarks.problems.problem import Problem
from benchmarks.problems.regimes import regime_shapes
from benchmarks.problems.shapes import Shape, select_shapes
from benchmarks.reports.console import make_console, progress_bars
from benchmarks.reports.record import environment, key_of, load, result_path, write
from benchmarks.timing.budget import TimeBudget
from codegen.targets.nvptx.driver import unavailable
from coordgraph import CoordGraphError
from passes.choosing.measurements import is_plan

__all__ = ["fastest", "jobs", "main"]


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks sweep`."""
    made = command_line("sweep", __doc__)
    add_shapes(made)
    made.add_argument("--random", type=int, default=0, metavar="N", help="add N random sizes")
    made.add_argument("--regimes", action="store_true", help="add 35 sizes of five regimes")
    made.add_argument(
        "--seed", type=int, default=0, help="seed of --random, --regimes and --explore"
    )
    add_extents(made)
    add_layouts(made, "nn", "nt")
    add_dtype(made)
    made.add_argument(
        "--likely", type=int, default=LIKELY, metavar="N",
        help=f"measure the N plans with the shortest predicted times; default {LIKELY}",
    )  # fmt: skip
    made.add_argument(
        "--explore", type=int, default=0, metavar="N", help="add N slower plans, drawn at random"
    )
    made.add_argument(
        "--families",
        type=float,
        default=0.0,
        metavar="FACTOR",
        help="add the best plan of every schedule within this factor of the best, as 1.3",
    )
    made.add_argument(
        "--clusters", type=int, default=0, metavar="N",
        help="add the N best predicted plans with clusters of four or eight workgroups",
    )  # fmt: skip
    made.add_argument(
        "--shapes-of-clusters", type=int, default=0, metavar="N",
        help="add N plans with each shape of cluster, such as 4x1",
    )  # fmt: skip
    made.add_argument(
        "--again",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="add the fastest plan of each problem in these records of sweeps",
    )
    made.add_argument(
        "--plans", type=parse_plan, nargs="+", default=[], help="add these plans on every problem"
    )
    add_sampling(made, rounds=5, seconds=0.002)
    add_time_limit(made, 8.0)
    made.add_argument(
        "--resume", type=Path, metavar="FILE", help="measure the problems that FILE lacks"
    )
    add_results(made)
    return made


def compact(row: dict[str, Any], group: str) -> dict[str, Any]:
    """A contender's row of results, shortened to problem, group, plan and median seconds."""
    kept = {name: row[name] for name in ("m", "n", "k", "layout")}
    plan = CUBLAS.lower() if row["name"] == CUBLAS else row["name"]
    return {**kept, "group": group, "plan": plan, "t": float(f"{row['seconds']['median']:.5g}")}


def fastest(paths: Iterable[Path]) -> dict[tuple[int, int, int, str], list[Plan]]:
    """For each (m, n, k, layout): the fastest plan in each sweep that measured this problem.

    Raises:
        OSError, ValueError: a file cannot be read, or is not the record of a sweep.
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
            raise ValueError(
                f"{path} is not a record of `python -m benchmarks sweep` ({error}); give a file "
                "that this command wrote"
            ) from error
    return found


Job = tuple[str, Shape, str]
"""One problem to measure: the name of its group of shapes, the shape, and the layout."""


def jobs(options: argparse.Namespace, measured: Sequence[dict[str, Any]] = ()) -> list[Job]:
    """Every problem in every layout, except problems that `measured` has in the same layout.

    The group of a size that --regimes draws is its regime.
    """
    known = {key_of(row) for row in measured}
    regimes = regime_shapes(options.seed) if options.regimes else []
    drawn = log_uniform_shapes(options.random, options.seed, options.step, **options.ranges)
    problems = select_shapes(options.groups, [*regimes, *(options.shapes or ()), *drawn])
    return [
        (shape.name if shape in regimes else group, shape, layout)
        for layout in options.layouts
        for group, shape in problems
        if (shape.m, shape.n, shape.k, layout) not in known
    ]


def open_record(options: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """The path and the contents of the record: of the file of --resume, or of a new one.

    Raises:
        OSError, ValueError: the file of --resume cannot be read, or is not a record.
    """
    if options.resume:
        return options.resume, load(options.resume)
    record = {**environment("sweep"), "dtype": options.dtype, "rows": []}
    return result_path(options.results, record), record


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check the command line; also sets `ranges` from its options."""
    made = parser()
    options = made.parse_args(words)
    require_positive(made, options)
    options.ranges = extent_ranges(made, options)
    return options


def main() -> None:
    """Run `python -m benchmarks sweep`."""
    options = read_options()
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}; run this measure on a machine with an NVIDIA GPU")
    try:
        path, record = open_record(options)
        again = fastest(options.again)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    console = make_console()
    rows, wrong = record["rows"], list[str]()
    selection = Selection(
        *(options.likely, options.explore, options.seed),
        *(options.families, options.clusters, options.shapes_of_clusters),
    )
    todo = jobs(options, rows)
    with progress_bars(console) as progress:
        budget = TimeBudget(options.time_limit, len(todo))
        task = progress.add_task("problems", total=budget.left)
        for layout in options.layouts:
            here = [(group, shape) for group, shape, of in todo if of == layout]
            plans = {
                shape: [
                    *selection.plans(shape, layout, options.dtype),
                    *again.get((shape.m, shape.n, shape.k, layout), ()),
                    *options.plans,
                ]
                for _, shape in here
            }
            every = list(dict.fromkeys(plan for some in plans.values() for plan in some))
            compiling = progress.add_task(f"compiling ({layout})", total=len(every))

            def step(task: Any = compiling) -> None:
                progress.advance(task)

            kernels = dict(compile_plans(every, options.dtype, layout, "native", step))
            progress.remove_task(compiling)
            for group, shape in here:
                if budget.over:
                    break
                progress.update(task, description=f"{group} {shape.name} {layout}")
                ours = [PlanKernel(plan, kernels[plan]) for plan in dict.fromkeys(plans[shape])]
                problem = Problem(shape, layout, options.dtype)
                deadline = budget.next_deadline()
                for row in compete([CuBlas(), *ours], problem, options, deadline=deadline):
                    if "seconds" in row:
                        rows.append(compact(row, group))
                    elif is_wrong(row):
                        wrong.append(f"{shape.size} {layout} {row['name']}: {row['problem']}")
                del problem
                write(path, record)
                progress.advance(task)
    console.print(f"written to {path}")
    if budget.left:
        console.print(f"{budget.left} problems are left; to continue, add --resume {path}")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
