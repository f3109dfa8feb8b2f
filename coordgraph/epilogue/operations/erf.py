"""The epilogue operation `erf`: the error function."""

from __future__ import annotations

from math import erf as exact
from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise
from coordgraph.epilogue.operations.polynomial import horner

__all__ = ["Erf", "erf"]

BORDER, LAST = 0.925, 4.0
"""BORDER: largest |a| for which `erf` is computed as a polynomial in a^2. LAST: |a| beyond which
`erf(a)` is 1 or -1 in f32."""
NEAR = (
    *(0.12837916612625122, -0.37612634897232056, 0.11283697932958603, -0.026859482750296593),
    *(0.005201177205890417, -0.0008143753511831164, 8.37242987472564e-05),
)
"""Coefficients of the polynomial `erf(a) / a - 1` in a^2 for |a| up to BORDER, constant term first.

The coefficients were fitted at Chebyshev nodes.
"""
FAR = (
    *(0.00043684299453161657, -1.6304833889007568, -0.91169673204422, -0.1586611121892929),
    *(0.03803402557969093, -0.0068379235453903675, 0.00085502362344414),
    *(-6.575448787771165e-05, 2.3276618321688147e-06),
)
"""Coefficients of the polynomial `log2(1 - erf(|a|))` in |a| between BORDER and LAST, constant term
first."""


class Erf(Elementwise):
    """The error function, `2 / sqrt(pi)` times the integral of `exp(-t^2)` from 0 to a.

    A GPU evaluates one of two polynomials and `ex2.approx.ftz.f32`; the relative error is at most
    2^-22.
    """

    name = "erf"
    temporaries = 4

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if the argument of `erf` is known to be 0: then the result is 0."""
        return zeros[0]

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate the C library's `erf` in f64, then round to the type of the argument."""
        import numpy as np

        (a,) = arguments
        return np.vectorize(exact, otypes=[np.float64])(a.astype(np.float64)).astype(a.dtype)

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit both polynomials and a select on a GPU, else a call of the C library's `erf`."""
        (a,) = arguments
        if not emit.gpu:
            return emit.library("erf", kind, a)
        near = horner(emit, kind, emit.mul(kind, a, a), NEAR)
        near = emit.intrinsic("llvm.fma", kind, near, a, a)
        size, last = emit.intrinsic("llvm.fabs", kind, a), emit.constant(LAST, kind)
        capped = emit.select(emit.compare(kind, ">", size, last), last, size)
        rest = emit.asm("ex2.approx.ftz.f32", horner(emit, kind, capped, FAR))
        far = emit.sub(kind, emit.constant(1.0, kind), rest)
        far = emit.intrinsic("llvm.copysign", kind, far, a)
        return emit.select(emit.compare(kind, ">", size, emit.constant(BORDER, kind)), far, near)


erf = Erf()
