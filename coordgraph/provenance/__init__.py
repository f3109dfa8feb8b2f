"""Provenance: the pass that made each dimension, edge and operation, and what it was made from.

`KernelGraph.provenance` computes the provenance from the passes that were called on the graph.
"""

from coordgraph.provenance.record import History, Origin, Part, Provenance, Snapshot

__all__ = ["History", "Origin", "Part", "Provenance", "Snapshot"]
