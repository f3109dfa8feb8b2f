"""Lowering for Hopper (sm_90a): TMA loads, mbarriers, producer and consumer warps, and wgmma."""

from passes.lowering.sm_90a.architecture import WGMMA
from passes.lowering.sm_90a.lower import CONSUMERS, LowerToHopper

__all__ = ["CONSUMERS", "WGMMA", "LowerToHopper"]
