"""The epilogue operation `rsqrt`: the reciprocal square root."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Rsqrt", "rsqrt"]


class Rsqrt(Elementwise):
    """The reciprocal square root `1 / sqrt(a)` of an f32 or f64 value.

    A GPU uses `rsqrt.approx.f32`, whose relative error is at most 2^-22.4 (PTX ISA, "rsqrt").
    """

    name = "rsqrt"

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `1 / sqrt(a)` by a square root and a division, which rounds the result twice."""
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
