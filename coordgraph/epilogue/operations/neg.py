"""Negation."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Neg", "neg"]


class Neg(Elementwise):
    """`-a`."""

    name = "neg"
    floating = False

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the result is 0: it is where the argument is 0."""
        return zeros[0]

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """True: the negative of an affine function of `acc` is affine."""
        return True

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """The operation on NumPy arrays."""
        return -arguments[0]

    def text(self, *arguments: str, **constants: Any) -> str:
        """The expression as C writes it, with an operator."""
        return f"(-{arguments[0]})"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit one instruction."""
        return emit.neg(kind, *arguments)


neg = Neg()
