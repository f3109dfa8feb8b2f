"""Lowering: what makes a scheduled graph executable on a kind of machine."""

from passes.lowering.architectures import ARCHITECTURES, Architecture, Lowering, architecture_of
from passes.lowering.host import LowerToHost
from passes.lowering.sm_80 import MMA_SYNC, LowerToTensorCores
from passes.lowering.sm_90a import CONSUMERS, WGMMA, LowerToHopper

__all__ = [
    "ARCHITECTURES",
    "CONSUMERS",
    "MMA_SYNC",
    "WGMMA",
    "Architecture",
    "LowerToHopper",
    "LowerToHost",
    "LowerToTensorCores",
    "Lowering",
    "architecture_of",
]
