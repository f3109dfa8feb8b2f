"""Record which graph objects only this library made; they are compiled without `graph.check()`.

The graphs of `Gemm.graph`, and the results of this library's passes on these graphs, are recorded.
Graphs that were read from text, edited, or made by a pass of another package are not.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from coordgraph.kernel import KernelGraph

__all__ = ["is_made_by_library", "made_by_library"]

_MADE: WeakValueDictionary[int, KernelGraph] = WeakValueDictionary()
"""The graphs that this library made, by `id`. An edited copy is another object, so it is not in the
mapping."""


def made_by_library(graph: KernelGraph) -> KernelGraph:
    """Record that this library made `graph`, and return the graph."""
    _MADE[id(graph)] = graph
    return graph


def is_made_by_library(graph: KernelGraph) -> bool:
    """Whether the object `graph` itself, not an equal copy, was passed to `made_by_library`."""
    return _MADE.get(id(graph)) is graph
