"""Counts the work of a schedule by interpreting small problems, to check a `WorkCounter`.

A `WorkCounter` assumes that all iterations of a loop except the first and the last are alike. That
is not proved; instead the counts of small problems are compared with counts from traces, in which
the interpreter executes every operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from coordgraph import Gemm, KernelGraph, PassError
from coordgraph.interpreter import trace
from coordgraph.interpreter.tracing import Receive, Segment, Send, Store, Trace
from coordgraph.tilings import macro_tile
from passes.base import Pass
from passes.choosing.counting import COUNTED_TILE, WorkCounter

__all__ = ["check", "enumerated"]

SMALL = ((3, 2, 5, 4), (1, 1, 7, 3), (4, 3, 2, 5), (1, 2, 11, 9), (1, 1, 40, 23))
"""Small problems in which every workgroup is traced, to check counts computed by formulas: number
of tiles along m, n and k, and number of workgroups."""


def check(counter: WorkCounter, schedule: Pass) -> None:
    """Compare the counts of a `WorkCounter` with counts from traces of small problems.

    Args:
        counter: the counter to check.
        schedule: the schedule from which it was derived.

    Raises:
        PassError: a count differs; the message names the count and the problem.
    """
    graph = schedule(Gemm("f32").graph(COUNTED_TILE))
    for tiles_m, tiles_n, depth, workgroups in SMALL:
        found = walked(graph, tiles_m, tiles_n, depth, workgroups)
        tiles = (tiles_m, tiles_n) if len(counter.inputs) > 3 else (tiles_m * tiles_n,)
        columns = (np.array([float(each)]) for each in (*tiles, depth, workgroups))
        counts = counter.count(*columns)
        for name, number in enumerated(found, counter):
            if (own := float(getattr(counts, name)[0])) != number:
                raise PassError(
                    f"the work of {schedule} cannot be counted, because its formulas are wrong for "
                    f"{tiles_m}x{tiles_n}x{depth} tiles and {workgroups} workgroups: {name} is "
                    f"{number}, not {own:.0f}; choose another schedule"
                )


def walked(graph: KernelGraph, tiles_m: int, tiles_n: int, depth: int, workgroups: int) -> Trace:
    """Trace every workgroup of a problem in the interpreter.

    The numeric arguments are the numbers of tiles along m, n and k, and the number of workgroups.
    """
    counts = zip("mnk", (tiles_m, tiles_n, depth), macro_tile(graph.coordinates), strict=True)
    sizes = {axis: count * extent for axis, count, extent in counts}
    if any(parameter.name == "workgroups" for parameter in graph.parameters.given):
        sizes["workgroups"] = workgroups
    return trace(graph, sizes)


def enumerated(found: Trace, counter: WorkCounter) -> Iterator[tuple[str, int]]:
    """Count the work in a trace; yield pairs (name of a field of `Counts`, its value).

    Args:
        found: the trace of all workgroups of a launch.
        counter: the `WorkCounter` of the schedule; its `fixup` says which fields are counted.
    """
    walks = found.workgroups
    whole = counter.small
    cut = [s for s in found.segments if s.k_count < s.depth]
    yield "grid", len(walks)
    yield "busy", sum(any(isinstance(e, Segment) for e in events) for events in walks)
    for small, name in ((False, ""), (True, "small_")):
        if small and whole == (1, 1):
            continue
        segments = [
            [e for e in events if isinstance(e, Segment) and (e.span != whole) == small]
            for events in walks
        ]
        stores = [
            {e.tile for e in events if isinstance(e, Store) and (e.span != whole) == small}
            for events in walks
        ]
        yield f"{name}iterations", max(sum(s.k_count for s in each) for each in segments)
        # In a reduce-scatter, every workgroup with a segment of a tile stores some rows of the
        # tile.
        yield f"{name}ends", max(map(len, segments if counter.fixup == "scatter" else stores))
    yield "sends", max(sum(isinstance(e, Send) for e in events) for events in walks)
    yield "all_sends", len(found.sends)
    yield "shortest", min((s.k_count for s in cut), default=0)
    if counter.fixup in ("peers", "tree", "turnstile"):
        yield "receives", max(sum(isinstance(e, Receive) for e in events) for events in walks)
    if counter.fixup == "turnstile":
        pieces = Counter(s.tile for s in cut)
        yield "chain", max(pieces.values(), default=1) - 1
