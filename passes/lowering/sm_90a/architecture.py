"""The registry entry of sm_90a: `wgmma` on what TMA brings, and `mma.sync` for the rest."""

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
    """Brings A and B by TMA, which needs addresses and rows that are multiples of 16 bytes.

    Code that may read C has other registers than code that never does, and refuses more tiles.
    """

    instructions = "wgmma"
    copies = "TMA"
    kind = LowerToHopper
    alignment = ALIGNED_BYTES
    values = {"consumers": tuple(CONSUMERS)}  # noqa: RUF012 - nobody changes it

    def variant(self, alignment: Alignment, *, reads_c: bool) -> Variant:
        return Variant(Vectors(d=alignment.vectors.d), self.instructions, reads_c)

    def configured(self, options: Pass, variant: Variant) -> Pass:
        assert isinstance(options, LowerToHopper)
        return replace(options, vector=variant.vectors.d, reads_c=variant.reads_c)


WGMMA = Wgmma()

register(Architecture("sm_90a", 90, 232448, (WGMMA, MMA_SYNC), reduction="vector", exact=True))
