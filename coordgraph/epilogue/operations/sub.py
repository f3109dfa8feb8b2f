"""The epilogue operation `sub`: subtraction."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.epilogue.values import Argument, Constants

__all__ = ["Sub", "sub"]


class Sub(Elementwise):
    """The difference `a - b` of two f32, f64 or i32 values."""

    name = "sub"
    arity = 2
    floating = False

    def fold(self, arguments: tuple[Argument, ...], constants: Constants) -> Argument | None:
        """Fold `x - 0` to x, which is exact even if x is -0; `x - (-0)` is not folded."""
        x, y = arguments
        return x if not isinstance(y, str) and y == 0 and not str(y).startswith("-") else None

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if both arguments are known to be 0, since the result is then 0."""
        return all(zeros)

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """True: a sum or difference of affine functions of `acc` is affine."""
        return True

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate the operation on NumPy arrays; generated code is tested against it."""
        a, b = arguments
        return a - b

    def text(self, *arguments: str, **constants: Any) -> str:
        """The operation as a C expression, for pseudo-code."""
        return f"({arguments[0]} - {arguments[1]})"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit the one instruction that computes the operation."""
        return emit.sub(kind, *arguments)


sub = Sub()
