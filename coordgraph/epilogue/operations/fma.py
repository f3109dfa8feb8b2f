"""Fused multiply-add."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Fma", "fma"]


class Fma(Elementwise):
    """`a * b + c` with one rounding.

    NumPy has none: in f32 it computes in f64, where the product is exact; in f64 it rounds twice.
    """

    name = "fma"
    arity = 3

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the result is 0: it is where a factor and the summand are 0."""
        return (zeros[0] or zeros[1]) and zeros[2]

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """Whether the result is affine in `acc`: a factor must not depend on `acc`."""
        return constant[0] or constant[1]

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """The sum computed in f64, then rounded to the kind of the arguments."""
        import numpy as np

        a, b, c = (x.astype(np.float64) for x in arguments)
        return (a * b + c).astype(arguments[0].dtype)

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit one instruction."""
        return emit.intrinsic("llvm.fma", kind, *arguments)


fma = Fma()
