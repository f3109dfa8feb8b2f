"""The check `memory order`: the launches that it examines, and its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from sympy import Integer

from coordgraph.coordinates.dimensions import Cluster, Stage
from coordgraph.errors import LaunchError
from coordgraph.kernel import KernelGraph
from coordgraph.tilings import macro_tile
from coordgraph.verification.launch import Launch
from coordgraph.verification.launch_candidates import launch_of
from coordgraph.verification.memory_order.examine import Examiner
from coordgraph.verification.verdicts import Counterexample, Outcome, Verdict

__all__ = ["NAME", "STATES", "memory_order", "reduced_launches"]

NAME = "memory order"
STATES = (
    "The barriers, fences, signals and asynchronous copies of a lowered graph leave no data race "
    "and no deadlock, in any interleaving that the PTX memory model allows."
)
METHOD = "interleavings"
LAUNCHES = {"default": 3, "all": 7}
"""The number of launches that each level of `KernelGraph.check` examines."""
MOST_WORKGROUPS = 24
"""The most workgroups (CTAs) that share the tile of an examined launch."""
FEW = 8
"""A fixed number of workgroups above which tiles are chosen for it."""
SHOWN = 3
"""The largest number of counterexamples that the verdict lists."""


def memory_order(graph: KernelGraph, launches: Sequence[Launch]) -> Verdict:
    """Examine launches of a lowered graph; the time of the verdict is not set.

    Raises:
        VerifyError: the graph has an operation that declares no memory effects.
    """
    examiner, examined = Examiner(graph), 0
    found: list[Counterexample] = []
    for launch in launches:
        try:
            fault = examiner.examine(launch)
        except LaunchError:
            continue
        examined += 1
        if fault is not None and fault.problem not in {other.problem for other in found}:
            found.append(fault)
    if found:
        return Verdict(NAME, Outcome.REFUTED, METHOD, "", tuple(found[:SHOWN]))
    if not examined:
        return Verdict(NAME, Outcome.UNKNOWN, METHOD, "the graph allows no examined launch")
    return Verdict(NAME, Outcome.HOLDS, METHOD, f"all interleavings of {examined} launches")


def reduced_launches(graph: KernelGraph, level: str) -> tuple[Launch, ...]:
    """Launches of a few workgroups, tiles and k tiles, for the check of a lowered graph.

    The ring of stages is filled more than once, so that phases of mbarriers and stages are reused.
    Workgroups share tiles if the schedule lets them, and have several tiles if it does.

    Args:
        graph: a lowered graph.
        level: the level of `KernelGraph.check`.
    """
    shape, found = macro_tile(graph.coordinates), dict[str, Launch]()
    for number, tiles in enumerate(_tiles(graph)):
        launch = launch_of(graph, shape, tiles, number)
        found.setdefault(str(launch), launch)
        if len(found) == LAUNCHES[level]:
            break
    return tuple(found.values())


def _tiles(graph: KernelGraph) -> Iterator[tuple[int, int, int, int]]:
    """Numbers of tiles in m, n and k, and of workgroups, the most telling first."""
    stages = max((d.fixed_size for d in graph.coordinates.of_kind(Stage)), default=1)
    size = graph.workgroup.size
    if isinstance(size, Integer) and int(size) > FEW:
        yield from ((int(size) + 1, 1, 2, int(size)), (3, 1, stages + 1, int(size)))
    ranks = prod(d.fixed_size for d in graph.coordinates.of_kind(Cluster))
    peers = max(3, min(stages + 2, MOST_WORKGROUPS // ranks))
    yield from (
        (2, 1, stages + 2, 3),
        (1, 1, stages + 2, peers),  # one tile that all workgroups share
        (3, 1, stages + 1, 2),  # several tiles of a workgroup; the next one begins in a used stage
        (3, 2, 3, 2),
        (1, 1, 2 * stages + 1, 4),
        (2, 2, 1, 3),
        (1, 3, stages, 2),
    )
