"""Measure how much slower calls are if they choose among few kernels instead of all.

    python -m benchmarks family
    python -m benchmarks family --kernels 32 --m 1:8192 --n 4096 --k 14336
    python -m benchmarks family --time 30 --seed 7

`codegen.warm` builds a family of kernels, which the cost model selects for a range of sizes. The
table has a line for the first 1, 2, 4, … kernels of the family, with their loss: the predicted time
of the best of these kernels divided by that of the best of all plans, less 1. "selected for" is the
geometric mean of the loss over the sizes for which the family was selected, "unseen" the geometric
mean over sizes drawn with another seed, and "worst" the largest loss on an unseen size. With
--time N, the best kernel of the family, the best of all plans and cuBLAS are also timed in turn on
a GPU, on N unseen sizes.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.options import add_dtype, add_results, command_line
from benchmarks.peers.plans import compile_for, gemm_of_layout
from benchmarks.reports.console import make_console, progress_bars
from benchmarks.reports.record import environment, header, result_path, write
from benchmarks.reports.summary import geometric_mean
from coordgraph import Gemm
from passes.choosing import Plan, constants_of, rank
from passes.choosing.drawn_sizes import USUAL_EXTENTS, SizeRange, draw_sizes, parse_extents
from passes.choosing.kernel_family import COUNT, DRAWN, KernelFamily, choose_family, losses_of

__all__ = ["choices_of", "curve", "main", "parser"]

JUDGED = 400
"""Number of sizes over which the predicted loss of a family of kernels (its slowdown against the
best of all plans) is averaged. They are drawn independently of the sizes for which the family was
selected."""
UNSEEN, TIMED = 1000, 2000
"""Offsets added to --seed. The sizes for predictions are drawn with the seed --seed + UNSEEN, the
sizes that are timed with --seed + TIMED."""
Size = tuple[int, int, int]


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m benchmarks family`."""
    made = command_line("family", __doc__)
    for axis in "mnk":
        made.add_argument(
            f"--{axis}", type=parse_extents, default=USUAL_EXTENTS, metavar="RANGE",
            help="an extent, or the smallest and the largest as 128:8192, which is the default",
        )  # fmt: skip
    made.add_argument(
        "--kernels", type=int, default=COUNT, help=f"number of kernels; default {COUNT}"
    )
    made.add_argument("--layout", default="nt", help="how A and B are stored; default nt")
    add_dtype(made)
    made.add_argument(
        "--drawn", type=int, default=DRAWN,
        help=f"number of sizes for which the kernels are selected; default {DRAWN}",
    )  # fmt: skip
    made.add_argument("--seed", type=int, default=0, help="seed of the unseen sizes; default 0")
    made.add_argument(
        "--time", type=int, default=0, metavar="N", help="time N unseen sizes on a GPU; default 0"
    )
    add_results(made)
    return made


def curve(family: KernelFamily, problem: Gemm, sizes: tuple[Size, ...]) -> list[dict[str, float]]:
    """Predicted losses if only the first 1, 2, 4, …, 48, 96 or all kernels of a family are built.

    A loss is the predicted time of the best of these kernels divided by that of the best of all
    plans, less 1. Each item of the result is about one number of kernels (`kernels`). An item has
    the mean loss over the sizes for which the family was selected (`selected for`), and the mean
    and the largest loss over `sizes` (`unseen`, `worst`). A mean is the geometric mean of loss + 1,
    less 1.
    """
    losses = losses_of(family, problem, constants_of(), sizes)
    counts = sorted({*(2**i for i in range(int(math.log2(len(family))) + 1)), 48, 96, len(family)})
    return [
        {
            "kernels": count,
            "selected for": family.losses[count - 1],
            "unseen": float(np.expm1(np.log1p(losses[count - 1]).mean())),
            "worst": float(losses[count - 1].max()),
        }
        for count in counts
        if count <= len(family)
    ]


def choices_of(family: KernelFamily, problem: Gemm, sizes: tuple[Size, ...]) -> list[list[Plan]]:
    """For each size, two plans: the best of the family and the best of all, by the cost model."""
    found: list[list[Plan]] = []
    for m, n, k in sizes:
        sized = replace(problem, m=m, n=n, k=k)
        found.append([rank(sized, count=1, among=kernels)[0].plan for kernels in (family, None)])
    return found


def _timed(
    family: KernelFamily, options: argparse.Namespace, sizes: tuple[Size, ...], console: Console
) -> list[dict[str, Any]]:
    """Time two plans and cuBLAS in turn; return a row for each size.

    The first plan is the best by the cost model among the family's kernels, the second the best
    among all kernels.
    """
    from benchmarks.peers.compete import compete
    from benchmarks.peers.libraries import CuBlas
    from benchmarks.peers.ours import PlanKernel
    from benchmarks.problems.problem import Problem
    from benchmarks.problems.shapes import Shape

    problem = gemm_of_layout(options.dtype, options.layout)
    plans = choices_of(family, problem, sizes)
    each = [plan for pair in plans for plan in dict.fromkeys(pair)]
    kernels = {str(plan): kernel for plan, kernel in compile_for(each, problem, "native", _nothing)}
    rows: list[dict[str, Any]] = []
    sampling = SimpleNamespace(rounds=7, seconds=0.002, graphs=True)
    with progress_bars(console) as progress:
        for (m, n, k), pair in progress.track(
            [*zip(sizes, plans, strict=True)], description="time"
        ):
            ours = [PlanKernel(plan, kernels[str(plan)]) for plan in dict.fromkeys(pair)]
            made = Problem(Shape(f"{m}x{n}x{k}", m, n, k), options.layout, options.dtype)
            cublas = CuBlas()
            got = {row["name"]: row for row in compete([cublas, *ours], made, sampling)}
            named = {"cublas": cublas.name, "family": str(pair[0]), "free": str(pair[1])}
            seconds = {
                what: got[name]["seconds"]["median"]
                for what, name in named.items()
                if "seconds" in got[name]
            }
            problems = {
                what: got[name]["problem"] for what, name in named.items() if "problem" in got[name]
            }
            rows.append(
                {"m": m, "n": n, "k": k, "plans": [*map(str, pair)], "seconds": seconds}
                | ({"problems": problems} if problems else {})
            )
            del made
    return rows


def _nothing() -> None:
    return None


def _selected(options: argparse.Namespace, problem: Gemm, console: Console) -> KernelFamily:
    ranges = (SizeRange(options.m, options.n, options.k),)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("selecting kernels", total=options.drawn)
        return choose_family(
            problem,
            constants_of(),
            ranges,
            options.kernels,
            drawn=options.drawn,
            advance=lambda done, of: progress.update(task, completed=done, total=of),
        )


def main() -> None:
    """Run `python -m benchmarks family`."""
    made = parser()
    options = made.parse_args()
    if min(options.kernels, options.drawn) < 1 or options.time < 0:
        made.error("--kernels and --drawn must be positive, and --time must not be negative")
    console = make_console()
    problem = gemm_of_layout(options.dtype, options.layout)
    family = _selected(options, problem, console)
    found = curve(family, problem, draw_sizes(family.ranges, JUDGED, options.seed + UNSEEN))
    table = Table(*found[0], box=SIMPLE, title="predicted loss against the best of all plans")
    for row in found:
        count, *losses = row.values()
        table.add_row(f"{count:.0f}", *(f"{loss:.2%}" for loss in losses))
    console.print(table)
    record: dict[str, Any] = environment("family") if options.time else header("family")
    record |= {
        "ranges": [str(each) for each in family.ranges],
        "dtype": options.dtype,
        "layout": options.layout,
        "kernels": [plan.kernel for plan in family.kernels],
        "curve": found,
        "rows": [],
    }
    if options.time:
        sizes = draw_sizes(family.ranges, options.time, options.seed + TIMED)
        record["rows"] = rows = _timed(family, options, sizes, console)
        whole = [row["seconds"] for row in rows if len(row["seconds"]) == 3]
        for one, other in (("family", "free"), ("cublas", "family"), ("cublas", "free")):
            ratio = geometric_mean(each[one] / each[other] for each in whole)
            record[f"{one} / {other}"] = ratio
            console.print(f"time of {one} / {other}: {ratio:.4f}, {len(whole)} sizes")
    path: Path = result_path(options.results, record)
    write(path, record)
    console.print(f"written to {path}", soft_wrap=True)


if __name__ == "__main__":
    main()
