"""The order in which threads take workgroups, such that waiting always ends.

Threads take workgroups from the front of the order, so what has been started is always a prefix of
it. If every workgroup waits only for ones before it, then the first that has not ended can go on,
however few threads there are. Workgroups that wait for each other need a thread each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np

from coordgraph import KernelGraph, LaunchError
from coordgraph.interpreter import trace
from coordgraph.interpreter.arguments import Array
from coordgraph.progress import WaitDirection

__all__ = ["Circle", "starting_order"]


class Circle(LaunchError):
    """No order does: workgroups wait for each other, and must all run at the same time."""


def starting_order(
    graph: KernelGraph,
    waits: WaitDirection,
    count: int,
    given: Mapping[str, int],
    tables: Mapping[str, Sequence[int]] | None = None,
) -> Array | None:
    """Workgroup numbers in the order to start them, or None where they just count up.

    Args:
        graph: a scheduled graph.
        waits: for whom its workgroups wait.
        count: how many workgroups there are.
        given: the launch arguments.
        tables: entries of the tables that the graph reads.

    Raises:
        Circle: workgroups wait for each other, which ends if all run at the same time.
        LaunchError: they do so for ever.
    """
    match waits:
        case "none" | "lower":
            return None
        case "higher":
            return np.arange(count - 1, -1, -1, dtype=np.int64)
        case "mixed":
            return _topological(graph, count, given, tables)


def _topological(
    graph: KernelGraph,
    count: int,
    given: Mapping[str, int],
    tables: Mapping[str, Sequence[int]] | None,
) -> Array:
    """Every workgroup after those that it waits for."""
    before: dict[int, list[int]] = {workgroup: [] for workgroup in range(count)}
    found = trace(graph, given, tables)
    for waiting, signals in sorted(found.wait_edges()):
        before[waiting].append(signals)
    try:
        return np.array(list(TopologicalSorter(before).static_order()), dtype=np.int64)
    except CycleError as error:
        circle = " -> ".join(map(str, error.args[1]))
        told = f"workgroups wait for each other in a circle ({circle})"
        if not found.stuck():
            raise Circle(told) from None
        raise LaunchError(f"{told}, and would do so for ever") from None
