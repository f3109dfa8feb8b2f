"""The epilogue operation `tanh`: the hyperbolic tangent."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.epilogue.operations.polynomial import horner

__all__ = ["Tanh", "tanh"]

BORDER = 0.6
NEAR = (
    *(-0.3333333432674408, 0.13333313167095184, -0.053961653262376785),
    *(0.021789096295833588, -0.008412523195147514, 0.0023734846618026495),
)
"""Coefficients of the polynomial `(tanh(a) / a - 1) / a^2` in a^2, constant term first.

The coefficients were fitted for |a| up to `BORDER`; larger arguments do not use the polynomial.
"""
TWO_LOG2_E = 2.885390081777927


class Tanh(Elementwise):
    """The hyperbolic tangent.

    If all outputs are 16-bit floats, a GPU uses `tanh.approx.f32`, whose relative error is at most
    2^-11 (PTX ISA, "tanh"). Otherwise a GPU uses a polynomial for small |a|, and
    `1 - 2 / (1 + exp(2a))` for larger |a|; the relative error is at most 2^-21.
    """

    name = "tanh"
    temporaries = 3

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the argument of `tanh` is known to be 0, and so the result as well."""
        return zeros[0]

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `tanh` on NumPy arrays; generated code is tested against the result."""
        import numpy as np

        return np.tanh(arguments[0])

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit `tanh.approx`, or a polynomial and `ex2`, on a GPU; else the C library's `tanh`."""
        (a,) = arguments
        if not emit.gpu:
            return emit.library("tanh", kind, a)
        if emit.fast:
            return emit.asm("tanh.approx.f32", a)
        square, size = emit.mul(kind, a, a), emit.intrinsic("llvm.fabs", kind, a)
        near = emit.mul(kind, horner(emit, kind, square, NEAR), square)
        near = emit.intrinsic("llvm.fma", kind, near, a, a)
        one, power = emit.constant(1.0, kind), emit.mul(kind, size, emit.constant(TWO_LOG2_E, kind))
        below = emit.add(kind, emit.asm("ex2.approx.ftz.f32", power), one)
        part = emit.asm("rcp.approx.ftz.f32", below)
        far = emit.intrinsic("llvm.fma", kind, part, emit.constant(-2.0, kind), one)
        far = emit.intrinsic("llvm.copysign", kind, far, a)
        return emit.select(emit.compare(kind, ">", size, emit.constant(BORDER, kind)), far, near)


tanh = Tanh()
