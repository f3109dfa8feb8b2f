"""Lowering for Hopper: TMA boxes, a barrier ring, warp roles, warpgroup matrix instructions."""

from passes.lowering.sm_90a.architecture import WGMMA
from passes.lowering.sm_90a.lower import CONSUMERS, LowerToHopper

__all__ = ["CONSUMERS", "WGMMA", "LowerToHopper"]
