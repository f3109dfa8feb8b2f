"""Differences of kernel graphs by structure: what was added, removed, changed, moved, renamed.

`KernelGraph.diff` computes a difference.
"""

from coordgraph.difference.record import Change, Difference, Kind

__all__ = ["Change", "Difference", "Kind"]
