"""The coordinate graph: dimensions, edges, traversal."""

from coordgraph.coordinates.graph import CoordinateEditor, CoordinateGraph

__all__ = ["CoordinateEditor", "CoordinateGraph"]
