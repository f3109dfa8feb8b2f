"""Lowering to a CPU: output tiles are computed in blocks that fit the vector registers."""

from passes.lowering.host.lower import LowerToHost

__all__ = ["LowerToHost"]
