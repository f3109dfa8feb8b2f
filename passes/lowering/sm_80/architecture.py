"""Registers sm_80 and later architectures except sm_90a, which all use the `mma.sync` lowering."""

from __future__ import annotations

from dataclasses import replace

from passes.base import Pass
from passes.lowering.architectures import (
    Alignment,
    Architecture,
    Lowering,
    Variant,
    Vectors,
    register,
)
from passes.lowering.sm_80.lower import PAIR, LowerToTensorCores

__all__ = ["MMA_SYNC", "MmaSync"]


class MmaSync(Lowering):
    """Lowering to cp.async, ldmatrix and mma.sync; takes tensors of any alignment.

    Elements are copied in vectors as wide as the tensors' alignment allows. The same kernel serves
    launches with C and without C, because reading C takes no registers while tiles are multiplied.
    """

    instructions = "mma.sync"
    copies = "cp.async"
    kind = LowerToTensorCores

    def variant(self, alignment: Alignment, *, reads_c: bool) -> Variant:
        vectors = alignment.vectors
        return Variant(vectors._replace(d=_pairs(vectors), operands=0), self.instructions)

    def configured(self, options: Pass, variant: Variant) -> Pass:
        assert isinstance(options, LowerToTensorCores)
        vectors = variant.vectors
        return replace(options, vector_a=vectors.a, vector_b=vectors.b, vector_d=_pairs(vectors))


def _pairs(vectors: Vectors) -> int:
    """Number of elements of D that one access moves: 1 or 2; a thread holds 2 adjacent elements."""
    return min(vectors.d or PAIR, PAIR)


MMA_SYNC = MmaSync()
SHARED, SMALLER, LARGER = 166912, 101376, 232448
"""The largest dynamic shared memory of a workgroup, in bytes: SHARED for sm_80 and sm_87, SMALLER
for sm_86, sm_89 and sm_120, LARGER for sm_90 and sm_100 (CUDA C++ programming guide, "Technical
specifications per compute capability")."""

register(
    Architecture("sm_80", 80, SHARED, (MMA_SYNC,)),
    Architecture("sm_86", 86, SMALLER, (MMA_SYNC,)),
    Architecture("sm_87", 87, SHARED, (MMA_SYNC,)),
    Architecture("sm_89", 89, SMALLER, (MMA_SYNC,)),
    Architecture("sm_90", 90, LARGER, (MMA_SYNC,), reduction="vector"),
    Architecture("sm_100", 100, LARGER, (MMA_SYNC,), reduction="vector", ptx=86),
    Architecture("sm_120", 120, SMALLER, (MMA_SYNC,), reduction="vector", ptx=87),
)
