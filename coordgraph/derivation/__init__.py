"""Derivations: why an index or an address of a kernel is what it is, edge by edge.

`KernelGraph.explain` makes a derivation.
"""

from coordgraph.derivation.record import (
    Address,
    Derivation,
    EdgeStep,
    GuardStep,
    IndexStep,
    ParameterStep,
    Stride,
)

__all__ = [
    "Address",
    "Derivation",
    "EdgeStep",
    "GuardStep",
    "IndexStep",
    "ParameterStep",
    "Stride",
]
