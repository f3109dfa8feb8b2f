"""Lowering for a host processor: tiles as blocks of vector registers."""

from passes.lowering.host.lower import LowerToHost

__all__ = ["LowerToHost"]
