"""The epilogue operation `where`: select one of two values by a condition."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.errors import VerifyError

__all__ = ["Where", "where"]


class Where(Elementwise):
    """The operation `where(condition, yes, no)`: `yes` if the condition holds, else `no`."""

    name = "where"
    arity = 3
    floating = False

    def kind(self, kinds: tuple[str, ...], **constants: Any) -> str:
        """The kind of the two values to select from.

        Raises:
            VerifyError: the condition is not a bool, or the kinds of the values differ.
        """
        if kinds[0] != "bool":
            raise VerifyError(
                f"where: the condition has the kind {kinds[0]}, but a bool is needed; give a "
                "comparison, as in x > 0"
            )
        return super().kind(kinds[1:], **constants)

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if `yes` and `no` are both known to be 0: then the result is 0."""
        return zeros[1] and zeros[2]

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """True if the condition does not depend on `acc`: then the result is affine in `acc`."""
        return constant[0]

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `where` on NumPy arrays; generated code is tested against the result."""
        import numpy as np

        condition, yes, no = arguments
        return np.where(condition, yes, no)

    def text(self, *arguments: str, **constants: Any) -> str:
        """The C expression of `where` for pseudo-code, from the texts of the arguments."""
        return f"({arguments[0]} ? {arguments[1]} : {arguments[2]})"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit the single instruction that computes `where`."""
        return emit.select(*arguments)


where = Where()
