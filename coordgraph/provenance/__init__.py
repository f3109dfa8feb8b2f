"""Provenance: which pass made each dimension, edge and operation, and from which older ones.

`KernelGraph.provenance` holds the provenance; passes record it whenever they are called.
"""

from coordgraph.provenance.record import History, Origin, Part, Provenance, Snapshot

__all__ = ["History", "Origin", "Part", "Provenance", "Snapshot"]
