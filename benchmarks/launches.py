"""Launches kernels once each, for a profiler to look at: `python -m benchmarks.launches JOBS DONE`.

JOBS is a JSON file: a data type, a layout, a target, problems, each with the plans to launch on it,
and until when (by `time.time`) launches may begin. DONE gets a line of JSON for every launch, when
it has ended; what cannot be compiled or launched is left out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.plans import build, parse_plan
from benchmarks.plans import problem as any_size
from benchmarks.problem import operands
from benchmarks.shapes import Shape
from coordgraph import CoordGraphError

__all__ = ["launch_all"]


def launch_all(
    jobs: dict[str, Any],
    tell: Callable[[dict[str, str]], None],
    synchronize: Callable[[], None],
    *,
    clock: Callable[[], float] = time.time,
) -> None:
    """Launch every plan on its problems, one after another.

    Args:
        jobs: see above.
        tell: called with the size and the plan after each launch.
        synchronize: waits for what was launched.
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
                    gemm = any_size(jobs["dtype"], jobs["layout"])
                    kernels[plan.kernel] = build(plan, gemm, jobs["target"])
                if clock() >= jobs["until"]:
                    return
                kernels[plan.kernel](a, b, out=out, workgroups=plan.workgroups)
            except CoordGraphError:  # who times it meets it again, and reports it
                continue
            synchronize()
            tell({"size": one["size"], "plan": text})
        del a, b, out


def main() -> None:
    import torch

    todo, done = map(Path, sys.argv[1:])
    with done.open("w", encoding="utf-8") as lines:

        def tell(launch: dict[str, str]) -> None:
            lines.write(json.dumps(launch) + "\n")
            lines.flush()

        jobs = json.loads(todo.read_text(encoding="utf-8"))
        launch_all(jobs, tell, torch.cuda.synchronize)


if __name__ == "__main__":
    main()
