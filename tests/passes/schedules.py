"""The schedules under test, tile orders to apply before a schedule, and problems for tests."""

from __future__ import annotations

from functools import cache
from itertools import product

from hypothesis import strategies as st

from coordgraph import Gemm, KernelGraph
from passes import (
    DataParallel,
    Grouped,
    HeterogeneousTiles,
    HybridStreamK,
    Pass,
    Pipeline,
    Rasterize,
    Reorder,
    SplitK,
    StreamK,
    TwoTileStreamK,
)
from tests.support.sampling import cover, words

TILE = (4, 4, 4)

Problem = tuple[int, int, int, int]
"""Type of a problem: m, n, k and the number of workgroups."""

STREAMS = tuple(
    f"stream-k{{{options}}}"
    for options in (
        "owner=first",
        "owner=last",
        "owner=first,reduction=tree",
        "owner=last,reduction=tree",
        "owner=first,reduction=turnstile",
        "owner=last,reduction=turnstile",
        "owner=first,reduction=atomic",
        "owner=last,reduction=atomic",
        "reduction=scatter",
        "least=5",
        "owner=last,least=3,reduction=tree",
        "least=5,reduction=scatter",
    )
)
"""Stream-K schedules that accept output tiles with different numbers of k tiles."""

SCHEDULES: dict[str, Pass] = {
    str(schedule): schedule
    for schedule in (
        DataParallel(),
        DataParallel(persistent=True),
        *(StreamK(owner=owner) for owner in ("first", "last")),
        *(StreamK(owner=owner, reduction="tree") for owner in ("first", "last")),
        StreamK(least=5),
        *(StreamK(owner=owner, least_segment=3) for owner in ("first", "last")),
        StreamK(least_segment=2, reduction="turnstile"),
        *(
            TwoTileStreamK(owner=owner, first=first)
            for owner in ("first", "last")
            for first in ("sk", "dp")
        ),
        TwoTileStreamK(waves="contiguous"),
        TwoTileStreamK(owner="last", first="dp", waves="contiguous", least=6),
        TwoTileStreamK(owner="last", reduction="tree"),
        TwoTileStreamK(owner="last", first="dp", least_segment=4),
        HybridStreamK(),
        HybridStreamK(owner="last", first="dp", reduction="tree"),
        HybridStreamK(owner="last", waves="contiguous", least=3),
        HybridStreamK(owner="last", least_segment=2, reduction="tree"),
        *(StreamK(owner=owner, reduction="turnstile") for owner in ("first", "last")),
        TwoTileStreamK(first="dp", reduction="turnstile"),
        HybridStreamK(owner="last", reduction="turnstile"),
        *(SplitK(splits=3, owner=owner) for owner in ("first", "last")),
        SplitK(splits=4, reduction="peers"),
        SplitK(splits=7, owner="first", reduction="tree"),
        HeterogeneousTiles(),
        HeterogeneousTiles(small_m=1),
        StreamK(reduction="scatter"),
        StreamK(least=5, reduction="scatter"),
        StreamK(k_order="interleaved"),
        StreamK(owner="last", reduction="turnstile", k_order="interleaved"),
        StreamK(least=5, reduction="scatter", k_order="interleaved"),
        TwoTileStreamK(reduction="scatter"),
        HybridStreamK(first="dp", waves="contiguous", reduction="scatter"),
        SplitK(splits=4, reduction="scatter"),
        SplitK(splits=None, reduction="scatter"),
        SplitK(splits=None, owner="last", reduction="peers", adjacent="tiles"),
        SplitK(splits=None, reduction="scatter", adjacent="tiles"),
        *(StreamK(owner=owner, reduction="atomic") for owner in ("first", "last")),
        StreamK(owner="last", least_segment=3, reduction="atomic"),
        TwoTileStreamK(owner="last", first="dp", reduction="atomic"),
        HybridStreamK(waves="contiguous", least=3, reduction="atomic"),
        *(SplitK(splits=5, owner=owner, reduction="atomic") for owner in ("first", "last")),
    )
}
WHOLE_TILES = ("data-parallel", "heterogeneous-tiles")
"""First words of the names of schedules with whole tiles, in which no workgroup waits."""
ORDERS = {
    "plain": (),
    "swap": (Reorder(swap=True),),
    "group": (Reorder(group=3),),
    "swap-group": (Reorder(swap=True, group=2),),
    "bands": (Rasterize(width=2, snake=True),),
    "bands-n": (Rasterize(width=3, along="n"),),
    "hilbert": (Rasterize(width=4, snake=True, order="hilbert"),),
    "morton": (Rasterize(width=2, along="n", order="morton"),),
    "grouped": (Grouped(groups=3),),
    "bands-grouped": (Rasterize(width=2), Grouped(groups=2)),
}
_REORDERED = tuple(product(SCHEDULES, [order for order in ORDERS if order != "plain"]))
ORDERED = (
    *((name, "plain") for name in SCHEDULES),
    *(case.values for case in cover(0, _REORDERED, words) if not case.marks),
)
"""Pairs (schedule, tile order) for quick tests, by name.

Every schedule is paired with row-major order (`plain`), and every schedule option and every other
order occurs in some pair. All test files use these pairs, so that they share cached graphs. Slow
tests use all combinations.
"""


def schedule(name: str, workgroups: int | None = None) -> Pass:
    """A schedule by name.

    If `workgroups` is a number and the schedule has an option `workgroups`, the option is set to
    the number.
    """
    found = SCHEDULES[name] if name in SCHEDULES else Pipeline.parse(name).passes[0]
    options = dict(found.options)
    if workgroups is not None and "workgroups" in options:
        options["workgroups"] = workgroups
    return type(found)(**options)


@cache
def symbolic(name: str, order: str = "plain", tile: tuple[int, int, int] = TILE) -> KernelGraph:
    """A scheduled graph with symbolic sizes, which serves all problems."""
    return Pipeline([*ORDERS[order], schedule(name)])(Gemm("f32").graph(tile))


def numeric(name: str, problem: Problem, order: str = "plain") -> KernelGraph:
    """A scheduled graph whose sizes and grid are fixed to those of one problem."""
    m, n, k, workgroups = problem
    gemm = Gemm("f32", m=m, n=n, k=k)
    return Pipeline([*ORDERS[order], schedule(name, workgroups)])(gemm.graph(TILE))


def parameters(graph: KernelGraph, problem: Problem) -> dict[str, int]:
    """The launch arguments of a problem that the graph has as parameters."""
    values = dict(zip(("m", "n", "k", "workgroups"), problem, strict=True))
    return {name: value for name, value in values.items() if name in graph.parameters}


def moved(name: str, depth: int) -> int:
    """The most iterations that the option `least_segment` of a schedule can add to one workgroup.

    The option moves the first and the last iteration of a workgroup to tile ends that are near.
    `name` is the schedule's, `depth` the number of k tiles of an output tile.
    """
    least = schedule(name).options.get("least_segment", 1)
    assert isinstance(least, int)
    return min(least - 1, (depth - 1) // 2) + min(least - 1, depth // 2)


def in_tiles(tiles_m: int, tiles_n: int, tiles_k: int, workgroups: int) -> Problem:
    """The problem (m, n, k, workgroups) whose m, n and k are the given numbers of whole tiles."""
    return tiles_m * TILE[0], tiles_n * TILE[1], tiles_k * TILE[2], workgroups


@st.composite
def problems(draw: st.DrawFn, most: int = 24) -> Problem:
    """A Hypothesis strategy for problems (m, n, k, workgroups), most of which have partial tiles.

    Some have more workgroups than there are iterations over k tiles.
    """
    extents = st.integers(1, most)
    return draw(extents), draw(extents), draw(st.integers(1, 2 * most)), draw(st.integers(1, 40))


CORNERS: dict[str, Problem] = {
    "fewer tiles than workgroups": in_tiles(2, 3, 5, 10),
    "as many tiles as workgroups": in_tiles(2, 3, 5, 6),
    "tiles a multiple of workgroups": in_tiles(4, 3, 5, 4),
    "one k tile": in_tiles(3, 5, 1, 4),
    "one workgroup": in_tiles(3, 2, 4, 1),
    "more workgroups than iterations": in_tiles(1, 2, 3, 11),
    "one tile in many pieces": in_tiles(1, 1, 16, 5),
    "shares end where tiles end": in_tiles(4, 2, 6, 4),
    "one element": (1, 1, 1, 3),
    "ragged everywhere": (9, 13, 23, 5),
}
