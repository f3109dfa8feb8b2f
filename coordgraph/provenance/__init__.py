"""Provenance: which pass made each dimension, edge and operation, and what it came from.

`KernelGraph.provenance` holds it; passes record it whenever they are called.
"""

from coordgraph.provenance.record import History, Origin, Part, Provenance, Snapshot

__all__ = ["History", "Origin", "Part", "Provenance", "Snapshot"]
