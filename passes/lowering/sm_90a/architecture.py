"""Registers sm_90a: `wgmma` for tensors that TMA can load, `mma.sync` for all others."""

from __future__ import annotations

from dataclasses import replace

from passes.base import Pass
from passes.lowering.architectures import (
    ALIGNED_BYTES,
    Alignment,
    Architecture,
    Lowering,
    Variant,
    Vectors,
    register,
)
from passes.lowering.sm_80.architecture import MMA_SYNC
from passes.lowering.sm_90a.lower import CONSUMERS, LowerToHopper

__all__ = ["WGMMA", "Wgmma"]


class Wgmma(Lowering):
    """Lowering to TMA and wgmma.

    Addresses of A and B and distances between their rows must be multiples of 16 bytes.

    A kernel that can read C needs registers for C, so some large tiles can be lowered only to a
    kernel without C. Therefore kernels with and without C are different variants.
    """

    instructions = "wgmma"
    copies = "TMA"
    kind = LowerToHopper
    alignment = ALIGNED_BYTES
    values = {"consumers": tuple(CONSUMERS)}  # noqa: RUF012 - never modified

    def variant(self, alignment: Alignment, *, reads_c: bool) -> Variant:
        found = alignment.vectors
        return Variant(Vectors(d=found.d, operands=found.operands), self.instructions, reads_c)

    def configured(self, options: Pass, variant: Variant) -> Pass:
        assert isinstance(options, LowerToHopper)
        vectors = variant.vectors
        boxed = not vectors.operands
        return replace(options, vector=vectors.d, reads_c=variant.reads_c, boxed_operands=boxed)


WGMMA = Wgmma()

register(Architecture("sm_90a", 90, 232448, (WGMMA, MMA_SYNC), reduction="vector", exact=True))
