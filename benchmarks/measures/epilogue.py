"""Measure the cost of a fused epilogue, D = gelu(A · B + bias) + residual, also against PyTorch.

    python -m benchmarks epilogue                             # a few layers, about 3 minutes
    python -m benchmarks epilogue --shapes 4096x4096x4096 --layouts nt nn
    python -m benchmarks epilogue --plan "128x256x64 two-tile-stream-k{owner=last} on 132"
    python -m benchmarks epilogue --max-autotune              # about 20 s more for each layer

The bias has an element for each column of D, the residual one for each element; GELU is the tanh
approximation. Contenders, timed in turn as by `benchmarks gemm`:

  plain kernel    a coordgraph kernel without the epilogue: D = A · B
  fused kernel    the kernel of the same plan with the epilogue
  codegen.matmul  with the epilogue, by the plan that it chooses
  torch eager     F.linear, F.gelu and torch.add
  torch.compile   the same, compiled by PyTorch (needs Triton)

The plan is --plan, or what the cost model chooses for the problem with the epilogue. Every result
is checked first: D is filled with NaN, and compared with float64. `cost` is the time of the fused
kernel divided by that of the plain kernel, less 1; other columns are the contenders' times divided
by that of the fused kernel.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.options import (
    add_dtype,
    add_layouts,
    add_results,
    add_sampling,
    add_shapes,
    add_target,
    add_time_limit,
    command_line,
    parse_for_gpu,
)
from benchmarks.peers.compete import compete, exit_if_wrong
from benchmarks.peers.contender import Contender
from benchmarks.peers.epilogue_peers import (
    EAGER,
    FUSED,
    LIBRARY,
    PLAIN,
    TORCH_COMPILE,
    FusedLibrary,
    fused_gemm,
    kernels,
    torch_peers,
)
from benchmarks.peers.plans import Plan, parse_plan
from benchmarks.problems.epilogue_problem import EpilogueProblem, trace_epilogue
from benchmarks.problems.shapes import Shape, parse_shape
from benchmarks.reports.console import make_console, progress_bars
from benchmarks.reports.record import environment, result_path, write
from benchmarks.reports.summary import Row, by_problem, geometric_mean
from benchmarks.timing.budget import TimeBudget
from benchmarks.timing.monitor import Monitor
from passes.choosing import rank

__all__ = ["Costs", "costs", "main", "plan_for", "summary"]

SHAPES = (
    "4096x4096x1024",
    "512x4096x4096",
    "4096x4096x4096",
    "8192x8192x8192",
    "4096x14336x4096",
    "4096x4096x14336",
    "2048x5120x8192",
)
DEEP = 4096
"""The least k for which a fused epilogue should cost at most `GOAL` of the plain kernel's time."""
GOAL = 0.02
OTHERS = (LIBRARY, EAGER, TORCH_COMPILE)


@dataclass(frozen=True)
class Costs:
    """The times of all contenders on one problem.

    Args:
        problem: m, n, k and the layout, as text.
        k: the problem's extent in k.
        plan: the plan of the plain and of the fused kernel.
        plain: the time of the kernel without epilogue, in seconds.
        fused: the time of the kernel with the epilogue, in seconds.
        others: by name, the times of the other contenders, in seconds.
    """

    problem: str
    k: int
    plan: str
    plain: float
    fused: float
    others: dict[str, float]

    @property
    def cost(self) -> float:
        """The time that the fused epilogue adds, relative to the plain kernel's time."""
        return self.fused / self.plain - 1

    def speedup(self, name: str) -> float | None:
        """A contender's time divided by that of the fused kernel; None if it was not timed."""
        return self.others[name] / self.fused if name in self.others else None


def costs(rows: Iterable[Row]) -> list[Costs]:
    """The times of every problem on which both the plain and the fused kernel were timed."""
    found: list[Costs] = []
    for of_problem in by_problem(rows):
        timed = {row["name"]: row for row in of_problem if "seconds" in row}
        if PLAIN not in timed or FUSED not in timed:
            continue
        seconds = {name: row["seconds"]["median"] for name, row in timed.items()}
        row = timed[FUSED]
        found.append(
            Costs(
                f"{row['m']}x{row['n']}x{row['k']} {row['layout']}",
                row["k"],
                row["plan"],
                seconds[PLAIN],
                seconds[FUSED],
                {name: seconds[name] for name in OTHERS if name in seconds},
            )
        )
    return found


def summary(found: Sequence[Costs]) -> dict[str, Any]:
    """Statistics over all problems, as data for a JSON record; {} if there are no problems.

    `cost` is the geometric mean of cost + 1, less 1; `largest_deep_cost` the largest cost of a
    problem with k >= `DEEP` (None if there is none); `within_goal` whether the costs of these
    problems are at most `GOAL`; and `speedup` the geometric mean of the fused kernel's speedups
    over each other contender, by its name.
    """
    if not found:
        return {}
    deep = [one.cost for one in found if one.k >= DEEP]
    speedups = {name: [ratio for one in found if (ratio := one.speedup(name))] for name in OTHERS}
    return {
        "cost": geometric_mean(1 + one.cost for one in found) - 1,
        "largest_deep_cost": max(deep) if deep else None,
        "within_goal": all(cost <= GOAL for cost in deep),
        "speedup": {name: geometric_mean(of) for name, of in speedups.items() if of},
    }


def table_of(found: Sequence[Costs]) -> Table:
    """A table with a line per problem: the fused epilogue's cost, contenders' relative times."""
    table = Table("problem", box=SIMPLE, title="gelu(A · B + bias) + residual")
    for heading in ("plain µs", "fused µs", "cost", *(f"{name} / fused" for name in OTHERS)):
        table.add_column(heading, justify="right")
    table.add_column("plan")
    for one in found:
        ratios = [one.speedup(name) for name in OTHERS]
        table.add_row(
            one.problem,
            f"{1e6 * one.plain:.1f}",
            f"{1e6 * one.fused:.1f}",
            f"{one.cost:+.1%}",
            *("" if ratio is None else f"{ratio:.3f}" for ratio in ratios),
            one.plan,
        )
    return table


def show(rows: Sequence[Row], console: Console) -> None:
    """Print times, the fused epilogue's cost, whether it is at most `GOAL`, and all errors."""
    found = costs(rows)
    console.print(table_of(found))
    if means := summary(found):
        speedups = ", ".join(f"{name} {ratio:.3f}" for name, ratio in means["speedup"].items())
        console.print(
            f"geometric means: cost {means['cost']:+.1%}; over the fused kernel: {speedups}",
            highlight=False,
        )
        if means["largest_deep_cost"] is not None:
            verdict = "met" if means["within_goal"] else "MISSED"
            console.print(
                f"largest cost with k >= {DEEP}: {means['largest_deep_cost']:+.1%}; "
                f"the goal of {GOAL:.0%} is {verdict}",
                highlight=False,
            )
    for row in rows:
        if "problem" in row:
            size = f"{row['m']}x{row['n']}x{row['k']} {row['layout']}"
            console.print(
                f"{size} {row['name']}: {row['problem']}",
                style="red", highlight=False, markup=False, soft_wrap=True,
            )  # fmt: skip


def plan_for(shape: Shape, layout: str, dtype: str, epilogue: Any) -> Plan:
    """The plan that the cost model chooses for a problem with the epilogue."""
    gemm = fused_gemm(dtype, layout, epilogue)
    return rank(replace(gemm, m=shape.m, n=shape.n, k=shape.k), None, 1)[0].plan


def check_of(problem: EpilogueProblem) -> Callable[[Contender, Callable[[], Any]], str | None]:
    """A function that checks a contender's D; it returns what is wrong, or None if D is right.

    The D of the kernel without an epilogue is compared with A · B alone.
    """

    def check(contender: Contender, compute: Callable[[], Any]) -> str | None:
        if contender.name == PLAIN:
            return problem.fault(compute)
        return problem.epilogue_fault(compute, rounded_steps=not contender.ours)

    return check


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks epilogue`."""
    made = command_line("epilogue", __doc__)
    add_shapes(made, groups=False)
    add_layouts(made, "nt")
    add_dtype(made)
    made.add_argument(
        "--plan", type=parse_plan, help="plan of both kernels; default by the cost model"
    )
    made.add_argument("--no-torch", dest="torch", action="store_false", help="do not time PyTorch")
    made.add_argument(
        "--max-autotune",
        dest="mode",
        action="store_const",
        const="max-autotune-no-cudagraphs",
        default="default",
        help="compile PyTorch's functions with mode='max-autotune-no-cudagraphs'",
    )
    add_target(made)
    add_sampling(made, rounds=9, seconds=0.003, regime="sustained")
    add_time_limit(made, 3.0)
    add_results(made)
    return made


def measure(options: argparse.Namespace, record: dict[str, Any], console: Console) -> None:
    """Time all problems; writes the record after each one."""
    path = result_path(options.results, record)
    rows: list[Row] = record["rows"]
    epilogue = trace_epilogue()
    jobs = [(shape, layout) for layout in options.layouts for shape in options.shapes]
    with Monitor() as monitor, progress_bars(console) as progress:
        task = progress.add_task("problems", total=len(jobs))
        budget = TimeBudget(options.time_limit, len(jobs))
        for shape, layout in jobs:
            progress.update(task, description=f"{shape.size} {layout}")
            plan = options.plan or plan_for(shape, layout, options.dtype, epilogue)
            contenders = [
                *kernels(plan, options.dtype, layout, options.target, epilogue),
                FusedLibrary(epilogue),
                *(torch_peers(options.mode) if options.torch else ()),
            ]
            problem = EpilogueProblem(shape, layout, options.dtype)
            rows += compete(
                contenders,
                problem,
                options,
                regimes=[options.regime],
                deadline=budget.next_deadline(),
                device_state=monitor.since,
                check=check_of(problem),
            )
            del problem
            record["means"] = summary(costs(rows))
            write(path, record)
            progress.advance(task)
    show(rows, console)
    console.print(f"written to {path}", highlight=False, soft_wrap=True)


def main() -> None:
    """Run `python -m benchmarks epilogue`."""
    options = parse_for_gpu(parser())
    options.shapes = options.shapes or [parse_shape(text) for text in SHAPES]
    record: dict[str, Any] = {
        **environment("epilogue"),
        "dtype": options.dtype,
        "epilogue": "gelu_tanh(acc + bias[n]) + residual[m, n]",
        "torch_compile_mode": options.mode,
        "means": {},
        "rows": [],
    }
    measure(options, record, make_console())
    exit_if_wrong(record["rows"])


if __name__ == "__main__":
    main()
