"""Lowering for Hopper: TMA boxes, a barrier ring, warp roles, warpgroup matrix instructions."""

from passes.lowering.hopper.lower import CONSUMERS, LowerToHopper

__all__ = ["CONSUMERS", "LowerToHopper"]
