"""A GEMM problem with an epilogue: D = gelu(A · B + bias) + residual, and its result in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks.problems.problem import Problem, torch_dtype
from benchmarks.problems.shapes import Shape

__all__ = ["EpilogueProblem", "trace_epilogue"]

GELU_SLOPE = 1.13
"""The steepest slope of GELU, which bounds how much it amplifies an error of its argument."""
TANH_ERROR = 2.0**-10
"""Twice the relative error of `tanh.approx.f32`, which is 2^-11 (PTX ISA, "tanh")."""


def trace_epilogue() -> Any:
    """The epilogue function of coordgraph's kernels: gelu(A·B + bias) + residual.

    The bias has one element per column of D, the residual one per element.

    Raises:
        ImportError: this version of coordgraph has no epilogues.
    """
    from coordgraph import epilogue as ep  # pyright: ignore[reportAttributeAccessIssue]

    @ep.epilogue(bias="n", residual="mn")
    def bias_gelu_residual(acc: Any, bias: Any, residual: Any) -> Any:
        return ep.gelu(acc + bias, approximate="tanh") + residual

    return bias_gelu_residual


def gelu(x: Any) -> Any:
    """The tanh approximation of GELU, elementwise, for arrays of any library.

    >>> import numpy as np
    >>> [round(float(y), 4) for y in gelu(np.array([-1.0, 0.0, 1.0]))]
    [-0.1588, 0.0, 0.8412]
    """
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    # tanh is computed by an exponential, which every library's arrays support; abs avoids overflow.
    decay = math.e ** (-2 * abs(inner))
    tanh = (1 - decay) / (1 + decay)
    return 0.5 * x * (1 + tanh * (2 * (inner > 0) - 1))


class EpilogueProblem(Problem):
    """The problem D = gelu(A·B + bias) + residual, with several sets of operands.

    A contender's function is called as `run(a, b, out, bias, residual)`.

    Args:
        shape: the extents m, n and k.
        layout: how A and B are stored, one of `LAYOUTS`.
        dtype: the element type of all operands, one of `DTYPES`.
    """

    def __init__(self, shape: Shape, layout: str, dtype: str) -> None:
        super().__init__(shape, layout, dtype)
        kind = torch_dtype(dtype)

        def normal(*extents: int) -> Any:
            return self.torch.randn(*extents, device="cuda", dtype=kind)

        # The bias has the magnitude of A · B, so that a check notices if the bias is left out.
        self.operands = [
            (math.sqrt(shape.k) * normal(shape.n), normal(shape.m, shape.n)) for _ in self.sets
        ]
        bias, residual = self.operands[0]
        self.argument = self.exact + bias.double()
        self.activated = gelu(self.argument)
        self.result = self.activated + residual[self.rows].double()

    def launch(self, run: Any, number: int) -> None:
        """Call `run`, a function that enqueues a contender's kernels, on operand set `number`."""
        run(*self.sets[number], *self.operands[number])

    def epilogue_fault(
        self, compute: Callable[[], Any], *, rounded_steps: bool = False
    ) -> str | None:
        """Check the D that `compute` writes; returns what is wrong, or None if it is right.

        Args:
            compute: a function that writes D of the first set of operands.
            rounded_steps: True if the result of each operation may be rounded to D's type, as
                PyTorch's separate kernels do.
        """
        error = GELU_SLOPE * self.sum_error(rounded_partials=rounded_steps)
        error += TANH_ERROR * self.argument.abs()
        error += self.rounding * self.result.abs()
        if rounded_steps:
            # PyTorch rounds A · B, the sum with the bias, and GELU's result. The first two rounding
            # errors pass through GELU; `before` is the sum of the magnitudes of these two values.
            before = self.exact.abs() + self.argument.abs()
            error += self.rounding * (GELU_SLOPE * before + self.activated.abs())
        return self.differs(compute, self.result, error)
