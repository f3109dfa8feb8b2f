"""`LaunchTraces` interprets small launches of a graph and returns their traces, for verification.

A trace records which tiles and iterations each workgroup computes, and which partial sums it sends
and receives. Launches that need more work than a limit are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from math import prod

from coordgraph.errors import CoordGraphError, LaunchError, NoEntry
from coordgraph.interpreter.faults import Fault
from coordgraph.interpreter.program import program
from coordgraph.interpreter.recording import record, trace
from coordgraph.interpreter.tracing import OutputTile, Segment, Trace
from coordgraph.interpreter.walking import Budget, BudgetExceeded, EndlessLoop
from coordgraph.kept_results import kept_results
from coordgraph.kernel import KernelGraph
from coordgraph.verification.launch import Launch

__all__ = ["MOST_STEPS", "LaunchTraces", "launch_trace"]

MOST_STEPS = 1 << 16
"""Largest number of loop iterations of one workgroup. If a workgroup executes more, its loop is
reported as endless."""
LONGEST = 2 * MOST_STEPS
"""A launch is traced for up to this many loop iterations, over all workgroups, even if less is left
of the budget that all launches share. So an endless loop reaches MOST_STEPS and is recognised."""
SHORT = 2000
"""The largest number of loop iterations, over all workgroups, of a launch that is traced after an
endless loop was found in another launch."""


class LaunchTraces:
    """Traces launches of a graph, and counts those that it skips because they need too much work.

    Args:
        graph: a scheduled graph.
    """

    def __init__(self, graph: KernelGraph) -> None:
        self._graph = graph
        self.left_out = 0
        """Number of launches that were not traced because they exceed a limit on work."""

    def of(
        self, launches: Sequence[Launch], count: int, work: int | None
    ) -> tuple[tuple[Launch, Trace | Fault], ...]:
        """The launches with their traces, or with the error that ended the trace.

        Args:
            launches: the launches to trace, in order of decreasing importance.
            count: the smallest number of traces to return. A further trace is returned only if it
                has a fault, or features that no earlier trace has.
            work: the largest sum of output tiles, workgroups and loop iterations of all launches;
                launches that exceed it are left out. None for no limit.
        """
        found: list[tuple[Launch, Trace | Fault]] = []
        seen: set[tuple[object, ...]] = set()
        longest = max(work or 0, LONGEST)
        for launch in launches:
            budget = None if work is None else Budget(min(max(work, LONGEST), longest))
            try:
                got, size = self._trace(launch, budget, work)
                if work is not None and budget is not None:
                    work -= size + budget.spent
                shapes = {*_shapes(got)}
                if len(found) < count or shapes - seen or got.faults:
                    found.append((launch, got))
                seen |= shapes
            except LaunchError:
                continue
            except BudgetExceeded:
                if work is not None and budget is not None:
                    work = max(work - budget.spent, 0)
                self.left_out += 1
            except EndlessLoop as error:
                found.append((launch, Fault("cover", str(error))))
                # one traced launch is enough to show the endless loop, so traces of further
                # launches end after SHORT iterations
                longest = SHORT
            except NoEntry as error:
                found.append((launch, Fault("bounds", f"an index leaves its table: {error}")))
            except CoordGraphError as error:
                found.append((launch, Fault("cover", str(error))))
        return tuple(found)

    def _trace(self, launch: Launch, budget: Budget | None, work: int | None) -> tuple[Trace, int]:
        """Return (trace of a launch, its number of output tiles plus its number of workgroups).

        Raises:
            LaunchError: the graph's bounds on parameters exclude the launch.
            BudgetExceeded: the sum of output tiles and workgroups is more than `work`, or there are
                more loop iterations than `budget` allows.
            EvaluationError: the trace fails.
        """
        parameters, code = self._graph.parameters, program(self._graph)
        least = {p.name: 0 for p in parameters.given if p.minimum == 0}
        values = parameters.launch({**least, **launch.values}, launch.tables)
        env = code.environment(values)
        (grid,), tiles = code.grid(env), code.tiles(env)[:-1]
        size = max(prod(tiles), 0) + grid
        if work is not None and size > work:
            raise BudgetExceeded(
                f"the launch has {size} output tiles and workgroups, more than the budget of "
                f"{work}; choose smaller sizes"
            )
        known = kept_results(self._graph).get((launch_trace, str(launch)))
        return known or record(code, values, MOST_STEPS, budget), size


def launch_trace(graph: KernelGraph, launch: Launch) -> Trace:
    """The trace of a launch, without a limit on work.

    The trace is kept for the graph object, so that `LaunchTraces` does not record it again.

    Raises:
        LaunchError: the graph's bounds on parameters exclude the launch.
        EvaluationError: the trace fails.
    """
    kept, key = kept_results(graph), (launch_trace, str(launch))
    if key not in kept:
        kept[key] = trace(graph, launch.values, launch.tables)
    return kept[key]


def _shapes(found: Trace) -> Iterator[tuple[object, ...]]:
    """Yield the features of a trace: one for each output tile, and one for each workgroup.

    The feature of a tile says whether it has whole, first, middle and final segments, and has the
    approximate numbers of its segments and received partial sums. The feature of a workgroup has
    the kinds of its events, such as sends and receives.
    """
    receives = Counter(receive.tile for receive in found.receives)
    for tile, segments in groupby(sorted(found.segments, key=_tile_of), key=_tile_of):
        cut = [segment.role for segment in segments]
        yield (*sorted(set(cut)), len(cut).bit_length(), receives[tile].bit_length())
    for events in found.workgroups:
        kinds = [type(event).__name__ for event in events if not isinstance(event, Segment)]
        yield (*(kind for kind, _ in groupby(kinds)),)


def _tile_of(segment: Segment) -> OutputTile:
    return segment.tile
