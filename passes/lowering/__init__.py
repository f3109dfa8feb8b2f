"""Lowering: what makes a scheduled graph executable on a kind of machine."""

from passes.lowering.hopper import CONSUMERS, LowerToHopper
from passes.lowering.host import LowerToHost
from passes.lowering.tensor_cores import LowerToTensorCores

__all__ = ["CONSUMERS", "LowerToHopper", "LowerToHost", "LowerToTensorCores"]
