"""Count the work of a schedule without running it: iterations of each SM, fix-ups, workspace.

The interpreter traces the graph, so every count is exact, for any schedule. If a schedule has tiles
of several shapes, iterations are weighted by area: an iteration of a tile with half the area of the
macro tile counts as half an iteration.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from math import prod

from coordgraph import Gemm, KernelGraph
from coordgraph.integers import evaluate
from coordgraph.interpreter import trace
from coordgraph.tensors import dtype as dtype_named
from coordgraph.tilings import macro_tile
from passes import Pipeline

__all__ = ["Counts", "Tile", "busiest", "count", "has_grid", "plane", "scheduled", "starts"]

Tile = tuple[int, int, int]


@dataclass(frozen=True)
class Counts:
    """Counts of a schedule on one problem and device.

    Args:
        tiles: the number of output tiles.
        grid: the number of workgroups launched.
        busiest: the number of iterations of the SM that has the most, rounded up. An iteration
            multiplies one k tile of a macro tile.
        utilisation: all iterations / (number of SMs x iterations of the busiest SM).
        fix_ups: the number of partial tiles that workgroups receive from others and add.
        workspace_bytes: bytes of memory for partial tiles and flags.
    """

    tiles: int
    grid: int
    busiest: int
    utilisation: float
    fix_ups: int
    workspace_bytes: int

    def json(self) -> dict[str, float]:
        """All fields as a dict, for a JSON record."""
        return asdict(self)


@cache
def scheduled(schedule: str, tile: Tile, dtype: str) -> KernelGraph:
    """Apply a schedule to a GEMM graph whose m, n and k are launch arguments; return the graph.

    Raises:
        ParseError: the schedule is malformed.
        PassError: a pass of the schedule cannot be applied to the graph.
    """
    return Pipeline.parse(schedule)(Gemm(dtype).graph(tile))


def has_grid(schedule: str, tile: Tile, dtype: str = "bf16") -> bool:
    """True if the schedule takes the number of workgroups as a launch argument."""
    return "workgroups" in scheduled(schedule, tile, dtype).parameters


def starts(iterations: Iterable[int], processors: int) -> list[int]:
    """The time at which each workgroup starts, in iterations.

    Every SM starts the next workgroup when its previous one ends. Epilogues, and waiting for
    partial tiles, are assumed to take no time.

    Args:
        iterations: the number of iterations of each workgroup, in the order of their launch.
        processors: the number of SMs.

    >>> starts([4] * 4, 3), starts([5, 1, 1, 1], 2)
    ([0, 0, 0, 4], [0, 0, 1, 2])
    """
    free = [0] * processors
    return [heapq.heapreplace(free, free[0] + length) for length in iterations]


def busiest(iterations: Sequence[int], processors: int) -> int:
    """The number of iterations that the busiest SM executes.

    Every SM starts the next workgroup when its previous one ends.

    Args:
        iterations: the number of iterations of each workgroup, in the order of their launch.
        processors: the number of SMs.

    >>> busiest([4] * 7, 3), busiest([5, 1, 1, 1], 2)
    (12, 5)
    """
    begins = starts(iterations, processors)
    return max((b + length for b, length in zip(begins, iterations, strict=True)), default=0)


def count(
    schedule: str, tile: Tile, size: tuple[int, int, int], processors: int, dtype: str = "bf16"
) -> Counts:
    """Count the work of a schedule on a problem of size (m, n, k).

    If the number of workgroups is a launch argument, it is the number of SMs, `processors`.

    Raises:
        ParseError: the schedule is malformed.
        PassError: a pass refuses the problem.
    """
    graph = scheduled(schedule, tile, dtype)
    values: dict[str, int] = dict(zip(("m", "n", "k"), size, strict=True))
    if "workgroups" in graph.parameters:
        values["workgroups"] = processors
    found = trace(graph, values)
    known = graph.parameters.evaluate({"read_c": 0, **values})
    most = busiest(found.iterations, processors)
    # `found` counts iterations of unit tiles; `units` is the number of unit tiles in a macro tile.
    # The unit tile is the largest tile that divides the shapes of all tiles of the schedule.
    units = prod(macro_tile(graph.coordinates)[:2]) // prod(graph.tilings.unit[:2])
    return Counts(
        tiles=prod(found.tiles[:-1]) // units,
        grid=len(found.workgroups),
        busiest=-(-most // units),
        utilisation=found.useful / (most * processors),
        fix_ups=len(found.fix_ups),
        workspace_bytes=sum(
            int(evaluate(tensor.elements, known)) * dtype_named(tensor.dtype).bytes
            for tensor in graph.tensors
            if tensor.role.workspace
        ),
    )


def plane(tiles: int) -> tuple[int, int]:
    """(rows, columns) of a matrix of `tiles` tiles, as nearly square as its factors allow.

    >>> plane(132), plane(133), plane(131)
    ((11, 12), (7, 19), (1, 131))
    """
    rows = max(d for d in range(1, tiles + 1) if tiles % d == 0 and d * d <= tiles)
    return rows, tiles // rows
