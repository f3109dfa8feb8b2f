"""The epilogue operation `sigmoid`: the logistic function."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.epilogue.operations.exp import exp

__all__ = ["Sigmoid", "sigmoid"]


class Sigmoid(Elementwise):
    """The logistic function `1 / (1 + exp(-a))` of an f32 or f64 value.

    A GPU uses `exp` and `rcp.approx.ftz.f32`, which adds an error of 1 ulp (PTX ISA, "rcp"). The
    relative error is at most 2^-21 plus the relative error of `exp`.
    """

    name = "sigmoid"
    temporaries = 2

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `1 / (1 + exp(-a))` with NumPy's `exp`; generated code is tested against it."""
        import numpy as np

        (a,) = arguments
        one = np.ones((), a.dtype)
        return one / (one + np.exp(-a))

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit the exponential of -a, an addition of 1 and a reciprocal."""
        (a,) = arguments
        one = emit.constant(1.0, kind)
        below = emit.add(kind, exp.llvm(emit, kind, emit.neg(kind, a)), one)
        if emit.gpu:
            return emit.asm("rcp.approx.ftz.f32", below)
        return emit.div(kind, one, below)


sigmoid = Sigmoid()
