"""The check `memory order`: choose launches of a lowered graph, simulate them, return a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from coordgraph.coordinates.dimensions import Cluster, Stage
from coordgraph.errors import LaunchError
from coordgraph.gemm import AXES
from coordgraph.kernel import KernelGraph
from coordgraph.tilings import macro_tile
from coordgraph.verification.launch import Launch
from coordgraph.verification.launch_candidates import launch_of
from coordgraph.verification.memory_order.examine import Examiner
from coordgraph.verification.memory_order.thread_values import TooLarge
from coordgraph.verification.verdicts import Counterexample, Outcome, Verdict

__all__ = ["NAME", "NOT_COVERED", "STATES", "memory_order", "reduced_launches"]

NAME = "memory order"
STATES = (
    "The barriers, fences, signals and asynchronous copies of a lowered graph leave no data race "
    "and no deadlock, in any interleaving that the PTX memory model allows. No access leaves its "
    "shared memory, or its workspace if that has a fixed size."
)
NOT_COVERED = (
    "In a lowered graph, the addresses of elements of A, B, C and D and the computed values are "
    "not examined."
)
"""Sentence for the field `not_covered` of the report: properties that no check of a lowered graph
examines, but checks of the scheduled graph do."""
METHOD = "interleavings"
LAUNCHES = {"default": 4, "all": 8}
"""The number of launches that the check `memory order` simulates, by the level of
`KernelGraph.check`."""
MOST_STEPS = 1 << 10
"""Largest number of k tiles, over all output tiles and over the CTAs of a cluster, of a simulated
launch. If the sizes that a graph fixes make every launch larger, no launch is simulated."""
MOST_WORKGROUPS = 24
"""Largest number of CTAs of the simulated launch in which all clusters compute parts of one output
tile. The launch has two clusters more than the kernel has pipeline stages, or fewer to keep this
limit, but at least 3."""
SHOWN = 3
"""Largest number of counterexamples that the verdict lists."""


def memory_order(graph: KernelGraph, launches: Sequence[Launch]) -> Verdict:
    """Run the check `memory order` of a lowered graph on some launches.

    The verdict's field `seconds` is not set.

    Raises:
        VerifyError: the graph has an operation that declares no memory effects.
    """
    examiner, examined = Examiner(graph), list[Launch]()
    found: list[Counterexample] = []
    reason = "no launch of the graph is small enough"
    for launch in launches:
        try:
            fault = examiner.examine(launch)
        except LaunchError:
            continue
        except TooLarge as large:
            reason = str(large)
            continue
        examined.append(launch)
        if fault is not None and fault.problem not in {other.problem for other in found}:
            found.append(fault)
    if found:
        return Verdict(NAME, Outcome.REFUTED, METHOD, "", tuple(found[:SHOWN]))
    if not examined:
        return Verdict(NAME, Outcome.UNKNOWN, METHOD, reason)
    count = len(examined)
    detail = f"all interleavings of {count} {'launch' if count == 1 else 'launches'}"
    return Verdict(NAME, Outcome.HOLDS, METHOD, detail, launches=tuple(examined))


def reduced_launches(graph: KernelGraph, level: str) -> tuple[Launch, ...]:
    """Launches of a few workgroups, tiles and k tiles, for the check of a lowered graph.

    There are more k tiles than pipeline stages, so that stages and phases of mbarriers are reused.
    If the schedule allows, several workgroups share a tile and one workgroup computes several
    tiles.

    Args:
        graph: a lowered graph.
        level: the level of `KernelGraph.check`.
    """
    shape, found = macro_tile(graph.coordinates), dict[str, Launch]()
    for number, tiles in enumerate(_tiles(graph)):
        launch = launch_of(graph, shape, tiles, number)
        if _steps(graph, launch) * _ranks(graph) <= MOST_STEPS:
            found.setdefault(str(launch), launch)
        if len(found) == LAUNCHES[level]:
            break
    return tuple(found.values())


def _steps(graph: KernelGraph, launch: Launch) -> int:
    """The number of k tiles over all output tiles of a launch.

    The number is approximate for groups, which are counted as one product: partial tiles at the
    ends of groups are not counted. For a batch, the k tiles of one product are counted.
    """
    extents = [getattr(graph.gemm, axis) or launch.values.get(axis, 0) for axis in AXES]
    shape = macro_tile(graph.coordinates)
    return prod(-(-extent // size) for extent, size in zip(extents, shape, strict=True))


def _ranks(graph: KernelGraph) -> int:
    """The number of CTAs of a cluster."""
    return prod(d.fixed_size for d in graph.coordinates.of_kind(Cluster))


def _tiles(graph: KernelGraph) -> Iterator[tuple[int, int, int, int]]:
    """Launches to simulate, as numbers of m, n and k tiles and of workgroups.

    The launches that find most faults come first.
    """
    stages = max((d.fixed_size for d in graph.coordinates.of_kind(Stage)), default=1)
    peers = max(3, min(stages + 2, MOST_WORKGROUPS // _ranks(graph)))
    yield from (
        (2, 1, stages + 2, 3),
        # in this launch, all workgroups compute parts of a single output tile
        (1, 1, stages + 2, peers),
        # in this launch, one workgroup computes four tiles of one k tile each, so a warp may be
        # still before its first tile when another warpgroup has computed the second one
        (2, 2, 1, 1),
        # in these launches, a workgroup computes several tiles; its second tile begins in a
        # pipeline stage that its first tile has used
        (3, 1, stages + 1, 2),
        (3, 2, 3, 2),
        (1, 1, 2 * stages + 1, 4),
        (2, 2, 1, 3),
        (1, 3, stages, 2),
    )
