"""Record which graph objects only this library made; they are compiled without `graph.check()`.

The graphs that `Gemm.graph` returns are recorded, and so are the results of this library's passes
on recorded graphs. No record is made of a graph that was read from text, edited, or made by a pass
of another package.
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
