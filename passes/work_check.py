"""The check of a schedule's work: the interpreter traces its workgroups on small problems.

A scheduled graph must do every iteration (m, n, k) exactly once, run one epilogue and one store for
every output tile, and send one signal for every wait, so that no workgroup waits for ever. Each
workgroup must zero an accumulator, add products to it, then either send it or apply the epilogue
and store it, in this order. In a reduce-scatter, a workgroup must add every piece of a tile for
which it waited, once to each share.

The problems are edge cases: the number of output tiles is a multiple of the number of workgroups,
one more, or one less; there are fewer output tiles than workgroups; there is one k tile. The
extents of m, n and k differ, so that a mix-up of two axes is found. The check is a test on
examples, not a proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from sympy import Integer

from coordgraph import CoordGraphError, KernelGraph, LaunchError
from coordgraph.gemm import AXES
from coordgraph.parameters import LARGEST_INDEX
from coordgraph.tilings import macro_tile

if TYPE_CHECKING:
    from coordgraph.interpreter import Trace

__all__ = ["MOST_EVENTS", "small_launches", "work_problems"]

MOST_EVENTS = 2048
"""The largest sum of output tiles and workgroups for which a problem is traced. No problem is
traced if sizes that are fixed in the graph make every problem larger."""
SHOWN = 3
"""The most errors that a message lists for one launch."""


class Launch(NamedTuple):
    """Launch arguments of a small problem: values of parameters and entries of tables, by name."""

    values: dict[str, int]
    tables: dict[str, list[int]]

    def __str__(self) -> str:
        shown = {**self.values, **self.tables}
        return ", ".join(f"{name}={value}" for name, value in shown.items() if value)


@lru_cache(maxsize=256)
def work_problems(graph: KernelGraph) -> tuple[str, ...]:
    """Check that the workgroups of a scheduled graph do the right work, by tracing small problems.

    Returns the errors of the first problem with errors, or (). Results are cached for equal graphs.
    """
    # Imported here so that `import passes` does not import NumPy.
    from coordgraph.interpreter import trace

    for launch in small_launches(graph):
        try:
            found = trace(graph, launch.values, launch.tables)
        except LaunchError:  # the graph's bounds on parameters exclude these sizes
            continue
        except CoordGraphError as error:
            return (f"with {launch}: {error}",)
        if problems := found.problems() or tuple(_stuck(found)):
            more = len(problems) - SHOWN
            shown = (*problems[:SHOWN], f"and {more} more") if more > 0 else problems
            return tuple(f"with {launch}: {problem}" for problem in shown)
    return ()


def small_launches(graph: KernelGraph) -> Iterator[Launch]:
    """Launches of small problems for which a wrong schedule of the graph is likely to fail."""
    seen: set[str] = set()
    for tiles in _tile_counts(graph):
        launch = _launch(graph, *tiles)
        if str(launch) in seen or _events(graph, launch) > MOST_EVENTS:
            continue
        seen.add(str(launch))
        yield launch


Tiles = tuple[int, int, int, int]
"""(m, n, k, workgroups): the number of tiles along m, n and k, and the number of workgroups."""


def _tile_counts(graph: KernelGraph) -> tuple[Tiles, ...]:
    """Numbers of tiles in m, n and k, and of workgroups, of problems that are edge cases.

    With T output tiles and W workgroups, the cases have T mod W = 0, 1 and W - 1, and T < W.
    """
    size = graph.workgroup.size
    if not isinstance(size, Integer):
        return (
            (3, 4, 2, 6),  # 12 output tiles on 6 workgroups: two full waves
            (1, 7, 3, 3),  # 7 output tiles on 3 workgroups: one more than two full waves
            (5, 1, 4, 3),  # 5 output tiles on 3 workgroups: one less than two full waves
            (2, 1, 7, 5),  # 2 output tiles of 7 iterations on 5 workgroups, which share tiles
            (2, 5, 1, 4),  # output tiles of one k tile, so that workgroups cannot share any
            (1, 1, 3, 8),  # 3 iterations on 8 workgroups: some have none
        )
    grid = int(size)
    return (
        (grid + 1, 1, 2, grid),
        (2, 1, 5, grid),
        (1, max(grid - 1, 1), 3, grid),
        *(((2, grid, 1, grid), (1, 2 * grid + 1, 3, grid)) if grid < 16 else ()),
    )


def _launch(graph: KernelGraph, m: int, n: int, k: int, workgroups: int) -> Launch:
    """Launch arguments of a problem with m, n and k tiles along its axes.

    The last tile along n and along k is not full. A batch has 3 products; a grouped problem has 3
    groups.
    """
    gemm, known, counts = graph.gemm, graph.parameters, (m, n, k)
    extents = {
        axis: count * extent - min(extent // 2, index)
        for index, (axis, count, extent) in enumerate(
            zip(AXES, counts, macro_tile(graph.coordinates), strict=True)
        )
    }
    tables: dict[str, list[int]] = {}
    groups = 3
    for axis, extent in extents.items():
        if gemm.ragged(axis):
            # The extents of three groups along the axis; one group is empty unless `diagonal`.
            sizes = (extent, 0, extent // 2 + 1)
            if gemm.diagonal:
                sizes = (extent, extent // 2 + 1, extent // 3 + 1)
            tables[gemm.offsets(axis)] = [0, *accumulate(sizes)]
            extents[axis] = sum(sizes)
    values: dict[str, int] = {}
    for parameter in known.given:
        name = parameter.name
        if name in extents:
            values[name] = extents[name]
        elif name == "workgroups":
            values[name] = workgroups
        elif name in ("batches", "groups"):
            values[name] = groups
        elif parameter.minimum > 0:
            values[name] = LARGEST_INDEX if name.startswith("elements_") else parameter.minimum
        if name in values:
            values[name] = min(max(values[name], parameter.minimum), parameter.maximum)
    return Launch(values, tables)


def _events(graph: KernelGraph, launch: Launch) -> int:
    """Number of output tiles plus workgroups of a launch: an estimate of its trace's length."""
    tiles, gemm = 1, graph.gemm
    for axis, extent in zip("mn", macro_tile(graph.coordinates), strict=False):
        fixed = getattr(gemm, axis) or launch.values.get(axis, extent)
        tiles *= -(-fixed // extent)
    size = graph.workgroup.size
    grid = int(size) if isinstance(size, Integer) else launch.values.get("workgroups", 0)
    return tiles * launch.values.get("batches", 1) + grid


def _stuck(found: Trace) -> Iterator[str]:
    """Yield an error if workgroups wait for each other in a cycle, so that none can proceed."""
    waiting = [receive.workgroup for receive in found.stuck()]
    if waiting:
        yield f"workgroups {', '.join(map(str, waiting))} wait for each other for ever"
