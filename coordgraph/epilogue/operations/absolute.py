"""The epilogue operation `abs`: the absolute value."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Abs", "abs"]


class Abs(Elementwise):
    """The absolute value `|a|` of f32, f64 or i32."""

    name = "abs"
    floating = False

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the argument of `abs` is known to be 0, and so the result as well."""
        return zeros[0]

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `abs` on NumPy arrays; generated code is tested against the result."""
        import numpy as np

        return np.abs(arguments[0])

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit `llvm.fabs` for floats; a comparison, a negation and a select for i32."""
        (a,) = arguments
        if kind == "i32":
            zero = emit.constant(0, kind)
            return emit.select(emit.compare(kind, "<", a, zero), emit.sub(kind, zero, a), a)
        return emit.intrinsic("llvm.fabs", kind, a)


abs = Abs()
