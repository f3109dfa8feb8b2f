"""The control graph: operations, their order, and the scopes that give them values."""

from coordgraph.control.graph import ControlEdge, ControlGraph, rewrite
from coordgraph.control.scope import Scoped

__all__ = ["ControlEdge", "ControlGraph", "Scoped", "rewrite"]
