"""The work check of a schedule: the interpreter traces all workgroups on small problems.

The workgroups of a scheduled graph must do every iteration (m, n, k) exactly once, run one epilogue
and one store for every output tile, and send one signal for every wait, so that no workgroup waits
for ever. Each workgroup must zero an accumulator, add products to it, then either send it or apply
the epilogue and store it, in this order. In a reduce-scatter, where every workgroup with a partial
sum of a tile finishes some shares of the tile, a workgroup must add every partial sum of the tile
once to each share that it finishes.

The problems are the first ones that `graph.check()` examines. In some the number of output tiles is
a multiple of the number of workgroups, one more, or one less; in others there are fewer output
tiles than workgroups, or only one k tile. The check is a test on examples, not a proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from coordgraph import CoordGraphError, KernelGraph, LaunchError
from coordgraph.collection import collection_paused
from coordgraph.hooks import Hook

if TYPE_CHECKING:
    from coordgraph.interpreter import Trace
    from coordgraph.verification import Launch

__all__ = ["LAUNCHES", "MOST_COST", "small_launches", "work_problems"]

LAUNCHES = 6
"""Number of small problems on which the work check traces a schedule."""
MOST_COST = 600
"""Largest cost of a problem that is traced. The cost is an estimate of the number of events in the
trace, from the numbers of output tiles, k tiles and workgroups. If the graph fixes sizes with which
every problem costs more, no problem is traced."""
SHOWN = 3
"""Largest number of errors that a message lists for one launch."""

KNOWN = Hook[[KernelGraph], bool]("passes.work_check.KNOWN", "codegen.verified")
"""Whether the cache on disk says that an equal graph was checked before a build, which includes the
work check; `codegen.verified` implements this hook."""


@lru_cache(maxsize=256)
@collection_paused()
def work_problems(graph: KernelGraph) -> tuple[str, ...]:
    """Check that the workgroups of a scheduled graph do the right work, by tracing small problems.

    Returns the errors of the first problem that has errors; () if no problem has any. Results are
    cached for equal graphs. A graph that was checked before a build, maybe by another process, is
    not traced again.
    """
    # Imported here so that `import passes` does not import NumPy.
    from coordgraph.verification.launch_traces import launch_trace

    if KNOWN(graph):
        return ()
    for launch in small_launches(graph):
        try:
            found = launch_trace(graph, launch)
        except LaunchError:  # the graph's bounds on parameters exclude these sizes
            continue
        except CoordGraphError as error:
            return (f"with {launch}: {error}",)
        if problems := tuple(map(str, found.faults)) or tuple(_stuck(found)):
            more = len(problems) - SHOWN
            shown = (*problems[:SHOWN], f"and {more} more") if more > 0 else problems
            return tuple(f"with {launch}: {problem}" for problem in shown)
    return ()


def small_launches(graph: KernelGraph) -> tuple[Launch, ...]:
    """Launches of small problems for which a wrong schedule of the graph is likely to fail."""
    from coordgraph.verification.launches import ranked_launches

    return ranked_launches(graph, LAUNCHES, MOST_COST)


def _stuck(found: Trace) -> Iterator[str]:
    """Yield an error if workgroups wait for each other in a cycle, so that none proceeds."""
    waiting = [receive.workgroup for receive in found.stuck()]
    if waiting:
        yield f"workgroups {', '.join(map(str, waiting))} wait for each other for ever"
