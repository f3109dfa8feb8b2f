"""The epilogue operation `add`: addition."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Add", "add"]


class Add(Elementwise):
    """The sum `a + b` of two f32, f64 or i32 values."""

    name = "add"
    arity = 2
    floating = False

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if both arguments are known to be 0, since the result is then 0."""
        return all(zeros)

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """True: a sum or difference of affine functions of `acc` is affine."""
        return True

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate the operation on NumPy arrays; generated code is tested against it."""
        a, b = arguments
        return a + b

    def text(self, *arguments: str, **constants: Any) -> str:
        """The operation as a C expression, for pseudo-code."""
        return f"({arguments[0]} + {arguments[1]})"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit the one instruction that computes the operation."""
        return emit.add(kind, *arguments)


add = Add()
