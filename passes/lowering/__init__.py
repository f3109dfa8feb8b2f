"""Lowering: what makes a scheduled graph executable on a kind of machine."""

from passes.lowering.hopper import LowerToHopper
from passes.lowering.host import LowerToHost
from passes.lowering.tensor_cores import LowerToTensorCores

__all__ = ["LowerToHopper", "LowerToHost", "LowerToTensorCores"]
