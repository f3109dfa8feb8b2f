"""The epilogue operation `minimum`: the smaller of two values."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.epilogue.values import Argument, Constants

__all__ = ["Minimum", "minimum"]


class Minimum(Elementwise):
    """The smaller of two values; NaN if either value is NaN."""

    name = "minimum"
    arity = 2
    floating = False

    def fold(self, arguments: tuple[Argument, ...], constants: Constants) -> Argument | None:
        """Fold `minimum(x, x)` to x; None for other arguments."""
        x, y = arguments
        return x if x == y else None

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if both arguments of `minimum` are known to be 0: then the result is 0."""
        return all(zeros)

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `minimum` on NumPy arrays; generated code is tested against the result."""
        import numpy as np

        a, b = arguments
        return np.minimum(a, b)

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit `min.NaN.f32` for f32 on a GPU; otherwise compare and select, and select a NaN."""
        a, b = arguments
        if emit.gpu and kind == "f32":
            return emit.intrinsic("llvm.minimum", kind, a, b)
        chosen = emit.select(emit.compare(kind, "<", a, b), a, b)
        if kind == "i32":
            return chosen
        return emit.select(emit.compare(kind, "!=", a, a), a, chosen)


minimum = Minimum()
