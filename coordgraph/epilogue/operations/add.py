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
        """True if both arguments of `add` are known to be 0: then the result is 0."""
        return all(zeros)

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """True, because sums and differences of affine functions of `acc` are affine."""
        return True

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `add` on NumPy arrays; generated code is tested against the result."""
        a, b = arguments
        return a + b

    def text(self, *arguments: str, **constants: Any) -> str:
        """The C expression of `add` for pseudo-code, from the texts of the arguments."""
        return f"({arguments[0]} + {arguments[1]})"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit the single instruction that computes `add`."""
        return emit.add(kind, *arguments)


add = Add()
