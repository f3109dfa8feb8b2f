"""The larger of two values."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.epilogue.values import Argument, Constants

__all__ = ["Maximum", "maximum"]


class Maximum(Elementwise):
    """The larger of two values; NaN where one of them is NaN."""

    name = "maximum"
    arity = 2
    floating = False

    def fold(self, arguments: tuple[Argument, ...], constants: Constants) -> Argument | None:
        """`maximum(x, x)` folds to x."""
        x, y = arguments
        return x if x == y else None

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the result is 0: it is where both arguments are 0."""
        return all(zeros)

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """The operation on NumPy arrays."""
        import numpy as np

        a, b = arguments
        return np.maximum(a, b)

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit `max.NaN.f32` on a GPU; else select by a comparison, and once more for NaN."""
        a, b = arguments
        if emit.gpu and kind == "f32":
            return emit.intrinsic("llvm.maximum", kind, a, b)
        chosen = emit.select(emit.compare(kind, ">", a, b), a, b)
        if kind == "i32":
            return chosen
        return emit.select(emit.compare(kind, "!=", a, a), a, chosen)


maximum = Maximum()
