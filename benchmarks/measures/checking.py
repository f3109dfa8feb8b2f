"""Measure how long the checks of a graph take, compared with building its kernel.

    python -m benchmarks checking --targets cpu sm_90a --json checking.json

Columns: `build`, a first build without checks; `check`, the default checks of the same graph;
`share`, the ratio `check` / `build`; `again`, the checks at a second build of the graph in the same
process; `all`, `graph.check(level="all")`. Times are CPU seconds, summed over all cores and
including ptxas; the on-disk cache of kernels is off. No GPU is needed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

import codegen
from benchmarks.options import command_line
from codegen.targets.nvptx import CudaKernel
from codegen.toolchain import assemble
from codegen.verified import check_once
from coordgraph import Gemm, KernelGraph, parse
from coordgraph.interpreter.program import program
from passes import Pipeline

COLUMNS = ("build", "check", "share", "again", "all")
SCHEDULES = (
    "data-parallel",
    "data-parallel{persistent=true,workgroups=132}",
    "stream-k",
    "stream-k{owner=last,workgroups=132}",
    "two-tile-stream-k",
    "stream-k{reduction=scatter}",
    "split-k{splits=4}",
    "heterogeneous-tiles",
    "rasterize{width=4,order=hilbert},stream-k",
)
TILE = (128, 128, 64)
TICK = 0.01
"""Length of one tick of the operating system's CPU-time clock, in seconds."""


def measure(schedule: str, target: str, *, thorough: bool = True) -> dict[str, float]:
    """Measure the columns of one row; `all` only if `thorough`.

    Args:
        schedule: the text of the pipeline.
        target: a target of `codegen.compile`.
        thorough: whether to time the level `all`.
    """
    text = Pipeline.parse(schedule)(Gemm("f16").graph(TILE), verify="structure").text()
    plain, checked = (parse(f'{text}log "{note} {target}"\n') for note in ("plain", "checked"))
    found = {"build": _seconds(lambda: _build(plain, target))}
    found["check"] = _seconds(lambda: check_once(checked))
    found["share"] = found["check"] / max(found["build"], TICK)
    found["again"] = _seconds(lambda: check_once(checked))
    if thorough:
        program.cache_clear()
        found["all"] = _seconds(lambda: checked.check(level="all").raise_if_refuted())
    return found


def _build(graph: KernelGraph, target: str) -> None:
    kernel = codegen.compile(graph, target, verify=False)
    # ptxas is timed because the CUDA driver assembles PTX in the same way
    if isinstance(kernel, CudaKernel):
        assemble(kernel.ptx, target)


def _seconds(step: Callable[[], object]) -> float:
    gc.collect()  # so that garbage of earlier steps is not collected while this step is timed
    start = os.times()
    step()
    return sum(after - before for after, before in zip(os.times()[:4], start[:4], strict=True))


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks checking`."""
    made = command_line("checking", __doc__)
    made.add_argument("--targets", nargs="+", default=["cpu", "sm_80", "sm_90a"], metavar="TARGET")
    made.add_argument("--schedules", nargs="+", default=list(SCHEDULES), metavar="PIPELINE")
    made.add_argument("--quick", action="store_true", help="leave the level 'all' out")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE too")
    return made


def main() -> None:
    """Run `python -m benchmarks checking`."""
    options = parser().parse_args()
    os.environ["COORDGRAPH_CACHE"] = "off"
    for target in options.targets:  # one untimed run for each target, so that imports are not timed
        measure("data-parallel{persistent=true}", target, thorough=False)
    table = Table("target", "schedule", *COLUMNS, title="seconds of all cores")
    rows: list[dict[str, object]] = []
    for target in options.targets:
        for schedule in options.schedules:
            times = measure(schedule, target, thorough=not options.quick)
            rows.append({"target": target, "schedule": schedule, **times})
            shown = (
                f"{times[name]:.0%}" if name == "share" else f"{times[name]:.3f}"
                for name in COLUMNS
                if name in times
            )
            table.add_row(target, schedule, *shown)
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
