"""A choice between two values."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.errors import VerifyError

__all__ = ["Where", "where"]


class Where(Elementwise):
    """`yes` where a condition holds, else `no`."""

    name = "where"
    arity = 3
    floating = False

    def kind(self, kinds: tuple[str, ...], **constants: Any) -> str:
        """The kind of both values; the condition must be a bool."""
        if kinds[0] != "bool":
            raise VerifyError(f"where: the condition is {kinds[0]}; compare it, as in x > 0")
        return super().kind(kinds[1:], **constants)

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the result is 0: it is where both values are 0."""
        return zeros[1] and zeros[2]

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """Whether the result is affine in `acc`: the condition must not depend on `acc`."""
        return constant[0]

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """The operation on NumPy arrays."""
        import numpy as np

        condition, yes, no = arguments
        return np.where(condition, yes, no)

    def text(self, *arguments: str, **constants: Any) -> str:
        """The expression as C writes it."""
        return f"({arguments[0]} ? {arguments[1]} : {arguments[2]})"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit one instruction."""
        return emit.select(*arguments)


where = Where()
