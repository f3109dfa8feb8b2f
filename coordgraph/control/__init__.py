"""The control graph: operations, their order, and the scopes in which expressions are evaluated."""

from coordgraph.control.graph import ControlEdge, ControlGraph, rewrite
from coordgraph.control.scope import Scoped

__all__ = ["ControlEdge", "ControlGraph", "Scoped", "rewrite"]
