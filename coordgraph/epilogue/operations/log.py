"""The epilogue operation `log`: the natural logarithm."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Log", "log"]


LN_2 = 0.6931471805599453


class Log(Elementwise):
    """The natural logarithm of an f32 or f64 value; NaN for negative values.

    A GPU uses `lg2.approx.f32`: its absolute error is at most 2^-22 for values between 1/2 and 2,
    and its relative error at most 2^-21 elsewhere (PTX ISA, "lg2").
    """

    name = "log"
    temporaries = 1

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `log` on NumPy arrays; generated code is tested against the result."""
        import numpy as np

        return np.log(arguments[0])

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit `lg2` and a product on a GPU, else a call of the C library's `log`."""
        (a,) = arguments
        if not emit.gpu:
            return emit.library("log", kind, a)
        return emit.mul(kind, emit.asm("lg2.approx.f32", a), emit.constant(LN_2, kind))


log = Log()
