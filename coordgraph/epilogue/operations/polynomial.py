"""Evaluate polynomials by Horner's rule, with one fused multiply-add per coefficient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordgraph.epilogue.emitter import Emitter

__all__ = ["horner"]


def horner(emit: Emitter, kind: str, x: Any, coefficients: Sequence[float]) -> Any:
    """Emit the value of a polynomial at x; `coefficients` start with the constant term."""
    result = emit.constant(coefficients[-1], kind)
    for coefficient in coefficients[-2::-1]:
        result = emit.intrinsic("llvm.fma", kind, result, x, emit.constant(coefficient, kind))
    return result
