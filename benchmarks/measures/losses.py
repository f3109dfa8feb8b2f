"""Measure the cross entropy of a language model's head, whose logits are not stored.

    python -m benchmarks losses                               # about 1 minute
    python -m benchmarks losses --shapes 8192x32000x4096

A problem MxNxK has M tokens, N classes and K inputs of each token. Contenders, timed in turn:

  coordgraph     codegen.torch.cross_entropy: the product's epilogue reduces each row of logits
  torch eager    F.linear in bf16, then F.cross_entropy of its logits
  torch.compile  the same, compiled by PyTorch (needs Triton)

Each problem is timed twice: the loss alone, and the loss with the gradients of the tokens and of
the weight. Losses are compared with logits in f32 for some tokens first. `MiB` is the most memory
that a contender allocated at once beside its arguments.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.options import (
    add_results,
    add_sampling,
    add_shapes,
    add_time_limit,
    command_line,
    parse_for_gpu,
)
from benchmarks.problems.layers import CHECKED
from benchmarks.problems.shapes import Shape, parse_shape
from benchmarks.reports.layer_speeds import measure
from benchmarks.timing.ways import OURS

__all__ = ["main"]

SHAPES = ("4096x128256x4096", "8192x32000x4096", "2048x151936x2048", "1024x128256x4096")
"""Tokens, classes and inputs of the heads of public language models."""
BOUND = 1e-2
"""The largest error of a loss. PyTorch's contenders round logits of magnitude 4 to bf16."""


class Problem:
    """The tensors of a head, and by name the contenders' functions that compute its loss.

    Args:
        shape: numbers of tokens, classes and inputs.
        gradients: whether gradients of the tokens and of the weight are computed, too.
        compiled: whether torch.compile is timed.
    """

    def __init__(self, shape: Shape, gradients: bool, compiled: bool) -> None:
        import torch
        from torch.nn import functional

        from codegen.torch import cross_entropy

        def eager(x: Any, weight: Any, targets: Any) -> Any:
            return functional.cross_entropy(functional.linear(x, weight), targets, reduction="none")

        m, n, k = shape.m, shape.n, shape.k
        self.x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        self.weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * k**-0.5
        self.targets = torch.randint(n, (m,), device="cuda")
        for tensor in (self.x, self.weight):
            tensor.requires_grad_(gradients)
        self.grad = torch.full((m,), 1 / m, device="cuda")
        ours = partial(cross_entropy, reduction="none")
        losses: dict[str, Callable[..., Any]] = {OURS: ours, "torch eager": eager}
        if compiled:
            torch.compiler.reset()
            losses["torch.compile"] = torch.compile(eager, dynamic=False)
        self.ways = {name: partial(self._compute, loss) for name, loss in losses.items()}
        self.peak_bytes: dict[str, int] = {}

    def _compute(self, loss: Callable[..., Any]) -> Any:
        """The losses of all tokens; computes gradients as well if the tensors require them."""
        import torch

        found = loss(self.x, self.weight, self.targets)
        if found.requires_grad:
            torch.autograd.grad(found, (self.x, self.weight), self.grad.to(found.dtype))
        return found.detach()

    def fault(self, compute: Callable[[], Any]) -> str | None:
        """What is wrong with a contender's losses; None if they are right. Measures its memory."""
        import torch

        compute()  # compiles kernels, and makes the workspaces that later calls keep
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = compute()
        name = next(name for name, way in self.ways.items() if way is compute)
        self.peak_bytes[name] = torch.cuda.max_memory_allocated() - before
        rows = slice(CHECKED)
        logits = self.x[rows].detach().float() @ self.weight.detach().float().T
        exact = torch.nn.functional.cross_entropy(logits, self.targets[rows], reduction="none")
        error = float((found[rows].float() - exact).abs().max())
        return None if error <= BOUND * float(exact.abs().max()) else f"a loss is off by {error:g}"


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks losses`."""
    made = command_line("losses", __doc__)
    add_shapes(made, groups=False)
    made.add_argument(
        "--no-compile", dest="compiled", action="store_false", help="do not time torch.compile"
    )
    add_sampling(made, rounds=7, seconds=0.02, regime="sustained")
    # Calls last milliseconds, so the host is ahead; PyTorch's gradients need no capture then.
    made.set_defaults(graphs=False)
    add_time_limit(made, 3.0)
    add_results(made)
    return made


def main() -> None:
    """Run `python -m benchmarks losses`."""
    options = parse_for_gpu(parser())
    shapes = options.shapes or [parse_shape(text) for text in SHAPES]
    jobs = {
        f"{shape.size}{', with gradients' if gradients else ''}": partial(
            Problem, shape, gradients, options.compiled
        )
        for shape in shapes
        for gradients in (False, True)
    }
    measure("losses", "cross entropy", jobs, options)


if __name__ == "__main__":
    main()
