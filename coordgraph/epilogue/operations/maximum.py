"""The epilogue operation `maximum`: the larger of two values."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.epilogue.values import Argument, Constants

__all__ = ["Maximum", "maximum"]


class Maximum(Elementwise):
    """The larger of two values; NaN if either value is NaN."""

    name = "maximum"
    arity = 2
    floating = False

    def fold(self, arguments: tuple[Argument, ...], constants: Constants) -> Argument | None:
        """Fold `maximum(x, x)` to x; None for other arguments."""
        x, y = arguments
        return x if x == y else None

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if both arguments of `maximum` are known to be 0: then the result is 0."""
        return all(zeros)

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `maximum` on NumPy arrays; generated code is tested against the result."""
        import numpy as np

        a, b = arguments
        return np.maximum(a, b)

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit `max.NaN.f32` for f32 on a GPU; otherwise compare and select, and select a NaN."""
        a, b = arguments
        if emit.gpu and kind == "f32":
            return emit.intrinsic("llvm.maximum", kind, a, b)
        chosen = emit.select(emit.compare(kind, ">", a, b), a, b)
        if kind == "i32":
            return chosen
        return emit.select(emit.compare(kind, "!=", a, a), a, chosen)


maximum = Maximum()
