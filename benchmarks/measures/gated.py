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
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import codegen
from benchmarks.options import (
    add_results,
    add_sampling,
    add_shapes,
    add_time_limit,
    command_line,
    parse_for_gpu,
)
from benchmarks.problems.layers import CHECKED, fault_of, swiglu
from benchmarks.problems.shapes import Shape, parse_shape
from benchmarks.reports.layer_speeds import measure
from benchmarks.timing.ways import OURS

__all__ = ["main"]

SHAPES = (
    *("16x14336x4096", "64x8192x3584", "128x11008x4096", "256x14336x4096"),
    *("512x8192x2048", "512x14336x4096", "1024x11008x4096", "2048x8192x3072"),
    *("2048x14336x4096", "4096x11008x4096", "4096x14336x4096", "8192x8192x3072"),
)
"""Feed-forward layers of public language models, from decoding to training."""


class Problem:
    """The tensors of a layer, and by name the contenders' functions that compute it."""

    peak_bytes: Mapping[str, int] = {}

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
            torch.compiler.reset()
            # torch.compile makes no CUDA graph: each contender is captured in one when timed.
            made: Any = torch.compile(eager, mode="max-autotune-no-cudagraphs", dynamic=False)
            self.ways["torch.compile"] = lambda: made(x, weight)

    def fault(self, compute: Callable[[], Any]) -> str | None:
        """What is wrong with the result of the contender `compute`; None if it is right."""
        import torch

        found = compute()[:CHECKED].float()
        gate, up = (self.x[:CHECKED].float() @ self.weight.float().T).chunk(2, -1)
        exact = torch.nn.functional.silu(gate) * up
        return fault_of(found, exact)


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


def main() -> None:
    """Run `python -m benchmarks gated`."""
    options = parse_for_gpu(parser())
    shapes = options.shapes or [parse_shape(text) for text in SHAPES]
    jobs = {shape.size: partial(Problem, shape, options.compiled) for shape in shapes}
    measure("gated", "SwiGLU", jobs, options)


if __name__ == "__main__":
    main()
