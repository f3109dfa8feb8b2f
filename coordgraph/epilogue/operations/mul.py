"""The epilogue operation `mul`: multiplication."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.epilogue.values import Argument, Constants

__all__ = ["Mul", "mul"]


class Mul(Elementwise):
    """The product `a * b` of two f32, f64 or i32 values."""

    name = "mul"
    arity = 2
    floating = False

    def fold(self, arguments: tuple[Argument, ...], constants: Constants) -> Argument | None:
        """Fold `x * 1` and `1 * x` to x; None for other arguments."""
        x, y = arguments
        if not isinstance(y, str) and y == 1:
            return x
        return y if not isinstance(x, str) and x == 1 else None

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if one factor is known to be 0; the other factor is assumed to be finite."""
        return any(zeros)

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """True if one factor does not depend on `acc`: then the product is affine in `acc`."""
        return any(constant)

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `mul` on NumPy arrays; generated code is tested against the result."""
        a, b = arguments
        return a * b

    def text(self, *arguments: str, **constants: Any) -> str:
        """The C expression of `mul` for pseudo-code, from the texts of the arguments."""
        return f"{arguments[0]} * {arguments[1]}"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit the single instruction that computes `mul`."""
        return emit.mul(kind, *arguments)


mul = Mul()
