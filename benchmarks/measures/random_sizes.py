"""Compare `codegen.matmul` with cuBLAS and the best of cuBLASLt's algorithms, on random sizes.

    python -m benchmarks random                                   # 80 sizes, about 8 minutes
    python -m benchmarks random --count 300 --seed 1 --layouts nt,nn --tune
    python -m benchmarks random --m-high 64 --k-low 4096 --json few-rows.json
    python -m benchmarks random --regimes --seed 5 --time-limit 6   # 35 sizes of five regimes

m, n and k are log-uniform between --low and --high, rounded to multiples of --step; one seed gives
the same sizes on every machine. With --regimes, sizes are drawn in five regimes instead: square,
a little more than whole waves of tiles, deep k with few tiles, decoding, and layers of language
models. Contenders are timed in turn, as by `benchmarks gemm`: cuBLAS
(`torch.matmul`), cuBLASLt (the fastest of the --candidates algorithms that its heuristics propose),
and `codegen.matmul`, which chooses by the cost model, or with --tune by measuring.

Two ratios are reported. `of cuBLAS` is cuBLAS's time divided by that of `codegen.matmul`. `of best`
is the time of the faster of cuBLAS and cuBLASLt divided by that of `codegen.matmul`. Both are given
as geometric mean and minimum: over all problems, by regime, by layout, by cuBLAS's time, and by k.
The slowest problems follow, each with the plan that was chosen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.options import (
    add_dtype,
    add_extents,
    add_layouts,
    add_results,
    add_sampling,
    add_time_limit,
    command_line,
    extent_ranges,
    require_positive,
)
from benchmarks.peers.compete import compete, exit_if_wrong
from benchmarks.peers.contender import COORDGRAPH, CUBLAS, Contender, Unavailable
from benchmarks.peers.libraries import CANDIDATES, CuBlas, CuBlasLt
from benchmarks.peers.ours import Library, compile_choice
from benchmarks.peers.plans import side_by_side
from benchmarks.problems.log_uniform import log_uniform_shapes
from benchmarks.problems.problem import Problem
from benchmarks.problems.regimes import REGIMES, regime_shapes
from benchmarks.problems.shapes import Shape
from benchmarks.reports.console import make_console, progress_bars
from benchmarks.reports.record import environment, result_path, write
from benchmarks.reports.summary import Row, by_problem, geometric_mean
from benchmarks.timing.budget import TimeBudget
from benchmarks.timing.monitor import Monitor
from codegen.targets.nvptx.driver import unavailable

__all__ = ["Comparison", "compare", "faults", "main", "summaries"]

COUNT = 80
MICROSECONDS = (8, 20, 60)
"""Bounds, in microseconds, by which problems are divided into classes of cuBLAS's time."""
DEPTHS = (512, 1024, 2048, 4096)
"""Bounds by which problems are divided into classes of their extent along k."""
SLOW = 0.9
"""A problem is slow if `codegen.matmul` has less than this fraction of the speed of the faster of
cuBLAS and cuBLASLt."""


@dataclass(frozen=True)
class Comparison:
    """One problem that cuBLAS and `codegen.matmul` were timed on.

    Args:
        m, n, k: the extents of the problem.
        layout: how A and B are stored, such as "nt".
        plan: the plan that `codegen.matmul` chose.
        seconds: the time of `codegen.matmul`, in seconds.
        cublas_seconds: the time of `torch.matmul`, in seconds.
        best_seconds: the time of the faster of cuBLAS and cuBLASLt, in seconds.
        regime: the name of the regime that the size was drawn in; "" if there are no regimes.
    """

    m: int
    n: int
    k: int
    layout: str
    plan: str
    seconds: float
    cublas_seconds: float
    best_seconds: float
    regime: str = ""

    @property
    def of_cublas(self) -> float:
        """cuBLAS's time divided by that of `codegen.matmul`."""
        return self.cublas_seconds / self.seconds

    @property
    def of_best(self) -> float:
        """The time of the faster of cuBLAS and cuBLASLt, divided by that of `codegen.matmul`."""
        return self.best_seconds / self.seconds

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} {self.layout}"


@dataclass(frozen=True)
class Summary:
    """Speeds of `codegen.matmul` relative to cuBLAS and cuBLASLt, over a class of problems.

    Args:
        problems: the number of problems.
        of_cublas: geometric mean of the speeds relative to cuBLAS.
        of_best: geometric mean of the speeds relative to the faster of cuBLAS and cuBLASLt.
        least_of_cublas, least_of_best: the least speed relative to cuBLAS, and relative to the
            faster of cuBLAS and cuBLASLt.
        slow: the number of problems whose speed relative to that faster one is below `SLOW`.
    """

    problems: int
    of_cublas: float
    least_of_cublas: float
    of_best: float
    least_of_best: float
    slow: int

    @classmethod
    def of(cls, found: Sequence[Comparison]) -> Summary:
        """Summarise a non-empty sequence of comparisons."""
        cublas, best = [one.of_cublas for one in found], [one.of_best for one in found]
        return cls(
            len(found),
            geometric_mean(cublas),
            min(cublas),
            geometric_mean(best),
            min(best),
            sum(ratio < SLOW for ratio in best),
        )


def compare(rows: Iterable[Row]) -> list[Comparison]:
    """A comparison for every problem on which both `codegen.matmul` and cuBLAS were timed."""
    found: list[Comparison] = []
    for of_problem in by_problem(rows):
        timed = {row["name"]: row for row in of_problem if "seconds" in row}
        if COORDGRAPH not in timed or CUBLAS not in timed:
            continue
        ours = timed[COORDGRAPH]
        medians = {name: row["seconds"]["median"] for name, row in timed.items()}
        libraries = [seconds for name, seconds in medians.items() if name != COORDGRAPH]
        size = (ours["m"], ours["n"], ours["k"], ours["layout"])
        times = (medians[COORDGRAPH], medians[CUBLAS], min(libraries))
        regime = ours["shape"] if ours.get("shape") in REGIMES else ""
        found.append(Comparison(*size, ours.get("plan", ""), *times, regime))
    return found


def faults(rows: Iterable[Row]) -> list[str]:
    """One line for each problem that a contender could not compute, with the reason."""
    return [
        f"{row['m']}x{row['n']}x{row['k']} {row['layout']} {row['name']}: {row['problem']}"
        for row in rows
        if "problem" in row
    ]


def _class(value: float, bounds: Sequence[int], name: str, unit: str = "") -> str:
    """The name of the class that a value belongs to; classes lie between the sorted `bounds`.

    >>> _class(7.9, (8, 20), "t", " µs"), _class(8, (8, 20), "t"), _class(20, (8, 20), "t", " µs")
    ('t < 8 µs', '8 <= t < 20', 't >= 20 µs')
    """
    if value < bounds[0]:
        return f"{name} < {bounds[0]}{unit}"
    for low, high in pairwise(bounds):
        if value < high:
            return f"{low} <= {name} < {high}{unit}"
    return f"{name} >= {bounds[-1]}{unit}"


def _classes(bounds: Sequence[int], name: str, unit: str = "") -> list[str]:
    """The names, such as `t < 8 µs`, of all classes between the sorted `bounds`, ascending."""
    values = [bounds[0] - 1, *bounds]
    return [_class(value, bounds, name, unit) for value in values]


def summaries(found: Sequence[Comparison]) -> dict[str, Summary]:
    """A summary of the comparisons of each class, by the name of the class, such as `layout nt`.

    The classes are all comparisons, each regime, each layout, ranges of cuBLAS's time, and ranges
    of k; one comparison is in several classes.
    """
    regimes = dict.fromkeys(one.regime for one in found if one.regime)
    names = [
        "all",
        *regimes,
        *(f"layout {layout}" for layout in dict.fromkeys(one.layout for one in found)),
        *_classes(MICROSECONDS, "cuBLAS", " µs"),
        *_classes(DEPTHS, "k"),
    ]
    parts: dict[str, list[Comparison]] = {name: [] for name in names}
    for one in found:
        microseconds = 1e6 * one.cublas_seconds
        for name in (
            "all",
            *((one.regime,) if one.regime else ()),
            f"layout {one.layout}",
            _class(microseconds, MICROSECONDS, "cuBLAS", " µs"),
            _class(one.k, DEPTHS, "k"),
        ):
            parts[name].append(one)
    return {name: Summary.of(part) for name, part in parts.items() if part}


def table_of(found: dict[str, Summary]) -> Table:
    """A table of `codegen.matmul`'s speeds relative to cuBLAS and cuBLASLt by class of problems."""
    table = Table("problems with", title="cuBLAS's time over ours; best: of the faster library",
                  box=SIMPLE)  # fmt: skip
    for heading in ("problems", "of cuBLAS", "least", "of best", "least", f"under {SLOW}"):
        table.add_column(heading, justify="right")
    for name, one in found.items():
        ratios = (one.of_cublas, one.least_of_cublas, one.of_best, one.least_of_best)
        cells = [f"{ratio:.3f}" for ratio in ratios]
        table.add_row(name, str(one.problems), *cells, str(one.slow))
    return table


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks random`."""
    made = command_line("random", __doc__)
    sizes = made.add_argument_group("sizes")
    sizes.add_argument(
        "--count", type=int, default=COUNT, metavar="N", help=f"number of sizes; default {COUNT}"
    )
    sizes.add_argument("--seed", type=int, default=0, help="seed of the sizes; default 0")
    sizes.add_argument(
        "--regimes",
        action="store_true",
        help="draw 35 sizes in five regimes; the other options for sizes are ignored",
    )
    add_extents(sizes)
    add_layouts(sizes, "nt", "nn")
    add_dtype(sizes)
    contenders = made.add_argument_group("contenders")
    contenders.add_argument(
        "--tune", action="store_true", help="codegen.matmul chooses plans by measuring them"
    )
    contenders.add_argument(
        "--candidates", type=int, default=CANDIDATES, metavar="N",
        help=f"algorithms of cuBLASLt to time; default {CANDIDATES}",
    )  # fmt: skip
    timing = made.add_argument_group("timing")
    add_sampling(timing, rounds=7, seconds=0.002, regime="sustained")
    add_time_limit(timing, 8.0)
    output = made.add_argument_group("output")
    output.add_argument(
        "--worst", type=int, default=10, metavar="N", help="slowest problems to list"
    )
    output.add_argument(
        "--json", type=Path, metavar="FILE", help="file of the record, instead of --results"
    )
    add_results(output)
    return made


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check the command line; also sets `ranges` and `shapes` from its options."""
    made = parser()
    options = made.parse_args(words)
    require_positive(made, options)
    if min(options.count, options.candidates) < 1:
        made.error("--count and --candidates must be positive")
    options.ranges = extent_ranges(made, options)
    if options.regimes:
        options.shapes = regime_shapes(options.seed)
        return options
    options.shapes = log_uniform_shapes(options.count, options.seed, options.step, **options.ranges)
    return options


def find_contenders(options: argparse.Namespace, console: Console) -> list[Contender]:
    """The contenders: cuBLAS, cuBLASLt if it can be loaded, and `codegen.matmul`."""
    found: list[Contender] = [CuBlas()]
    try:
        found.append(CuBlasLt(options.candidates))
    except Unavailable as error:
        console.print(f"without cuBLASLt: {error}")
    return [*found, Library(tune=options.tune)]


def measure(
    options: argparse.Namespace, record: dict[str, Any], path: Path, console: Console
) -> None:
    """Time all sizes in all layouts until the time limit; writes the record after each problem."""
    rows: list[Row] = record["rows"]
    jobs: list[tuple[Shape, str]] = [*product(dict.fromkeys(options.shapes), options.layouts)]
    with Monitor() as monitor, progress_bars(console) as progress:
        task = progress.add_task("compiling", total=len(jobs))
        budget = TimeBudget(options.time_limit, len(jobs))
        contenders = find_contenders(options, console)
        if not options.tune:
            sizes = [((shape.m, shape.n, shape.k), layout, options.dtype) for shape, layout in jobs]
            side_by_side(compile_choice, sizes)
        for shape, layout in jobs:
            if budget.over:
                break
            progress.update(task, description=f"{shape.size} {layout}")
            deadline = budget.next_deadline()
            problem = Problem(shape, layout, options.dtype)
            rows += compete(
                contenders,
                problem,
                options,
                regimes=[options.regime],
                deadline=deadline,
                device_state=monitor.since,
            )
            del problem
            record["means"] = {name: vars(one) for name, one in summaries(compare(rows)).items()}
            write(path, record)
            progress.advance(task)
    if budget.left:
        console.print(f"the time limit left out {budget.left} of {len(jobs)} problems")


def show(rows: Sequence[Row], worst: int, console: Console) -> None:
    """Print speeds relative to cuBLAS and cuBLASLt, the `worst` slowest problems, all errors."""
    found = compare(rows)
    if found:
        console.print(table_of(summaries(found)))
    for one in sorted(found, key=lambda one: one.of_best)[:worst]:
        line = f"{one.of_best:.3f} of best, {one.of_cublas:.3f} of cuBLAS  {one}  {one.plan}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for line in faults(rows):
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """Run `python -m benchmarks random`."""
    options = read_options()
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}; run this measure on a machine with an NVIDIA GPU")
    console = make_console()
    record: dict[str, Any] = {
        **environment("random"),
        "dtype": options.dtype,
        "seed": options.seed,
        "step": options.step,
        "ranges": options.ranges,
        "tune": options.tune,
        "means": {},
        "rows": [],
    }
    path = options.json or result_path(options.results, record)
    measure(options, record, path, console)
    show(record["rows"], options.worst, console)
    console.print(f"written to {path}", highlight=False, soft_wrap=True)
    exit_if_wrong(record["rows"])


if __name__ == "__main__":
    main()
