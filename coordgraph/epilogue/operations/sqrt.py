"""The square root."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Sqrt", "sqrt"]


class Sqrt(Elementwise):
    """The square root, NaN of negative numbers.

    Rounded to nearest; for 16-bit results a GPU takes `sqrt.approx.f32`, whose relative error is
    at most 2^-23 (PTX ISA, "sqrt").
    """

    name = "sqrt"
    temporaries = 1

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the result is 0: it is where the argument is 0."""
        return zeros[0]

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """The operation on NumPy arrays."""
        import numpy as np

        return np.sqrt(arguments[0])

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit one instruction; ptxas may expand it to a sequence."""
        if emit.gpu and emit.fast:
            return emit.asm("sqrt.approx.f32", *arguments)
        return emit.intrinsic("llvm.sqrt", kind, *arguments)


sqrt = Sqrt()
