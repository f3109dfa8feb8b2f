"""Measure SwiGLU layers, silu(X · gateᵀ) * (X · upᵀ), against PyTorch's operators.

    python -m benchmarks gated                                # 12 layers, about 3 minutes
    python -m benchmarks gated --shapes 512x14336x4096

A layer MxNxK has M tokens, N outputs and K inputs; its weight has 2·N rows, the gate's first.
Contenders, timed in turn:

  coordgraph     codegen.matmul with the epilogue SwiGLU: one kernel
  torch eager    F.linear, chunk, F.silu and a multiplication
  torch.compile  the same, compiled with mode="max-autotune" (needs Triton)

All results are compared with a product in f32 for some tokens first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console

import codegen
from benchmarks.options import (
    add_results,
    add_sampling,
    add_shapes,
    add_time_limit,
    command_line,
    require_positive,
)
from benchmarks.problems.shapes import Shape, parse_shape
from benchmarks.reports.console import make_console, progress_bars
from benchmarks.reports.layer_speeds import means, show
from benchmarks.reports.record import environment, result_path, write
from benchmarks.timing.ways import OURS, time_ways
from coordgraph import epilogue as ep

__all__ = ["main"]

SHAPES = (
    *("16x14336x4096", "64x8192x3584", "128x11008x4096", "256x14336x4096"),
    *("512x8192x2048", "512x14336x4096", "1024x11008x4096", "2048x8192x3072"),
    *("2048x14336x4096", "4096x11008x4096", "4096x14336x4096", "8192x8192x3072"),
)
"""Feed-forward layers of public language models, from decoding to training."""
CHECKED, BOUND = 16, 3e-2
"""CHECKED: number of tokens whose outputs are compared with a product in f32. BOUND: the largest
error of an output, as a fraction of the largest output."""


@ep.epilogue()
def swiglu(gate: Any, up: Any) -> Any:
    """The activation of a feed-forward layer."""
    return ep.silu(gate) * up


class Problem:
    """The tensors of a layer, and by name the contenders' functions that compute it."""

    def __init__(self, shape: Shape, compiled: bool) -> None:
        import torch
        from torch.nn import functional

        def eager(x: Any, weight: Any) -> Any:
            gate, up = functional.linear(x, weight).chunk(2, -1)
            return functional.silu(gate) * up

        m, n, k = shape.m, shape.n, shape.k
        self.x = x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        self.weight = weight = torch.randn(2 * n, k, device="cuda", dtype=torch.bfloat16) * k**-0.5
        self.ways: dict[str, Callable[[], Any]] = {
            OURS: lambda: codegen.matmul(x, weight, transpose_b=True, epilogue=swiglu),
            "torch eager": lambda: eager(x, weight),
        }
        if compiled:
            torch._dynamo.reset()
            # torch.compile makes no CUDA graph: each contender is captured in one when timed.
            made: Any = torch.compile(eager, mode="max-autotune-no-cudagraphs", dynamic=False)
            self.ways["torch.compile"] = lambda: made(x, weight)

    def fault(self, compute: Callable[[], Any]) -> str | None:
        """What is wrong with the result of the contender `compute`; None if it is right."""
        import torch

        found = compute()[:CHECKED].float()
        gate, up = (self.x[:CHECKED].float() @ self.weight.float().T).chunk(2, -1)
        exact = torch.nn.functional.silu(gate) * up
        error = float((found - exact).abs().max() / exact.abs().max())
        return None if error <= BOUND else f"the largest error is {error:.3g} of the largest output"


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks gated`."""
    made = command_line("gated", __doc__)
    add_shapes(made, groups=False)
    made.add_argument(
        "--no-compile", dest="compiled", action="store_false", help="do not time torch.compile"
    )
    add_sampling(made, rounds=7, seconds=0.003, regime="sustained")
    add_time_limit(made, 3.0)
    add_results(made)
    return made


def measure(options: argparse.Namespace, record: dict[str, Any], console: Console) -> None:
    """Time all layers; writes the record after each one."""
    from benchmarks.timing.budget import TimeBudget

    path = result_path(options.results, record)
    with progress_bars(console) as progress:
        task = progress.add_task("layers", total=len(options.shapes))
        budget = TimeBudget(options.time_limit, len(options.shapes))
        for shape in options.shapes:
            progress.update(task, description=shape.size)
            problem = Problem(shape, options.compiled)
            row = time_ways(problem.ways, problem.fault, options, budget.next_deadline())
            record["rows"].append({"name": shape.size, **row})
            record["means"] = means(record["rows"])
            write(path, record)
            progress.advance(task)
    show(record["rows"], "SwiGLU", console)
    console.print(f"written to {path}", highlight=False, soft_wrap=True)


def main() -> None:
    """Run `python -m benchmarks gated`."""
    made = parser()
    options = made.parse_args()
    require_positive(made, options)
    from codegen.targets.nvptx.driver import unavailable

    if reason := unavailable():
        sys.exit(f"no GPU: {reason}; run this measure on a machine with an NVIDIA GPU")
    options.shapes = options.shapes or [parse_shape(text) for text in SHAPES]
    record: dict[str, Any] = {**environment("gated"), "means": {}, "rows": []}
    measure(options, record, make_console())
    if wrong := [f"{row['name']}: {row['faults']}" for row in record["rows"] if row["faults"]]:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
