"""A GEMM problem with an epilogue: D = gelu(A · B + bias) + residual, and its result in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks.problems.problem import Problem, torch_dtype
from benchmarks.problems.shapes import Shape

__all__ = ["EpilogueProblem", "trace_epilogue"]

GELU_SLOPE = 1.13
"""The steepest slope of GELU: an error of its argument grows by no more than that."""
TANH_ERROR = 2.0**-10
"""Relative error of `tanh.approx.f32` (2^-11 by PTX's manual), twice."""


def trace_epilogue() -> Any:
    """The epilogue for our kernels: the bias has an element for each column, the residual for all.

    Raises:
        ImportError: this version of coordgraph has no epilogues.
    """
    from coordgraph import epilogue as ep  # pyright: ignore[reportAttributeAccessIssue]

    @ep.epilogue(bias="n", residual="mn")
    def bias_gelu_residual(acc: Any, bias: Any, residual: Any) -> Any:
        return ep.gelu(acc + bias, approximate="tanh") + residual

    return bias_gelu_residual


def gelu(x: Any) -> Any:
    """GELU by its tanh approximation, of a tensor.

    >>> import numpy as np
    >>> [round(float(y), 4) for y in gelu(np.array([-1.0, 0.0, 1.0]))]
    [-0.1588, 0.0, 0.8412]
    """
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    # tanh by the exponential function, for arrays of any library; abs avoids its overflow.
    decay = math.e ** (-2 * abs(inner))
    tanh = (1 - decay) / (1 + decay)
    return 0.5 * x * (1 + tanh * (2 * (inner > 0) - 1))


class EpilogueProblem(Problem):
    """A problem whose sets of operands also have a bias and a residual.

    Functions that compute it are called `run(a, b, out, bias, residual)`.

    Args:
        shape, layout, dtype: see `Problem`.
    """

    def __init__(self, shape: Shape, layout: str, dtype: str) -> None:
        super().__init__(shape, layout, dtype)
        kind = torch_dtype(dtype)

        def normal(*extents: int) -> Any:
            return self.torch.randn(*extents, device="cuda", dtype=kind)

        # The bias is as large as the sums of products, so that leaving it out would be seen.
        self.operands = [
            (math.sqrt(shape.k) * normal(shape.n), normal(shape.m, shape.n)) for _ in self.sets
        ]
        bias, residual = self.operands[0]
        self.argument = self.exact + bias.double()
        self.activated = gelu(self.argument)
        self.result = self.activated + residual[self.rows].double()

    def launch(self, run: Any, number: int) -> None:
        """Enqueue the product and the epilogue of one set of operands."""
        run(*self.sets[number], *self.operands[number])

    def epilogue_fault(
        self, compute: Callable[[], Any], *, rounded_steps: bool = False
    ) -> str | None:
        """Say what is wrong with the D that `compute` writes; None where it is right.

        Args:
            compute: writes D of the first set.
            rounded_steps: whether the result of each operation may be rounded to D's type, as
                PyTorch's separate kernels do.
        """
        error = GELU_SLOPE * self.sum_error(rounded_partials=rounded_steps)
        error += TANH_ERROR * self.argument.abs()
        error += self.rounding * self.result.abs()
        if rounded_steps:
            # The product and the sum with the bias are arguments of GELU; then its own result.
            before = self.exact.abs() + self.argument.abs()
            error += self.rounding * (GELU_SLOPE * before + self.activated.abs())
        return self.differs(compute, self.result, error)
