"""The epilogue operation `neg`: negation."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Neg", "neg"]


class Neg(Elementwise):
    """The negative `-a` of an f32, f64 or i32 value."""

    name = "neg"
    floating = False

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if the argument of `neg` is known to be 0: then the result is 0."""
        return zeros[0]

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """True, because the negative of an affine function of `acc` is affine."""
        return True

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `neg` on NumPy arrays; generated code is tested against the result."""
        return -arguments[0]

    def text(self, *arguments: str, **constants: Any) -> str:
        """The C expression of `neg` for pseudo-code, from the texts of the arguments."""
        return f"(-{arguments[0]})"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit the single instruction that computes `neg`."""
        return emit.neg(kind, *arguments)


neg = Neg()
