"""Lowering passes: rewrite operations on tiles to the operations of one thread of a machine.

There are three lowering passes: `LowerToHost` for CPUs, `LowerToTensorCores` for `mma.sync` (sm_80
and later) and `LowerToHopper` for `wgmma` (sm_90a).
"""

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
