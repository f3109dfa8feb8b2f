"""Compare coordgraph's GPU kernels with cuBLAS, cuBLASLt and Triton, on six groups of layer shapes.

    python -m benchmarks gemm                                 # six groups, about 8 minutes
    python -m benchmarks gemm --groups B D --layouts nt
    python -m benchmarks gemm --shapes 4096x4096x4096 --peers cublas \\
        --schedules data-parallel "two-tile-stream-k{owner=last}" --tiles 128x256x64
    python -m benchmarks gemm --quick --plans "256x256x64@c2x1 two-tile-stream-k{owner=last}"

Contenders: cuBLAS (`torch.matmul`), the fastest algorithm that cuBLASLt's heuristics propose, a
tuned Triton kernel, `codegen.matmul` (named coordgraph), and coordgraph's kernels with the plans
that --plans, --schedules and --tiles give. A plan is a macro tile, optionally @cMxN for clusters of
M x N workgroups and @pingpong, and a pipeline of passes.

Operands are normal random numbers in rotating buffers, which together exceed three times the L2
cache. In every round each contender has one sample of CUDA-graph replays; the order rotates, and
every second round runs in reverse. The figures are medians over the rounds. Every result is checked
first: D is filled with NaN, and sampled rows are compared with float64. With `--regime sustained`
samples follow each other without pauses, so that the power limit lowers the clocks; with `burst`
the GPU rests before every sample.
The roofline is a lower bound on a problem's time: the longer of the times to move each operand once
and to execute all operations, at the rates of copying and multiplying measured on this GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.options import (
    add_dtype,
    add_layouts,
    add_results,
    add_sampling,
    add_shapes,
    add_target,
    add_time_limit,
    command_line,
    require_positive,
)
from benchmarks.peers.compete import compete, exit_if_wrong
from benchmarks.peers.contender import Contender
from benchmarks.peers.libraries import PEERS, CuBlas, find_peers
from benchmarks.peers.ours import Library, PlanKernel, compile_choice
from benchmarks.peers.plans import compile_plans, parse_plan, products, side_by_side
from benchmarks.problems.problem import Problem
from benchmarks.problems.shapes import Shape, parse_triple, read_shapes, select_shapes
from benchmarks.reports.console import announce_files, make_console, progress_bars
from benchmarks.reports.record import environment, result_path, write
from benchmarks.reports.tables import print_report
from benchmarks.timing.budget import TimeBudget
from benchmarks.timing.monitor import Monitor
from benchmarks.timing.roofline import PEAK_SHAPE, measure_roofline
from benchmarks.timing.sampler import REGIMES
from codegen.targets.nvptx.driver import unavailable

SCHEDULES = ("data-parallel", "stream-k", "two-tile-stream-k", "two-tile-stream-k{owner=last}")
TILES = ("128x256x64", "128x128x64")
PLAN_FORM = "'TILE[@cMxN][@pingpong] PIPELINE [on GRID]'"


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks gemm`."""
    made = command_line("gemm", __doc__)
    problems = made.add_argument_group("problems")
    add_shapes(problems)
    problems.add_argument(
        "--preset", type=Path, metavar="FILE", help="file of shapes, one per line"
    )
    add_layouts(problems, "nn", "nt")
    add_dtype(problems)
    problems.add_argument(
        "--quick", action="store_true", help="measure one shape per group, 5 rounds"
    )
    contenders = made.add_argument_group("contenders")
    contenders.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    contenders.add_argument(
        "--plans", type=parse_plan, nargs="+", help=f"plans to time, each {PLAN_FORM}"
    )
    contenders.add_argument(
        "--schedules", nargs="+", metavar="PIPELINE", help="pipelines to time, with each of --tiles"
    )
    contenders.add_argument(
        "--tiles", type=parse_triple, nargs="+", metavar="MxNxK", help="macro tiles of --schedules"
    )
    contenders.add_argument(
        "--no-coordgraph",
        dest="coordgraph",
        action="store_false",
        help="do not time codegen.matmul",
    )
    contenders.add_argument(
        "--tune", action="store_true", help="codegen.matmul chooses plans by measuring them"
    )
    add_target(contenders)
    timing = made.add_argument_group("timing")
    add_sampling(timing, rounds=9, seconds=0.003, regime="sustained", both=True)
    add_time_limit(timing, 8.0)
    add_results(timing)
    return made


def read_options(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; also sets `problems`, `plans` and `regimes` from its options."""
    made = parser()
    options = made.parse_args(words)
    require_positive(made, options)
    options.rounds = min(options.rounds, 5) if options.quick else options.rounds
    options.plans = list(options.plans or ())
    if options.schedules or options.tiles:
        tiles = options.tiles or [parse_triple(text) for text in TILES]
        try:
            options.plans += products(options.schedules or SCHEDULES, tiles)
        except argparse.ArgumentTypeError as error:
            made.error(str(error))
    options.plans = list(dict.fromkeys(options.plans))
    shapes: list[Shape] = [
        *(options.shapes or ()),
        *(read_shapes(options.preset) if options.preset else ()),
    ]
    options.problems = select_shapes(options.groups, shapes, quick=options.quick)
    options.regimes = list(REGIMES) if options.regime == "both" else [options.regime]
    return options


def find_contenders(
    options: argparse.Namespace, report_missing: Callable[[str], None]
) -> list[Contender]:
    """The contenders to time: the libraries that are installed, and `codegen.matmul`.

    Args:
        options: the parsed command line.
        report_missing: called with a sentence about each library that is not installed.
    """
    found: list[Contender] = []
    for peer in find_peers(options.peers):
        if isinstance(peer, tuple):
            report_missing(f"without {peer[0]}: {peer[1]}")
        else:
            found.append(peer)
    if options.coordgraph:
        found.append(Library(tune=options.tune))
    return found


def measure(options: argparse.Namespace, record: dict[str, Any], console: Console) -> Path:
    """Time all problems, writing the record after each; returns the path of the record."""
    path = result_path(options.results, record)
    rows: list[dict[str, Any]] = record["rows"]
    with Monitor() as monitor, progress_bars(console) as progress:
        contenders = find_contenders(options, console.print)
        budget = TimeBudget(options.time_limit, len(options.problems) * len(options.layouts))
        task = progress.add_task("the roofline", total=budget.left)
        peak = Problem(PEAK_SHAPE, "nt", options.dtype)
        roofline = measure_roofline(peak, CuBlas().prepare(peak))
        record["roof"] = roofline.json()
        del peak
        for layout in options.layouts:
            compiling = progress.add_task(f"compiling ({layout})", total=len(options.plans))
            step = partial(progress.advance, compiling)
            compiled = compile_plans(options.plans, options.dtype, layout, options.target, step)
            kernels = [PlanKernel(plan, kernel) for plan, kernel in compiled]
            progress.remove_task(compiling)
            if options.coordgraph and not options.tune:
                sizes = [(shape.m, shape.n, shape.k) for _, shape in options.problems]
                side_by_side(compile_choice, [(size, layout, options.dtype) for size in sizes])
            for group, shape in options.problems:
                progress.update(task, description=f"{group} {shape.name} {layout}")
                deadline = budget.next_deadline()
                problem = Problem(shape, layout, options.dtype)
                for row in compete(
                    [*contenders, *kernels],
                    problem,
                    options,
                    regimes=options.regimes,
                    deadline=deadline,
                    device_state=monitor.since,
                    roofline=roofline,
                ):
                    rows.append({"group": group, **row})
                del problem
                write(path, record)
                progress.advance(task)
    return path


def main() -> None:
    """Run `python -m benchmarks gemm`."""
    options = read_options()
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}; `python -m benchmarks cpu` measures the CPU target instead")
    console = make_console()
    record: dict[str, Any] = {
        **environment("gemm"),
        "dtype": options.dtype,
        "timing": "CUDA-graph replays" if options.graphs else "launches",
        "seconds": options.seconds,
        "rows": [],
    }
    path = measure(options, record, console)
    print_report(record["rows"], console)
    announce_files(record, path, console)
    exit_if_wrong(record["rows"])


if __name__ == "__main__":
    main()
