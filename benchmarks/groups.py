"""Many products in one launch of ours against one cuBLAS call for each group.

    python -m benchmarks groups                               # 8 to 64 uneven groups, some empty
    python -m benchmarks groups --axis k                      # gradients of weights
    python -m benchmarks groups --axis mnk                    # a list of unlike products
    python -m benchmarks groups --shapes 8192x4096x7168 --counts 32 --skew 1.5
    python -m benchmarks groups --plans "128x256x64 data-parallel{persistent=true}"

A shape is rows of all groups x n x k, as a layer of a mixture of experts has it: A holds the rows
sorted by group, B a matrix (n x k, given as its transpose) for each. With `--axis k` groups part k
instead, of m x n x k of all groups, and D is a matrix for each: A is given as its transpose, as
the rows of a batch are, and there is no Triton kernel. With `--axis mnk` groups share no extent:
rows are parted among them as well, and they have all or some of n and of k. How many rows (or k) a
group has falls by a power of its rank, `--skew`; ranks are shuffled, and one group in eight is
empty.

Contenders: cuBLAS (torch.matmul for every group that has rows, all of them in one CUDA graph: the
sizes are known when it is captured), torch._grouped_mm where PyTorch has it, a persistent Triton
kernel where Triton is installed (the fastest of a few tiles, tried for every problem),
codegen.grouped_matmul, which measures nothing (not with `--axis mnk`), and plans of ours. All but
cuBLAS read where groups begin when they run. Operands are normal numbers in buffers
that take turns and exceed thrice the L2 cache; every result is checked first, in an output full of
NaN, against float32; figures are medians over rounds of CUDA-graph replays whose order rotates.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from benchmarks.contenders import CUBLAS, FAILED, Unavailable, exit_where_wrong
from benchmarks.grouped import AXES, Groups, Launch, Prepare, cublas, grouped_mm
from benchmarks.monitor import Monitor
from benchmarks.options import add_measuring, command_line
from benchmarks.plans import Plan, compile_for, parse_plan
from benchmarks.record import RESULTS, environment, result_path, write
from benchmarks.report import console_here
from benchmarks.shapes import shape
from benchmarks.timing import REGIMES, Sampler, Spread, quick_seconds, take_turns
from codegen.groups import chosen, grouped_matmul
from codegen.nvptx.driver import unavailable
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
"""Shapes and plans by the axis of groups."""
PEERS = (CUBLAS, "torch._grouped_mm", "Triton")
CHOSEN = "codegen.grouped_matmul"


class Triton:
    """A persistent Triton kernel, with the fastest of its configurations that are right.

    `details` are about the last problem.
    """

    def __init__(self) -> None:
        try:
            import triton
        except ImportError as error:
            raise Unavailable(f"the package triton cannot be imported ({error})") from None
        self.version = triton.__version__
        self.details: dict[str, Any] = {}

    def __call__(self, problem: Groups) -> Launch:
        if problem.axis == "mnk":
            from benchmarks.triton_lists import Product, configurations
        else:
            from benchmarks.triton_groups import Product, configurations

        best: tuple[float, str, Launch] | None = None
        reasons: list[str] = []
        for config in configurations():
            launch = _launch_of(Product(config), problem)
            try:
                reason = problem.fault(lambda launch=launch: launch(0))
                seconds = quick_seconds(launch, len(problem.sets)) if reason is None else 0.0
            except Unavailable as error:
                reason, seconds = str(error), 0.0
            if reason is not None:
                reasons.append(f"{config}: {reason}")
            elif best is None or seconds < best[0]:
                best = seconds, str(config), launch
        if wrong := [reason for reason in reasons if "WRONG" in reason]:
            raise RuntimeError("; ".join(wrong))  # a fault of ours, not to be tuned away
        if best is None:
            raise Unavailable("no Triton configuration runs: " + "; ".join(reasons))
        self.details = {"configuration": best[1], "triton": self.version}
        return best[2]


def _launch_of(run: Any, problem: Groups) -> Launch:
    """Launches of something that is called with operands and where groups begin."""

    def launch(number: int) -> Any:
        a, b, out = problem.sets[number]
        run(a, b, out, problem.on_device)
        return out

    return launch


def ours(plan: Plan, kernel: Any) -> Prepare:
    """A plan's kernel; `kernel` may be the error that it ended with."""

    def prepare(problem: Groups) -> Launch:
        if isinstance(kernel, CoordGraphError):
            raise kernel

        def run(a: Any, b: Any, out: Any, offsets: Any) -> None:
            kernel(a, b, out=out, offsets=offsets, workgroups=plan.workgroups)

        return _launch_of(run, problem)

    return prepare


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("groups", __doc__)
    made.add_argument("--axis", choices=sorted(AXES), default="m", help="what groups part")
    made.add_argument("--shapes", type=shape, nargs="+", help="default: " + " ".join(SHAPES))
    made.add_argument("--counts", type=int, nargs="+", default=list(COUNTS), help="of groups")
    made.add_argument("--skew", type=float, default=0.8, help="0: even groups")
    made.add_argument("--plans", type=parse_plan, nargs="*", help="default: some for the axis")
    add_measuring(made, regime="sustained", rounds=9, seconds=0.003)
    made.add_argument("--no-graphs", dest="graphs", action="store_false", help="launch one by one")
    made.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON")
    return made


class Chosen:
    """`codegen.grouped_matmul`; `details` are about the last problem."""

    def __init__(self) -> None:
        self.details: dict[str, Any] = {}

    def __call__(self, problem: Groups) -> Launch:
        gemm = problem.gemm(problem.dtype)
        options = {
            "group_axis": gemm.group_axis,
            "transpose_a": gemm.transpose_a,
            "transpose_b": gemm.transpose_b,
        }
        a, b, out = problem.sets[0]
        self.details = {"plan": str(chosen(a, b, problem.on_device, out=out, **options))}

        def run(a: Any, b: Any, out: Any, offsets: Any) -> None:
            grouped_matmul(a, b, offsets, out=out, **options)

        return _launch_of(run, problem)


def contenders(
    plans: Iterable[tuple[Plan, Any]], tell: Callable[[str], None], axis: str = "m"
) -> dict[str, Prepare]:
    """Who competes, by name: peers, and plans with their kernels."""
    import torch

    cublas_name, grouped_name, triton_name = PEERS
    found: dict[str, Prepare] = {cublas_name: cublas}
    if hasattr(torch, "_grouped_mm"):
        found[grouped_name] = grouped_mm
    else:
        tell(f"without {grouped_name}: PyTorch {torch.__version__} has none")
    try:
        if axis != "k":
            found[triton_name] = Triton()
    except Unavailable as error:
        tell(f"without {triton_name}: {error}")
    if axis != "mnk":
        found[CHOSEN] = Chosen()
    return found | {str(plan): ours(plan, kernel) for plan, kernel in plans}


def enter(prepare: Prepare, problem: Groups, options: Any) -> Sampler | str:
    """A contender ready to be timed, or what is wrong with it."""
    try:
        launch = prepare(problem)
        fault = problem.fault(lambda: launch(0))
        if fault is not None:
            return fault
        sampler = Sampler(launch, len(problem.sets), options.seconds, graphs=options.graphs)

        def sampled() -> Any:
            sampler.sample()
            return problem.sets[0][2]

        # Launches that follow each other closely must not disturb each other either. What makes an
        # output of its own cannot be looked at.
        if launch(0) is problem.sets[0][2]:
            fault = problem.fault(sampled)
        return sampler if fault is None else fault
    except (CoordGraphError, Unavailable) as error:
        return str(error)
    except Exception as error:  # a long run goes on without this one, and ends with a failure
        return f"{FAILED}: {type(error).__name__}: {error}"


def compete(
    everyone: dict[str, Prepare], problem: Groups, options: Any
) -> Iterator[dict[str, Any]]:
    """A row for each, timed in turns where the result is right."""
    entered = {name: enter(prepare, problem, options) for name, prepare in everyone.items()}
    faults = {name: found for name, found in entered.items() if isinstance(found, str)}
    samplers = {name: found for name, found in entered.items() if isinstance(found, Sampler)}
    times = take_turns([*samplers.values()], options.rounds, REGIMES[options.regime])
    spreads = {name: Spread.of(found) for name, found in zip(samplers, times, strict=True)}
    m, n, k = problem.shape.m, problem.shape.n, problem.shape.k
    for name, prepare in everyone.items():
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
    """A line for each problem and contender."""
    made = Table(box=SIMPLE)
    for title in ("m x n x k", "groups", "contender", "µs", "TFLOP/s", "of cuBLAS"):
        made.add_column(title, justify="left" if title == "contender" else "right")
    for row in rows:
        place = (row["shape"], str(row["groups"]), row["name"])
        if "problem" in row:
            made.add_row(*place, "", "", row["problem"][:60])
            continue
        micro, ratio = 1e6 * row["seconds"]["median"], row.get("of_cublas")
        numbers = (f"{micro:.1f}", f"{row['tflops']:.0f}", "" if ratio is None else f"{ratio:.2f}")
        made.add_row(*place, *numbers)
    return made


def main() -> None:
    made = parser()
    options = made.parse_args()
    if options.rounds < 1 or options.seconds <= 0 or min(options.counts) < 1 or options.skew < 0:
        made.error("--rounds, --seconds and --counts must be positive, --skew not negative")
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}\n`python -m benchmarks cpu` measures the CPU target")
    shapes, plans = DEFAULTS[options.axis]
    options.shapes = options.shapes or [shape(text) for text in shapes]
    if options.plans is None:
        options.plans = [parse_plan(text) for text in plans]
    kind = AXES[options.axis]
    console = console_here()
    record: dict[str, Any] = {
        **environment("groups"),
        "dtype": options.dtype,
        "skew": options.skew,
        "axis": options.axis,
        "timing": "CUDA-graph replays" if options.graphs else "launches",
        "rows": [],
    }
    path = result_path(options.results, record)
    bars = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Monitor() as monitor, Progress(*bars, console=console) as progress:
        compiling = progress.add_task("compiling", total=len(options.plans))
        compiled = compile_for(
            options.plans,
            kind.gemm(options.dtype),
            options.target,
            lambda: progress.advance(compiling),
        )
        everyone = contenders(compiled, console.print, options.axis)
        progress.remove_task(compiling)
        task = progress.add_task("groups", total=len(options.shapes) * len(options.counts))
        for found in options.shapes:
            for count in options.counts:
                progress.update(task, description=f"{found.name}, {count} groups")
                start = time.monotonic()
                sizes = kind.divided(found, count, options.skew)
                problem = kind(found, sizes, options.dtype)
                rows = list(compete(everyone, problem, options))
                state = monitor.since(start)
                record["rows"] += [{**row, "device": state} for row in rows]
                write(path, record)
                console.print(table(rows))
                del problem
                progress.advance(task)
    console.print(f"written to {path}")
    exit_where_wrong(record["rows"])


if __name__ == "__main__":
    main()
