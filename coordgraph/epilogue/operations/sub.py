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
        """Fold `x - 0` to x, exact even if x is -0; None for all else, also for `x - (-0)`."""
        x, y = arguments
        return x if not isinstance(y, str) and y == 0 and not str(y).startswith("-") else None

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if both arguments of `sub` are known to be 0: then the result is 0."""
        return all(zeros)

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """True, because sums and differences of affine functions of `acc` are affine."""
        return True

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `sub` on NumPy arrays; generated code is tested against the result."""
        a, b = arguments
        return a - b

    def text(self, *arguments: str, **constants: Any) -> str:
        """The C expression of `sub` for pseudo-code, from the texts of the arguments."""
        return f"({arguments[0]} - {arguments[1]})"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit the single instruction that computes `sub`."""
        return emit.sub(kind, *arguments)


sub = Sub()
