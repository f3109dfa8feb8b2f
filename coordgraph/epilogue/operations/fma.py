"""The epilogue operation `fma`: fused multiply-add."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Fma", "fma"]


class Fma(Elementwise):
    """The fused multiply-add `a * b + c`, which is rounded once.

    NumPy has no fused multiply-add. For f32 the reference computes in f64, where the product is
    exact; for f64 it rounds twice.
    """

    name = "fma"
    arity = 3

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if a factor and `c` are known to be 0; the other factor is assumed to be finite."""
        return (zeros[0] or zeros[1]) and zeros[2]

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """True if one factor does not depend on `acc`: then the result is affine in `acc`."""
        return constant[0] or constant[1]

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `a * b + c` in f64, then round to the type of the arguments."""
        import numpy as np

        a, b, c = (x.astype(np.float64) for x in arguments)
        return (a * b + c).astype(arguments[0].dtype)

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit the single instruction that computes `fma`."""
        return emit.intrinsic("llvm.fma", kind, *arguments)


fma = Fma()
