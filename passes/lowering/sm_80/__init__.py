"""Lowering for NVIDIA sm_80 and later: cp.async, ldmatrix and mma.sync."""

from passes.lowering.sm_80.architecture import MMA_SYNC
from passes.lowering.sm_80.lower import LowerToTensorCores

__all__ = ["MMA_SYNC", "LowerToTensorCores"]
