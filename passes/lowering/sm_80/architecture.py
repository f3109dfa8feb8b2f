"""The registry entries of sm_80 and what runs its instructions: `mma.sync` for every tensor."""

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
    """Copies by cp.async in vectors as wide as the tensors allow; takes every alignment.

    One code for C and none: the additions of C take no registers while tiles are multiplied.
    """

    instructions = "mma.sync"
    copies = "cp.async"
    kind = LowerToTensorCores

    def variant(self, alignment: Alignment, *, reads_c: bool) -> Variant:
        vectors = alignment.vectors
        return Variant(vectors._replace(d=_pairs(vectors)), self.instructions)

    def configured(self, options: Pass, variant: Variant) -> Pass:
        assert isinstance(options, LowerToTensorCores)
        a, b, _ = variant.vectors
        return replace(options, vector_a=a, vector_b=b, vector_d=_pairs(variant.vectors))


def _pairs(vectors: Vectors) -> int:
    """Elements of D that are moved at once: at most the two that lie side by side in a thread."""
    return min(vectors.d or PAIR, PAIR)


MMA_SYNC = MmaSync()
SHARED, SMALLER, LARGER = 166912, 101376, 232448
"""Bytes of shared memory of sm_80, of what has less, and of sm_90 and sm_100."""

register(
    Architecture("sm_80", 80, SHARED, (MMA_SYNC,)),
    Architecture("sm_86", 86, SMALLER, (MMA_SYNC,)),
    Architecture("sm_87", 87, SHARED, (MMA_SYNC,)),
    Architecture("sm_89", 89, SMALLER, (MMA_SYNC,)),
    Architecture("sm_90", 90, LARGER, (MMA_SYNC,), reduction="vector"),
    Architecture("sm_100", 100, LARGER, (MMA_SYNC,), reduction="vector", ptx=86),
    Architecture("sm_120", 120, SMALLER, (MMA_SYNC,), reduction="vector", ptx=87),
)
