"""Division."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.epilogue.values import Argument, Constants

__all__ = ["Div", "div"]


class Div(Elementwise):
    """`a / b`, rounded to nearest; for 16-bit results a GPU uses `div.full.f32`.

    `div.full.f32` has at most 2 ulp error (PTX ISA, "div").
    """

    name = "div"
    arity = 2
    temporaries = 2

    def fold(self, arguments: tuple[Argument, ...], constants: Constants) -> Argument | None:
        """`x / 1` folds to x."""
        x, y = arguments
        return x if not isinstance(y, str) and y == 1 else None

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the result is 0: it is where the dividend is 0."""
        return zeros[0]

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """Whether the quotient is affine in `acc`: it is where the divisor is free of `acc`."""
        return constant[1]

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """The operation on NumPy arrays."""
        a, b = arguments
        return a / b

    def text(self, *arguments: str, **constants: Any) -> str:
        """The expression as C writes it, with an operator."""
        return f"{arguments[0]} / {arguments[1]}"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit one instruction; ptxas may expand it to a sequence."""
        if emit.gpu and emit.fast:
            return emit.asm("div.full.f32", *arguments)
        return emit.div(kind, *arguments)


div = Div()
