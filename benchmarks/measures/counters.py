"""Compare hardware counters of `codegen.matmul` and cuBLAS, read by Nsight Compute (`ncu`).

    python -m benchmarks counters --layouts nt
    python -m benchmarks counters --groups D --shapes 512x512x65536
    python -m benchmarks counters --shapes 48x4096x4096 --lt

Each contender runs once, with an empty L2 cache and no other load, so the clock is higher than in
`benchmarks gemm`: compare cycles rather than seconds. Columns:

  cycles     elapsed cycles of the GPCs
  of cuBLAS  cuBLAS's cycles divided by the contender's
  tensor     utilisation of the tensor cores while SMs are active
  memory     share of the memory's peak throughput
  L2         share of the L2 cache's peak throughput
  delivered  sectors that SMs receive per sector requested from the L2 cache: more than 1 with
             multicast, or if SMs of a GPC request the same sector at the same time; values a
             little below 1 occur

Throughputs are averages over the whole GPU, including idle SMs. If cuBLAS launches several kernels,
cycles are their sum, `delivered` is the ratio of the kernels' sums, and the other columns are those
of the longest kernel.

With `--lt`, the fastest of the algorithms that cuBLASLt proposes is a third contender. These
algorithms are timed before the profiler starts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.counting import ncu
from benchmarks.counting.ncu import Profiled
from benchmarks.options import (
    add_dtype,
    add_layouts,
    add_results,
    add_shapes,
    add_time_limit,
    command_line,
    parse_for_gpu,
)
from benchmarks.peers.contender import COORDGRAPH, CUBLAS, CUBLASLT
from benchmarks.problems.problem import Problem
from benchmarks.problems.shapes import Shape, select_shapes
from benchmarks.reports.console import make_console
from benchmarks.reports.record import environment, key_of, result_path, write
from benchmarks.reports.summary import Row

__all__ = ["METRICS", "rows_of"]

CYCLES, SECONDS = "gpc__cycles_elapsed.max", "gpu__time_duration.sum"
TENSOR = "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active"
MEMORY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
CACHE = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
DELIVERED, ASKED = "l1tex__m_xbar2l1tex_read_sectors.sum", "lts__t_sectors_srcunit_tex.sum"
METRICS = (CYCLES, SECONDS, TENSOR, MEMORY, CACHE, DELIVERED, ASKED)
MARKED = ("--profile-from-start", "off")
"""Options of ncu: count only between cudaProfilerStart and cudaProfilerStop, without warm-up."""
OURS = "gemm"
"""The name of coordgraph's kernels, without their parameters; cuBLAS's kernels have other names."""


def rows_of(
    problems: Iterable[Row], launches: Sequence[Profiled], peers: Sequence[str] = (CUBLAS,)
) -> list[Row]:
    """A row of the record for each problem and contender, from the launches that ncu counted.

    Args:
        problems: the problems in the order of their launches, with coordgraph's plan for each.
        launches: for each problem and peer one kernel of coordgraph, then one or more of the peer.
        peers: the names of the libraries; coordgraph's row is of its launch before the first.

    Raises:
        NoCounters: the launches are not one kernel of coordgraph, then those of a peer, for each
            problem and peer.
    """
    begins = [i for i, launch in enumerate(launches) if launch.kernel.partition("(")[0] == OURS]
    ends = [*begins[1:], len(launches)]
    found: list[Row] = []
    pairs = list(itertools.product(problems, peers))
    if len(begins) != len(pairs) or begins[:1] != [0]:
        raise ncu.NoCounters(
            f"ncu counted {len(begins)} kernels of coordgraph, needed are {len(pairs)}: one before "
            f"the kernels of {' and of '.join(peers)} for each problem; run the measure again"
        )
    for (problem, peer), begin, end in zip(pairs, begins, ends, strict=True):
        ours, theirs = launches[begin : begin + 1], launches[begin + 1 : end]
        if not theirs:
            raise ncu.NoCounters(
                f"ncu counted no kernel of {peer} on {problem}; run the measure again"
            )
        plan = problem["plan"]
        size = {name: value for name, value in problem.items() if name != "plan"}
        if peer == peers[0]:
            found.append({**size, "name": COORDGRAPH, "plan": plan, **_figures(ours)})
        found.append({**size, "name": peer, **_figures(theirs)})
    return found


def _figures(launches: Sequence[Profiled]) -> Row:
    """A contender's counters on one problem, from the launches of all its kernels.

    Cycles and seconds are sums over the kernels. `delivered` is the number of 32-byte sectors that
    the SMs received, divided by the number that they requested from the L2 cache, also summed over
    the kernels. The other values are those of the longest kernel.
    """

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
    """Run coordgraph and cuBLAS on every problem, once to warm up and once for the profiler.

    Args:
        jobs: what `main` wrote: the element type, the problems, and the time to stop.
        done: the file to which a line of JSON is written for every problem.
    """
    import torch

    import codegen
    from benchmarks.peers.libraries import CuBlas, CuBlasLt
    from codegen.call.matmul import chosen as chosen_plan

    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    peers = [CuBlasLt() if name == CUBLASLT else CuBlas() for name in jobs["peers"]]
    with done.open("w", encoding="utf-8") as lines:
        for row in jobs["problems"]:
            if time.time() >= jobs["until"]:
                return
            problem = Problem(Shape("", row["m"], row["n"], row["k"]), row["layout"], jobs["dtype"])
            stored_a, stored_b, out = problem.sets[0]
            a, b = problem.as_multiplied(stored_a, stored_b)
            runs = [peer.prepare(problem) for peer in peers]
            for warm in (True, False):
                if not warm:
                    runtime.cudaProfilerStart()
                for run in runs:
                    codegen.matmul(a, b, out=out)
                    torch.cuda.synchronize()
                    run(stored_a, stored_b, out)
                    torch.cuda.synchronize()
            runtime.cudaProfilerStop()
            lines.write(json.dumps({**row, "plan": str(chosen_plan(a, b))}) + "\n")
            lines.flush()
            del problem, stored_a, stored_b, a, b, out, runs


def table(rows: Sequence[Row]) -> Table:
    """A table of the GPU's hardware counters; each row of results, a profiled kernel, is a line."""
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
    """The argument parser of `python -m benchmarks counters`."""
    made = command_line("counters", __doc__)
    add_shapes(made)
    add_layouts(made, "nt")
    made.add_argument("--lt", action="store_true", help="also count cuBLASLt's fastest algorithm")
    add_dtype(made)
    add_time_limit(made, 2.0)
    add_results(made)
    return made


def main() -> None:
    """Run `python -m benchmarks counters`."""
    options = parse_for_gpu(parser())
    record = environment("counters")
    problems = [
        {"m": one.m, "n": one.n, "k": one.k, "layout": layout, "group": group}
        for group, one in select_shapes(options.groups, options.shapes)
        for layout in options.layouts
    ]
    console = make_console()
    console.print(f"{len(problems)} problems, each profiled once by ncu", highlight=False)
    peers = [CUBLAS, CUBLASLT] if options.lt else [CUBLAS]
    jobs = {"dtype": options.dtype, "problems": problems, "peers": peers}
    try:
        text, done = ncu.profile(
            "benchmarks.measures.counters", jobs, 60 * options.time_limit, METRICS, MARKED
        )
        rows = rows_of(done, ncu.read(text, METRICS), peers)
    except ncu.NoCounters as error:
        sys.exit(f"hardware counters could not be read: {error}")
    console.print(table(rows))
    if len(done) < len(problems):
        console.print(f"the time limit left out {len(problems) - len(done)} problems")
    path = result_path(options.results, record)
    write(path, {**record, "dtype": options.dtype, "rows": rows})
    console.print(f"written to {path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    # Reached if ncu runs this module, as `python -m benchmarks.measures.counters JOBS DONE`.
    jobs_file, done_file = map(Path, sys.argv[1:])
    launch_all(json.loads(jobs_file.read_text(encoding="utf-8")), done_file)
