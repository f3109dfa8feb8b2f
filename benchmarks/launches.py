"""Launch kernels once each under a profiler: `python -m benchmarks.launches JOBS DONE`.

`benchmarks.counting.ncu` starts this module. JOBS is a JSON file with an element type, a layout, a
target, problems with the plans to launch on each, and the time (by `time.time`) after which no
launch starts. After every launch a line of JSON is written to the file DONE; plans that cannot be
compiled or launched have no line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.plans import build, gemm_of_layout, parse_plan
from benchmarks.problems.problem import operands
from benchmarks.problems.shapes import Shape
from coordgraph import CoordGraphError

__all__ = ["launch_all"]


def launch_all(
    jobs: dict[str, Any],
    report: Callable[[dict[str, str]], None],
    synchronize: Callable[[], None],
    *,
    clock: Callable[[], float] = time.time,
) -> None:
    """Launch every plan in JOBS, one launch each, on the problem for which JOBS lists the plan.

    Args:
        jobs: the contents of the JSON file JOBS; see the module's docstring.
        report: a function called after each launch with its problem size and its plan.
        synchronize: a function that waits for the GPU.
        clock: a function that returns the time in seconds, as `time.time`; tests replace it.
    """
    kernels: dict[str, Any] = {}
    for one in jobs["problems"]:
        shape = Shape(one["size"], one["m"], one["n"], one["k"])
        if clock() >= jobs["until"]:
            return
        a, b, out = operands(shape, jobs["layout"], jobs["dtype"])
        for text in one["plans"]:
            plan = parse_plan(text)
            try:
                if plan.kernel not in kernels:
                    gemm = gemm_of_layout(jobs["dtype"], jobs["layout"])
                    kernels[plan.kernel] = build(plan, gemm, jobs["target"])
                if clock() >= jobs["until"]:
                    return
                kernels[plan.kernel](a, b, out=out, workgroups=plan.workgroups)
            # skip the plan: `benchmarks` reports the error when it times the plan
            except CoordGraphError:
                continue
            synchronize()
            report({"size": one["size"], "plan": text})
        del a, b, out


def main() -> None:
    """Run `python -m benchmarks.launches JOBS DONE`."""
    import torch

    jobs_file, done_file = map(Path, sys.argv[1:])
    with done_file.open("w", encoding="utf-8") as lines:

        def report(launch: dict[str, str]) -> None:
            lines.write(json.dumps(launch) + "\n")
            lines.flush()

        jobs = json.loads(jobs_file.read_text(encoding="utf-8"))
        launch_all(jobs, report, torch.cuda.synchronize)


if __name__ == "__main__":
    main()
