"""`kept_results`: results that are computed from a kernel graph, kept as long as the graph exists.

A graph is immutable, so a result stays valid. Compiling one kernel needs some results for the
same graph object several times: for example, a pass checks its result, and so does the pipeline.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import finalize

from coordgraph.kernel import KernelGraph

__all__ = ["forget_proofs", "kept_results"]

_KEPT: dict[int, dict[Hashable, Any]] = {}
"""The cached results of each graph, by the `id` of the graph object."""


def kept_results(graph: KernelGraph) -> dict[Hashable, Any]:
    """The cached results of this graph object: a dictionary to which callers add entries."""
    kept = _KEPT.get(id(graph))
    if kept is None:
        kept = _KEPT[id(graph)] = {}
        finalize(graph, _KEPT.pop, id(graph), None).atexit = False
    return kept


def forget_proofs(graph: KernelGraph) -> None:
    """Free the memory of proofs about the indices of a graph, and of the graphs it was made from.

    Proofs are kept because passes and checks ask for the same ones again. When code has been
    generated, they are no longer needed. Later questions are proved again.
    """
    made_from = (each for step in graph.history.steps for each in (step.before, step.after))
    for parameters in (graph.parameters, *(each.parameters for each in made_from)):
        parameters.forget_proofs()
