"""Show graphs as Mermaid diagrams or as C-like pseudo-code."""

from coordgraph.show.mermaid import control, coordinates
from coordgraph.show.pseudocode import pseudocode

__all__ = ["control", "coordinates", "pseudocode"]
