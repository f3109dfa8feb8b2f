"""The reciprocal square root."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Rsqrt", "rsqrt"]


class Rsqrt(Elementwise):
    """`1 / sqrt(a)`.

    On a GPU `rsqrt.approx.f32`: relative error at most 2^-22.4 (PTX ISA, "rsqrt").
    """

    name = "rsqrt"

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """The reciprocal of the root, so the result is rounded twice."""
        import numpy as np

        (a,) = arguments
        return np.ones((), a.dtype) / np.sqrt(a)

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit `rsqrt.approx` on a GPU, else a square root and a division."""
        (a,) = arguments
        if emit.gpu:
            return emit.asm("rsqrt.approx.f32", a)
        return emit.div(kind, emit.constant(1.0, kind), emit.intrinsic("llvm.sqrt", kind, a))


rsqrt = Rsqrt()
