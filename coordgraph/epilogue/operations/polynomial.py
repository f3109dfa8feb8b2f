"""Polynomials by Horner's rule, one fused multiply-add for each coefficient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordgraph.epilogue.emitter import Emitter

__all__ = ["horner"]


def horner(emit: Emitter, kind: str, x: Any, coefficients: Sequence[float]) -> Any:
    """Evaluate a polynomial at x; coefficients are given from the lowest power up."""
    result = emit.constant(coefficients[-1], kind)
    for coefficient in coefficients[-2::-1]:
        result = emit.intrinsic("llvm.fma", kind, result, x, emit.constant(coefficient, kind))
    return result
