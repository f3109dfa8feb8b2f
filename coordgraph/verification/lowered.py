"""`LOWERED`: the checks of graphs that are lowered for a GPU, `memory order` and `vectors`.

Only checks of lowered graphs import this module: the machine that simulates lowered graphs takes as
long to import as all checks of scheduled graphs together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordgraph.kernel import KernelGraph
from coordgraph.verification.launch import Launch
from coordgraph.verification.memory_order.check import NAME as MEMORY_ORDER
from coordgraph.verification.memory_order.check import NOT_COVERED, memory_order, reduced_launches
from coordgraph.verification.vectors import NAME as VECTORS
from coordgraph.verification.vectors import vectors
from coordgraph.verification.verdicts import Verdict

__all__ = ["LOWERED", "NOT_COVERED", "reduced_launches"]

LOWERED: dict[str, Callable[[KernelGraph, Sequence[Launch]], Verdict]] = {
    MEMORY_ORDER: memory_order,
    VECTORS: lambda graph, _: vectors(graph),
}
"""The checks of every graph that is lowered for a GPU, by name, in the order in which they run."""
