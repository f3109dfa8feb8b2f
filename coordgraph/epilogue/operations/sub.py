"""Subtraction."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.epilogue.values import Argument, Constants

__all__ = ["Sub", "sub"]


class Sub(Elementwise):
    """`a - b`."""

    name = "sub"
    arity = 2
    floating = False

    def fold(self, arguments: tuple[Argument, ...], constants: Constants) -> Argument | None:
        """`x - 0` folds to x, also where x is -0."""
        x, y = arguments
        return x if not isinstance(y, str) and y == 0 and not str(y).startswith("-") else None

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the result is 0: it is where both arguments are 0."""
        return all(zeros)

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """True: a sum or difference of affine functions of `acc` is affine."""
        return True

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """The operation on NumPy arrays."""
        a, b = arguments
        return a - b

    def text(self, *arguments: str, **constants: Any) -> str:
        """The expression as C writes it, with an operator."""
        return f"({arguments[0]} - {arguments[1]})"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit one instruction."""
        return emit.sub(kind, *arguments)


sub = Sub()
