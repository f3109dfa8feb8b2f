"""The epilogue operation `sqrt`: the square root."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Sqrt", "sqrt"]


class Sqrt(Elementwise):
    """The square root of an f32 or f64 value; NaN for negative values.

    The result is rounded to nearest. If all outputs are 16-bit floats, a GPU uses
    `sqrt.approx.f32`, whose relative error is at most 2^-23 (PTX ISA, "sqrt").
    """

    name = "sqrt"
    temporaries = 1

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if the argument of `sqrt` is known to be 0: then the result is 0."""
        return zeros[0]

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `sqrt` on NumPy arrays; generated code is tested against the result."""
        import numpy as np

        return np.sqrt(arguments[0])

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit one PTX or LLVM instruction for `sqrt`, which ptxas may expand to several."""
        if emit.gpu and emit.fast:
            return emit.asm("sqrt.approx.f32", *arguments)
        return emit.intrinsic("llvm.sqrt", kind, *arguments)


sqrt = Sqrt()
