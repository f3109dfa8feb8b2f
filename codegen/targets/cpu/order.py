"""The order in which CPU threads start workgroups, chosen so that no wait deadlocks.

Threads take workgroups in the order of a list, so the started workgroups are always a prefix of the
list. If every workgroup waits only for workgroups before it in the list, the first unfinished
workgroup can always continue, even on a single thread. Workgroups that wait for each other need one
thread each.
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
    """Raised if workgroups wait for each other in a cycle, so that all must run concurrently."""


def starting_order(
    graph: KernelGraph,
    waits: WaitDirection,
    count: int,
    given: Mapping[str, int],
    tables: Mapping[str, Sequence[int]] | None = None,
) -> Array | None:
    """The workgroup numbers in the order in which to start them; None for 0, 1, 2, and so on.

    Args:
        graph: a scheduled graph.
        waits: which workgroups a workgroup waits for, by number: "none", "lower", "higher", or
            "mixed" (both, or nothing is proved).
        count: how many workgroups there are.
        given: the parameters of the launch, by name.
        tables: the entries of the tables that the graph reads, by name.

    Raises:
        Circle: workgroups wait for each other in a cycle, and finish only if all run concurrently.
        LaunchError: workgroups wait for each other in a cycle, and would never finish.
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
    """Workgroup numbers, sorted so that every workgroup comes after all that it waits for.

    The interpreter traces the launch to find which workgroups wait for which.
    """
    before: dict[int, list[int]] = {workgroup: [] for workgroup in range(count)}
    found = trace(graph, given, tables)
    for waiting, signals in sorted(found.wait_edges()):
        before[waiting].append(signals)
    try:
        return np.array(list(TopologicalSorter(before).static_order()), dtype=np.int64)
    except CycleError as error:
        circle = " -> ".join(map(str, error.args[1]))
        if not found.stuck():
            raise Circle(
                f"workgroups wait for each other in a circle ({circle}), so all workgroups must "
                "run at the same time"
            ) from None
        raise LaunchError(
            "the launch would never end, because workgroups wait for each other in a circle "
            f"({circle}); apply another schedule"
        ) from None
