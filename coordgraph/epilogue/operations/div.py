"""The epilogue operation `div`: division."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.epilogue.values import Argument, Constants

__all__ = ["Div", "div"]


class Div(Elementwise):
    """The quotient `a / b` of two f32 or f64 values, rounded to nearest.

    If all outputs are 16-bit floats, a GPU uses `div.full.f32`, whose error is at most 2 ulp (PTX
    ISA, "div").
    """

    name = "div"
    arity = 2
    temporaries = 2

    def fold(self, arguments: tuple[Argument, ...], constants: Constants) -> Argument | None:
        """Fold `x / 1` to x; None for other arguments."""
        x, y = arguments
        return x if not isinstance(y, str) and y == 1 else None

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if the dividend is known to be 0; the divisor is assumed not to be 0 or NaN."""
        return zeros[0]

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """True if the divisor does not depend on `acc`: then the quotient is affine in `acc`."""
        return constant[1]

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `div` on NumPy arrays; generated code is tested against the result."""
        a, b = arguments
        return a / b

    def text(self, *arguments: str, **constants: Any) -> str:
        """The C expression of `div` for pseudo-code, from the texts of the arguments."""
        return f"{arguments[0]} / {arguments[1]}"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit one PTX or LLVM instruction for `div`, which ptxas may expand to several."""
        if emit.gpu and emit.fast:
            return emit.asm("div.full.f32", *arguments)
        return emit.div(kind, *arguments)


div = Div()
