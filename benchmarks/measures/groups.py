"""Compare grouped products in one coordgraph launch with one cuBLAS call per group.

    python -m benchmarks groups                               # 8 to 64 uneven groups, some empty
    python -m benchmarks groups --axis k                      # weight gradients
    python -m benchmarks groups --axis mnk                    # products that share no extent
    python -m benchmarks groups --shapes 8192x4096x7168 --counts 32 --skew 1.5
    python -m benchmarks groups --plans "128x256x64 data-parallel{persistent=true}"

By default groups divide the rows, as the tokens of a mixture of experts are divided: m of a shape
is the number of rows of all groups, A holds the rows sorted by group, and each group has its own B,
stored as n x k. With `--axis k` groups divide k, and each group has its own D; A is stored as k x
m, and there is no Triton kernel. With `--axis mnk` each product has its own m, n and k: the rows of
the shape are divided among the products, and a product has all or a part of the shape's n and k.
Groups are uneven: the rows (or k) of the group with rank r are proportional to r^(-skew), where
skew is the value of --skew. If there are 8 groups or more, one in eight is empty, and ranks are
shuffled.

Contenders: cuBLAS (`torch.matmul` for every group that is not empty, all in one CUDA graph, which
fixes the sizes when it is captured), `torch._grouped_mm` if PyTorch has it, a persistent Triton
kernel if Triton is installed (the fastest of a few configurations for every problem),
`codegen.grouped_matmul`, which chooses a plan by its cost model (not with `--axis mnk`), and
coordgraph's kernels with the plans of --plans. All but cuBLAS read the groups' sizes from device
memory in every launch. Operands are normal random numbers in rotating buffers, which together
exceed three times the L2 cache. Every result is checked first: D is filled with NaN, and compared
with float32. The figures are medians over rounds of CUDA-graph replays; the order of contenders
rotates, and every second round runs in reverse.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from benchmarks.options import (
    add_dtype,
    add_results,
    add_sampling,
    add_shapes,
    add_target,
    command_line,
    require_positive,
)
from benchmarks.peers.compete import FAILED, exit_if_wrong
from benchmarks.peers.contender import CUBLAS, Unavailable
from benchmarks.peers.grouped_peers import PEERS, Prepare, find_contenders
from benchmarks.peers.plans import compile_for, parse_plan
from benchmarks.problems.grouped import AXES, GroupedProblem
from benchmarks.problems.shapes import parse_shape
from benchmarks.reports.console import make_console, progress_bars
from benchmarks.reports.record import environment, result_path, write
from benchmarks.timing.monitor import Monitor
from benchmarks.timing.sampler import REGIMES, Sampler, Spread, sample_in_rounds
from codegen.targets.nvptx.driver import unavailable
from coordgraph import CoordGraphError

SHAPES = ("8192x4096x7168", "8192x7168x2048", "1024x4096x7168", "65536x2048x2048")
COUNTS = (8, 16, 32, 64)
PLANS = (
    "128x256x64 data-parallel{persistent=true}",
    "128x256x64 rasterize,data-parallel{persistent=true}",
    "128x128x64 data-parallel{persistent=true}",
    "64x128x64 data-parallel{persistent=true}",
    "128x256x64 two-tile-stream-k{owner=last}",
    "128x128x64 two-tile-stream-k{owner=last}",
)
SHAPES_OF_DEPTH = ("4096x2048x8192", "7168x2048x8192", "2048x2048x65536", "1024x4096x16384")
PLANS_OF_DEPTH = (
    "128x256x64 rasterize{width=4},data-parallel{persistent=true}",
    "256x256x64@c2x1 rasterize{width=4},data-parallel{persistent=true}",
    "256x128x64@c2x1 data-parallel{persistent=true}",
    "128x256x64 rasterize{width=4},two-tile-stream-k{owner=last}",
    "256x256x64@c2x1 rasterize{width=4},two-tile-stream-k{owner=last}",
    "128x256x64 stream-k{owner=last}",
)
PLANS_OF_LISTS = (
    "128x256x64 data-parallel{persistent=true}",
    "128x256x64 longest-first,data-parallel{persistent=true}",
    "256x256x64@c2x1 longest-first,data-parallel{persistent=true}",
    "128x192x64 longest-first,data-parallel{persistent=true}",
    "128x128x64 longest-first,data-parallel{persistent=true}",
    "128x192x64 two-tile-stream-k{owner=last}",
    "128x192x64 longest-first,two-tile-stream-k{owner=last}",
    "128x192x64 stream-k{owner=last}",
)
DEFAULTS = {
    "m": (SHAPES, PLANS),
    "k": (SHAPES_OF_DEPTH, PLANS_OF_DEPTH),
    "mnk": (SHAPES, PLANS_OF_LISTS),
}
"""By value of --axis, the shapes and the plans that are measured by default."""


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks groups`."""
    made = command_line("groups", __doc__)
    made.add_argument(
        "--axis", choices=sorted(AXES), default="m", help="the extent that groups divide; default m"
    )
    add_shapes(made, groups=False)
    made.add_argument(
        "--counts", type=int, nargs="+", default=list(COUNTS), metavar="N",
        help=f"numbers of groups; default {' '.join(map(str, COUNTS))}",
    )  # fmt: skip
    made.add_argument(
        "--skew", type=float, default=0.8, help="how uneven groups are; 0 is even; default 0.8"
    )
    made.add_argument(
        "--plans", type=parse_plan, nargs="*", help="plans to time; default a few for each axis"
    )
    add_dtype(made)
    add_target(made)
    add_sampling(made, rounds=9, seconds=0.003, regime="sustained")
    add_results(made)
    return made


def prepared(prepare: Prepare, problem: GroupedProblem, options: Any) -> Sampler | str:
    """Prepare and check a contender; returns an object that times it, or what is wrong with it."""
    try:
        launch = prepare(problem)
        fault = problem.fault(lambda: launch(0))
        if fault is not None:
            return fault
        sampler = Sampler(launch, len(problem.sets), options.seconds, graphs=options.graphs)

        def sample() -> Any:
            sampler.sample()
            return problem.sets[0][2]

        # Check D after back-to-back launches too, if the contender writes to the problem's own D.
        if launch(0) is problem.sets[0][2]:
            fault = problem.fault(sample)
        return sampler if fault is None else fault
    except (CoordGraphError, Unavailable) as error:
        return str(error)
    except Exception as error:  # other contenders are still timed; the command fails at its end
        return f"{FAILED}: {type(error).__name__}: {error}"


def compete(
    contenders: dict[str, Prepare], problem: GroupedProblem, options: Any
) -> Iterator[dict[str, Any]]:
    """Check all contenders, time those without errors in turn; yield a row of results for each."""
    entries = {name: prepared(prepare, problem, options) for name, prepare in contenders.items()}
    faults = {name: found for name, found in entries.items() if isinstance(found, str)}
    samplers = {name: found for name, found in entries.items() if isinstance(found, Sampler)}
    times = sample_in_rounds([*samplers.values()], options.rounds, REGIMES[options.regime])
    spreads = {name: Spread.of(found) for name, found in zip(samplers, times, strict=True)}
    m, n, k = problem.shape.m, problem.shape.n, problem.shape.k
    for name, prepare in contenders.items():
        row: dict[str, Any] = {
            "shape": problem.shape.name, "m": m, "n": n, "k": k, "groups": len(problem.sizes),
            "sizes": list(problem.sizes), "name": name, "regime": options.regime,
            "buffers": len(problem.sets), "ours": name not in PEERS,
        }  # fmt: skip
        if name in faults:
            yield {**row, "problem": faults[name]}
            continue
        seconds = spreads[name].median
        row |= getattr(prepare, "details", {})
        row |= {"seconds": spreads[name].json(), "tflops": 1e-12 * problem.flops / seconds}
        if CUBLAS in spreads:
            row["of_cublas"] = spreads[CUBLAS].median / seconds
        yield row


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """A table of results with a line for each problem and contender."""
    made = Table(box=SIMPLE)
    for title in ("m x n x k", "groups", "contender", "µs", "TFLOP/s", "of cuBLAS"):
        made.add_column(title, justify="left" if title == "contender" else "right")
    for row in rows:
        head = (row["shape"], str(row["groups"]), row["name"])
        if "problem" in row:
            made.add_row(*head, "", "", row["problem"][:60])
            continue
        micro, ratio = 1e6 * row["seconds"]["median"], row.get("of_cublas")
        numbers = (f"{micro:.1f}", f"{row['tflops']:.0f}", "" if ratio is None else f"{ratio:.2f}")
        made.add_row(*head, *numbers)
    return made


def main() -> None:
    """Run `python -m benchmarks groups`."""
    made = parser()
    options = made.parse_args()
    require_positive(made, options)
    if min(options.counts) < 1 or options.skew < 0:
        made.error("--counts must be positive, and --skew must not be negative")
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}; `python -m benchmarks cpu` measures the CPU target instead")
    shapes, plans = DEFAULTS[options.axis]
    options.shapes = options.shapes or [parse_shape(text) for text in shapes]
    if options.plans is None:
        options.plans = [parse_plan(text) for text in plans]
    kind = AXES[options.axis]
    console = make_console()
    record: dict[str, Any] = {
        **environment("groups"),
        "dtype": options.dtype,
        "skew": options.skew,
        "axis": options.axis,
        "timing": "CUDA-graph replays" if options.graphs else "launches",
        "rows": [],
    }
    path = result_path(options.results, record)
    with Monitor() as monitor, progress_bars(console) as progress:
        compiling = progress.add_task("compiling", total=len(options.plans))
        compiled = compile_for(
            options.plans,
            kind.gemm(options.dtype),
            options.target,
            lambda: progress.advance(compiling),
        )
        contenders = find_contenders(compiled, console.print, options.axis)
        progress.remove_task(compiling)
        task = progress.add_task("groups", total=len(options.shapes) * len(options.counts))
        for shape in options.shapes:
            for count in options.counts:
                progress.update(task, description=f"{shape.name}, {count} groups")
                start = time.monotonic()
                sizes = kind.divide(shape, count, options.skew)
                problem = kind(shape, sizes, options.dtype)
                rows = list(compete(contenders, problem, options))
                state = monitor.since(start)
                record["rows"] += [{**row, "device": state} for row in rows]
                write(path, record)
                console.print(table(rows))
                del problem
                progress.advance(task)
    console.print(f"written to {path}")
    exit_if_wrong(record["rows"])


if __name__ == "__main__":
    main()
