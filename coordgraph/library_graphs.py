"""Which graphs come straight from this library's own passes, and so need no proof.

A graph of `Gemm.graph` is such a graph, and so is what a pass of this library makes of one. A graph
that was read from text, edited, or made by a pass of another package is none.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from coordgraph.kernel import KernelGraph

__all__ = ["is_made_by_library", "made_by_library"]

_MADE: WeakValueDictionary[int, KernelGraph] = WeakValueDictionary()
"""The graphs by `id`. An edited copy is another object, so it is not among them."""


def made_by_library(graph: KernelGraph) -> KernelGraph:
    """Note that this library made a graph from the description of a product; returns the graph."""
    _MADE[id(graph)] = graph
    return graph


def is_made_by_library(graph: KernelGraph) -> bool:
    """Whether this very object was passed to `made_by_library`."""
    return _MADE.get(id(graph)) is graph
