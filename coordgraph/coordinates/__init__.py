"""The coordinate graph: dimensions, the coordinate transforms between them, and traversal."""

from coordgraph.coordinates.graph import CoordinateEditor, CoordinateGraph
from coordgraph.coordinates.laws import check_laws

__all__ = ["CoordinateEditor", "CoordinateGraph", "check_laws"]
