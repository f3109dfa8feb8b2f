"""What keeps kernels busy: profiler counters of `codegen.matmul` and cuBLAS, on a GPU with ncu.

    python -m benchmarks counters --layouts nt
    python -m benchmarks counters --groups D --shapes 512x512x65536

Each multiplies once, with an empty L2 cache and no other load, so the clock is higher than in
`gemm`; compare cycles rather than seconds. Columns: cycles of the GPU's clusters of SMs; the share
of the tensor cores' peak while SMs are active, of the longest kernel; the shares of the peak of
memory and of the L2 cache; and how often a sector that the L2 cache is asked for is delivered,
more than once by multicast, and where SMs of a GPC ask for it together.

Rates of a whole GPU, of SMs that have nothing to do among them. cuBLAS may need several kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import ncu
from benchmarks.contenders import COORDGRAPH, CUBLAS
from benchmarks.gemm import LAYOUTS
from benchmarks.ncu import Profiled
from benchmarks.options import command_line
from benchmarks.problem import DTYPES, as_multiplied, operands
from benchmarks.record import RESULTS, environment, key_of, result_path, write
from benchmarks.report import Row, console_here
from benchmarks.shapes import GROUPS, Shape, chosen, shape
from codegen.nvptx.driver import unavailable

__all__ = ["METRICS", "rows_of"]

CYCLES, SECONDS = "gpc__cycles_elapsed.max", "gpu__time_duration.sum"
TENSOR = "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active"
MEMORY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
CACHE = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
DELIVERED, ASKED = "l1tex__m_xbar2l1tex_read_sectors.sum", "lts__t_sectors_srcunit_tex.sum"
METRICS = (CYCLES, SECONDS, TENSOR, MEMORY, CACHE, DELIVERED, ASKED)
MARKED = ("--profile-from-start", "off")
"""Only what the program marks: warming up is not counted."""
OURS = "gemm"
"""The name of our kernels."""


def rows_of(problems: Iterable[Row], launches: Sequence[Profiled]) -> list[Row]:
    """A row for each problem and contender: on every problem one kernel of ours, then cuBLAS's.

    Raises:
        NoCounters: the launches are not those.
    """
    begins = [i for i, launch in enumerate(launches) if launch.kernel.partition("(")[0] == OURS]
    ends = [*begins[1:], len(launches)]
    found: list[Row] = []
    problems = list(problems)
    if len(begins) != len(problems) or begins[:1] != [0]:
        raise ncu.NoCounters(
            f"ncu counted {len(begins)} kernels of ours on {len(problems)} problems"
        )
    for problem, begin, end in zip(problems, begins, ends, strict=True):
        ours, theirs = launches[begin : begin + 1], launches[begin + 1 : end]
        if not theirs:
            raise ncu.NoCounters(f"ncu counted no kernel of {CUBLAS} on {problem}")
        plan = problem["plan"]
        size = {name: value for name, value in problem.items() if name != "plan"}
        found.append({**size, "name": COORDGRAPH, "plan": plan, **_figures(ours)})
        found.append({**size, "name": CUBLAS, **_figures(theirs)})
    return found


def _figures(launches: Sequence[Profiled]) -> Row:
    """Sums over kernels, and shares of the longest one."""

    def total(name: str) -> float:
        return sum(launch.values[name] for launch in launches)

    longest = max(launches, key=lambda launch: launch.values[CYCLES]).values
    return {
        "kernels": [launch.kernel for launch in launches],
        "cycles": round(total(CYCLES)),
        "seconds": float(f"{total(SECONDS):.5g}"),
        "tensor_active": round(longest[TENSOR] / 100, 4),
        "memory": round(longest[MEMORY] / 100, 4),
        "l2": round(longest[CACHE] / 100, 4),
        "delivered": round(total(DELIVERED) / max(total(ASKED), 1), 3),
    }


def launch_all(jobs: dict[str, Any], done: Path) -> None:
    """Multiply every problem once by each, between marks for the profiler."""
    import torch

    import codegen
    from codegen.dispatch import chosen as chosen_plan

    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with done.open("w", encoding="utf-8") as lines:
        for row in jobs["problems"]:
            if time.time() >= jobs["until"]:
                return
            size = Shape("", row["m"], row["n"], row["k"])
            a, b, out = operands(size, row["layout"], jobs["dtype"])
            a, b = as_multiplied(a, b, row["layout"])
            for warm in (True, False):
                if not warm:
                    runtime.cudaProfilerStart()
                codegen.matmul(a, b, out=out)
                torch.cuda.synchronize()
                torch.matmul(a, b, out=out)
                torch.cuda.synchronize()
            runtime.cudaProfilerStop()
            lines.write(json.dumps({**row, "plan": str(chosen_plan(a, b))}) + "\n")
            lines.flush()
            del a, b, out


def table(rows: Sequence[Row]) -> Table:
    """The rows, a line for each."""
    made = Table("problem", "", "cycles", "of cuBLAS", "tensor", "memory", "L2", "delivered")
    theirs = {key_of(row): row["cycles"] for row in rows if row["name"] == CUBLAS}
    for row in rows:
        shares = (f"{row[name]:.1%}" for name in ("tensor_active", "memory", "l2"))
        speed = theirs[key_of(row)] / row["cycles"]
        made.add_row(
            f"{row['m']}x{row['n']}x{row['k']} {row['layout']}", row["name"], f"{row['cycles']:,}",
            f"{speed:.3f}", *shares, f"{row['delivered']:.2f}",
        )  # fmt: skip
    return made


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("counters", __doc__)
    made.add_argument("--groups", nargs="+", choices=list(GROUPS))
    made.add_argument("--shapes", type=shape, nargs="+", metavar="MxNxK")
    made.add_argument("--layouts", nargs="+", default=["nt"], choices=LAYOUTS)
    made.add_argument("--dtype", default="bf16", choices=list(DTYPES))
    made.add_argument("--time-limit", type=float, default=2.0, metavar="MINUTES")
    made.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    return made


def main() -> None:
    made = parser()
    options = made.parse_args()
    if options.time_limit <= 0:
        made.error("--time-limit must be positive")
    if reason := unavailable():
        sys.exit(f"this needs a GPU: {reason}")
    record = environment("counters")
    problems = [
        {"m": one.m, "n": one.n, "k": one.k, "layout": layout, "group": group}
        for group, one in chosen(options.groups, options.shapes)
        for layout in options.layouts
    ]
    console = console_here()
    console.print(f"{len(problems)} problems, each profiled once by ncu", highlight=False)
    jobs = {"dtype": options.dtype, "problems": problems}
    try:
        text, done = ncu.profile(
            "benchmarks.counters", jobs, 60 * options.time_limit, METRICS, MARKED
        )
        rows = rows_of(done, ncu.read(text, METRICS))
    except ncu.NoCounters as error:
        sys.exit(f"no counters: {error}")
    console.print(table(rows))
    if len(done) < len(problems):
        console.print(f"the time limit left out {len(problems) - len(done)} problems")
    path = result_path(options.results, record)
    write(path, {**record, "dtype": options.dtype, "rows": rows})
    console.print(f"written to {path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    todo, lines_of = map(Path, sys.argv[1:])
    launch_all(json.loads(todo.read_text(encoding="utf-8")), lines_of)
