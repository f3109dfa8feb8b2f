"""The control graph of a kernel: operations and loops, and scopes that resolve indices."""

from coordgraph.control.graph import ControlEdge, ControlGraph, rewrite
from coordgraph.control.scope import Scoped

__all__ = ["ControlEdge", "ControlGraph", "Scoped", "rewrite"]
