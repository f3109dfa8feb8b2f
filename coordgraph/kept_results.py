"""`kept_results`: results that are computed from a kernel graph, kept as long as the graph exists.

A graph is immutable, so a result stays valid. Compiling one kernel needs some results for the
same graph object several times: for example, a pass checks its result, and so does the pipeline.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import finalize

from coordgraph.kernel import KernelGraph

__all__ = ["kept_results"]

_KEPT: dict[int, dict[Hashable, Any]] = {}
"""The cached results of each graph, by the `id` of the graph object."""


def kept_results(graph: KernelGraph) -> dict[Hashable, Any]:
    """The cached results of this graph object: a dictionary to which callers add entries."""
    kept = _KEPT.get(id(graph))
    if kept is None:
        kept = _KEPT[id(graph)] = {}
        finalize(graph, _KEPT.pop, id(graph), None).atexit = False
    return kept
