"""The epilogue operation `exp`: the exponential function."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Exp", "exp"]


LOG2_E, LOG2_E_REST, LN_2 = 1.44269502162933349609375, 1.92596298909109e-08, 0.693147182464599609375
"""LOG2_E: 1 / ln 2 rounded to f32. LOG2_E_REST: the error of that rounding. LN_2: ln 2 rounded to
f32."""
FAR = 126.0
"""Largest |a / ln 2| for which `exp` corrects the rounding of a / ln 2.

For larger |a / ln 2|, the result in f32 is close to overflow or underflow.
"""


class Exp(Elementwise):
    """The exponential function: e to the power of a.

    A GPU uses `ex2.approx.ftz.f32`, whose relative error is at most 2^-22 (PTX ISA, "ex2"; results
    below 2^-126 are 0). If all outputs are 16-bit floats, the rounding of `a / ln 2` adds a
    relative error of |a| * 2^-23.5. Otherwise that rounding is corrected, and the relative error is
    at most 2^-21.
    """

    name = "exp"
    temporaries = 2

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `exp` on NumPy arrays; generated code is tested against the result."""
        import numpy as np

        return np.exp(arguments[0])

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit a product and `ex2` on a GPU, else a call of the C library's `exp`."""
        (a,) = arguments
        if not emit.gpu:
            return emit.library("exp", kind, a)
        scale = emit.constant(LOG2_E, kind)
        power = emit.mul(kind, a, scale)
        result = emit.asm("ex2.approx.ftz.f32", power)
        if emit.fast:
            return result
        # exp(a) = 2^power * 2^rest, and 2^rest is about 1 + rest * ln 2 because rest is tiny.
        rest = emit.intrinsic("llvm.fma", kind, a, scale, emit.neg(kind, power))
        rest = emit.intrinsic("llvm.fma", kind, a, emit.constant(LOG2_E_REST, kind), rest)
        more = emit.mul(kind, rest, emit.constant(LN_2, kind))
        better = emit.intrinsic("llvm.fma", kind, result, more, result)
        size, far = emit.intrinsic("llvm.fabs", kind, power), emit.constant(FAR, kind)
        return emit.select(emit.compare(kind, "<", size, far), better, result)


exp = Exp()
