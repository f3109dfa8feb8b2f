"""Multiplication."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.epilogue.values import Argument, Constants

__all__ = ["Mul", "mul"]


class Mul(Elementwise):
    """`a * b`."""

    name = "mul"
    arity = 2
    floating = False

    def fold(self, arguments: tuple[Argument, ...], constants: Constants) -> Argument | None:
        """`x * 1` and `1 * x` fold to x."""
        x, y = arguments
        if not isinstance(y, str) and y == 1:
            return x
        return y if not isinstance(x, str) and x == 1 else None

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the product is 0: it is where one factor is 0 (the other counts as finite)."""
        return any(zeros)

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """Whether the product is affine in `acc`: one factor must not depend on `acc`."""
        return any(constant)

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """The operation on NumPy arrays."""
        a, b = arguments
        return a * b

    def text(self, *arguments: str, **constants: Any) -> str:
        """The expression as C writes it, with an operator."""
        return f"{arguments[0]} * {arguments[1]}"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit one instruction."""
        return emit.mul(kind, *arguments)


mul = Mul()
