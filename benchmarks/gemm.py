"""Our GPU kernels against their peers, over groups of real shapes.

    python -m benchmarks gemm                                 # six groups, about 8 minutes
    python -m benchmarks gemm --groups B D --layouts nt
    python -m benchmarks gemm --shapes 4096x4096x4096 --peers cublas \\
        --schedules data-parallel "two-tile-stream-k{owner=last}" --tiles 128x256x64
    python -m benchmarks gemm --quick --plans "256x256x64@c2x1 two-tile-stream-k{owner=last}"

Contenders: cuBLAS (torch.matmul), the best of cuBLASLt's proposals, a tuned Triton kernel, and
ours: `codegen.matmul` (coordgraph), and the plans that are named. A plan is a tile, perhaps @cMxN
for clusters of M x N workgroups, perhaps @pingpong, and a pipeline of passes.

Operands are normal numbers, in buffers that take turns and together exceed thrice the L2 cache.
In every round each contender has one sample of CUDA-graph replays, in an order that rotates;
figures are medians over the rounds. Every result is checked first, in an output full of NaN,
against float64. Sustained is back to back, under the power limit; in a burst the GPU rests before
every sample. The roof is what the GPU copies and multiplies at best: a problem's floor is the
longer of moving each operand once and of all operations at that rate.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.contenders import (
    Contender,
    Library,
    Ours,
    compete,
    exit_where_wrong,
    fill_cache,
)
from benchmarks.monitor import Monitor
from benchmarks.options import command_line
from benchmarks.peers import PEERS, peers
from benchmarks.plans import Plan, compile_plans, parse_plan, products, side_by_side
from benchmarks.problem import DTYPES, Problem
from benchmarks.record import RESULTS, environment, result_path, write
from benchmarks.report import console_here, draw_beside, report
from benchmarks.roofline import measure_roof
from benchmarks.shapes import GROUPS, Shape, chosen, preset, shape, triple
from benchmarks.timing import REGIMES
from codegen.nvptx.driver import unavailable

SCHEDULES = ("data-parallel", "stream-k", "two-tile-stream-k", "two-tile-stream-k{owner=last}")
TILES = ("128x256x64", "128x128x64")
LAYOUTS = ("nn", "nt", "tn", "tt")
TIME_LIMIT = 8.0
PLAN = "of ours: 'TILE[@cMxN][@pingpong] PIPELINE [on GRID]'"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("gemm", __doc__)
    what = made.add_argument_group("problems")
    listing = ", ".join(f"{letter} {group.title}" for letter, group in GROUPS.items())
    what.add_argument("--groups", nargs="+", choices=list(GROUPS), help=f"of shapes: {listing}")
    what.add_argument("--shapes", type=shape, nargs="+", help="m x n x k, as 4096x4096x64")
    what.add_argument("--preset", type=Path, help="a file of shapes, one in a line")
    what.add_argument("--layouts", nargs="+", default=["nn", "nt"], choices=LAYOUTS)
    what.add_argument("--dtype", default="bf16", choices=list(DTYPES))
    what.add_argument("--quick", action="store_true", help="one shape of each group, 5 rounds")
    who = made.add_argument_group("contenders")
    who.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    who.add_argument("--plans", type=parse_plan, nargs="+", help=PLAN)
    who.add_argument("--schedules", nargs="+", help="pipelines of ours, with every one of --tiles")
    who.add_argument("--tiles", type=triple, nargs="+", help="of --schedules, as 128x256x64")
    who.add_argument(
        "--no-coordgraph", dest="coordgraph", action="store_false", help="without codegen.matmul"
    )
    who.add_argument("--tune", action="store_true", help="codegen.matmul measures to choose")
    who.add_argument("--target", default="native", help="of the plans: native, sm_80, …")
    how = made.add_argument_group("measuring")
    how.add_argument("--regime", default="sustained", choices=[*REGIMES, "both"])
    how.add_argument("--rounds", type=int, default=9)
    how.add_argument("--seconds", type=float, default=0.003, help="about, for one sample")
    how.add_argument("--no-graphs", dest="graphs", action="store_false", help="launch one by one")
    how.add_argument(
        "--time-limit",
        type=float,
        default=TIME_LIMIT,
        metavar="MINUTES",
        help=f"less rounds, but at least three, where it would take longer (default {TIME_LIMIT})",
    )
    how.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON and plots")
    return made


def read(words: list[str] | None = None) -> argparse.Namespace:
    """Options, with what follows from others filled in."""
    made = parser()
    options = made.parse_args(words)
    if options.rounds < 1 or options.seconds <= 0 or options.time_limit <= 0:
        made.error("--rounds, --seconds and --time-limit must be positive")
    options.rounds = min(options.rounds, 5) if options.quick else options.rounds
    options.plans = list(options.plans or ())
    if options.schedules or options.tiles:
        tiles = options.tiles or [triple(text) for text in TILES]
        try:
            options.plans += products(options.schedules or SCHEDULES, tiles)
        except argparse.ArgumentTypeError as error:
            made.error(str(error))
    options.plans = list(dict.fromkeys(options.plans))
    given: list[Shape] = [
        *(options.shapes or ()),
        *(preset(options.preset) if options.preset else ()),
    ]
    options.problems = chosen(options.groups, given, quick=options.quick)
    options.regimes = list(REGIMES) if options.regime == "both" else [options.regime]
    return options


def contenders(
    options: argparse.Namespace, tell: Callable[[str], None]
) -> tuple[list[Contender], list[Plan]]:
    """Peers and `codegen.matmul` as far as they are here, and the plans to compile."""
    found: list[Contender] = []
    for peer in peers(options.peers):
        if isinstance(peer, tuple):
            tell(f"without {peer[0]}: {peer[1]}")
        else:
            found.append(peer)
    if options.coordgraph:
        found.append(Library(tune=options.tune))
    return found, options.plans


class Allowance:
    """Shares what is left of the time among the problems that are left."""

    def __init__(
        self, minutes: float, problems: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock, self.left = clock, problems
        self.end = clock() + 60 * minutes

    @property
    def over(self) -> bool:
        """Whether nothing is left of the time."""
        return self.clock() >= self.end

    def deadline(self) -> float:
        """When the next problem's rounds should end."""
        now = self.clock()
        share = max(0.0, self.end - now) / max(1, self.left)
        self.left -= 1
        return now + share


def measure(options: argparse.Namespace, record: dict[str, Any], console: Console) -> Path:
    """All problems; the record is written after each. Returns where."""
    path = result_path(options.results, record)
    rows: list[dict[str, Any]] = record["rows"]
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Monitor() as monitor, Progress(*columns, console=console) as progress:
        everyone, plans = contenders(options, console.print)
        allowance = Allowance(options.time_limit, len(options.problems) * len(options.layouts))
        task = progress.add_task("the roof", total=allowance.left)
        roof = measure_roof(options.dtype)
        record["roof"] = roof.json()
        for layout in options.layouts:
            compiling = progress.add_task(f"compiling ({layout})", total=len(plans))
            step = partial(progress.advance, compiling)
            compiled = compile_plans(plans, options.dtype, layout, options.target, step)
            ours = [Ours(plan, kernel) for plan, kernel in compiled]
            progress.remove_task(compiling)
            if any(isinstance(one, Library) for one in everyone) and not options.tune:
                sizes = [(found.m, found.n, found.k) for _, found in options.problems]
                side_by_side(fill_cache, [(size, layout, options.dtype) for size in sizes])
            for group, found in options.problems:
                progress.update(task, description=f"{group} {found.name} {layout}")
                deadline = allowance.deadline()
                problem = Problem(found, layout, options.dtype)
                for row in compete(
                    [*everyone, *ours],
                    problem,
                    options,
                    regimes=options.regimes,
                    deadline=deadline,
                    state=monitor.since,
                    roof=roof,
                ):
                    rows.append({"group": group, **row})
                del problem
                write(path, record)
                progress.advance(task)
    return path


def main() -> None:
    options = read()
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}\n`python -m benchmarks cpu` measures the CPU target")
    console = console_here()
    record: dict[str, Any] = {
        **environment("gemm"),
        "dtype": options.dtype,
        "timing": "CUDA-graph replays" if options.graphs else "launches",
        "seconds": options.seconds,
        "rows": [],
    }
    path = measure(options, record, console)
    report(record["rows"], console)
    draw_beside(record, path, console)
    exit_where_wrong(record["rows"])


if __name__ == "__main__":
    main()
