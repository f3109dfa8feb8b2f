"""Addition."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Add", "add"]


class Add(Elementwise):
    """`a + b`."""

    name = "add"
    arity = 2
    floating = False

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the result is 0: it is where both arguments are 0."""
        return all(zeros)

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """True: a sum or difference of affine functions of `acc` is affine."""
        return True

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """The operation on NumPy arrays."""
        a, b = arguments
        return a + b

    def text(self, *arguments: str, **constants: Any) -> str:
        """The expression as C writes it, with an operator."""
        return f"({arguments[0]} + {arguments[1]})"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit one instruction."""
        return emit.add(kind, *arguments)


add = Add()
