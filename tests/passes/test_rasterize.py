"""`Rasterize` and `Grouped` visit tiles in the order of nested loops or of a curve."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import codegen
from coordgraph import Gemm, KernelGraph
from coordgraph.integers import compile_function, index_symbol, size_symbol
from coordgraph.interpreter import trace
from passes import DataParallel, Grouped, Pass, Pipeline, Rasterize, SplitK, StreamK, TwoTileStreamK
from tests.passes.schedules import SCHEDULES, TILE
from tests.support.sampling import chosen, cover, quick_cases, words

PROVED = (
    DataParallel(),
    StreamK(),
    StreamK(workgroups=132, owner="last"),
    TwoTileStreamK(),
    TwoTileStreamK(owner="last", first="dp"),
    TwoTileStreamK(workgroups=132, owner="last"),
    TwoTileStreamK(first="dp", waves="contiguous"),
)
BANDED = (Rasterize(), Rasterize(width=5, snake=True, along="n"))
CURVED = (
    Rasterize(width=8, order="hilbert"),
    Rasterize(width=4, snake=True, along="n", order="morton"),
)
GROUPED = Grouped(groups=7)
Ways = tuple[Callable[..., tuple[int, ...]], Callable[..., tuple[int, ...]]]
"""Type: two functions, from a tile's row and column to its position in the order, and back."""
FOUND = (
    *((schedule,) for schedule in PROVED),
    *((BANDED[0], schedule) for schedule in PROVED[:3]),
    *((BANDED[1], schedule) for schedule in PROVED[3:5]),
    *((CURVED[0], schedule) for schedule in (*PROVED[:2], PROVED[5], SplitK(splits=4))),
    *((CURVED[1], schedule) for schedule in PROVED[2:4]),
    *((GROUPED, schedule) for schedule in (*PROVED[1:4], SplitK(splits=4))),
    (CURVED[0], GROUPED, PROVED[2]),
)


def visited(rows: int, columns: int, width: int, snake: bool) -> Iterator[tuple[int, int]]:
    """(row, column) of every tile in the order of `Rasterize`, by nested loops over bands.

    A band has `width` tile rows; with `snake`, every second band is visited from right to left.
    """
    for band, begin in enumerate(range(0, rows, width)):
        every = range(columns)
        for column in reversed(every) if snake and band % 2 else every:
            for row in range(begin, min(begin + width, rows)):
                yield row, column


def curve(order: str, side: int) -> list[tuple[int, int]]:
    """(row, column) of each tile of a square with `side` rows, along a Hilbert or Morton curve.

    Computed by the recursive definition of the curve.
    """
    if side == 1:
        return [(0, 0)]
    half = side // 2
    part = curve(order, half)
    if order == "morton":
        quarters = [part] * 4
        corners = [(0, 0), (half, 0), (0, half), (half, half)]
    else:
        swapped = [(column, row) for row, column in part]
        turned = [(half - 1 - row, half - 1 - column) for row, column in swapped]
        quarters = [swapped, part, part, turned]
        corners = [(0, 0), (half, 0), (half, half), (0, half)]
    return [
        (row + down, column + over)
        for (down, over), quarter in zip(corners, quarters, strict=True)
        for row, column in quarter
    ]


def along_curve(
    rows: int, columns: int, width: int, snake: bool, order: str
) -> Iterator[tuple[int, int]]:
    """(row, column) of every tile in the order of `Rasterize` along a curve.

    Whole squares of a band are visited along the curve, all other tiles column by column. A band
    has `width` tile rows; with `snake`, every second band is visited from right to left.
    """
    steps = curve(order, width)
    places = list(visited(rows, columns, width, snake))
    for number, (row, column) in enumerate(places):
        top, left = row // width * width, column // width * width
        if top + width > rows or left + width > columns:
            yield row, column
            continue
        first = min(places.index((top, left)), places.index((top, left + width - 1)))
        down, over = steps[number - first]
        back = snake and top // width % 2
        # A band visited from the right reaches the last column of a square first, but the curve
        # still begins at the first column.
        at = (number - first) % width, (number - first) // width
        if back:
            down, over = steps[(width - 1 - at[1]) * width + at[0]]
        yield top + down, left + over


@cache
def banded(width: int, snake: bool, along: Any, order: Any = "columns") -> KernelGraph:
    step = Rasterize(width=width, snake=snake, along=along, order=order)
    return step(Gemm("f32").graph(TILE))


@pytest.mark.slow
@given(
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(1, 12),
    st.booleans(),
    st.sampled_from("mn"),
)
@settings(max_examples=150)
def test_the_order_is_that_of_the_loops(m: int, n: int, width: int, snake: bool, along: str):
    """For symbolic sizes, the formulas from a tile to its position and back are right.

    The formulas are evaluated for numbers, and compared with nested loops.
    """
    graph = banded(width, snake, along)
    if graph.dangling[0].id != "tile.raster":
        return  # the pass adds no coordinate for bands of one row, which are row-major order
    order = (
        list(visited(m, n, width, snake))
        if along == "m"
        else [(i, j) for j, i in visited(n, m, width, snake)]
    )
    visits(m, n, order, there_and_back(width, snake, along))


@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from([2, 4, 8, 16]),
    st.booleans(),
    st.sampled_from("mn"),
    st.sampled_from(["hilbert", "morton"]),
)
@settings(max_examples=30)
def test_the_order_is_that_of_the_curve(
    m: int, n: int, width: int, snake: bool, along: str, order: str
):
    expected = (
        list(along_curve(m, n, width, snake, order))
        if along == "m"
        else [(i, j) for j, i in along_curve(n, m, width, snake, order)]
    )
    assert len(set(expected)) == m * n
    visits(m, n, expected, there_and_back(width, snake, along, order))


def visits(m: int, n: int, order: list[tuple[int, int]], ways: Ways) -> None:
    """Check that coordinates lead from each position of the order to its tile, and back."""
    place, tile = ways
    assert [tuple(tile(number, m, n)) for number in range(m * n)] == order
    assert [place(i, j, m, n)[0] for i, j in order] == list(range(m * n))


@cache
def there_and_back(width: int, snake: bool, along: str, order: str = "columns") -> Ways:
    graph = banded(width, snake, along, order)
    there = graph.coordinates.forward(["A.tile.0", "B.tile.1"], ["tile.raster"])
    back = graph.coordinates.reverse(["tile.raster"], ["A.tile.0", "B.tile.1"])
    sizes = [size_symbol("tiles_m"), size_symbol("tiles_n")]
    place = compile_function(there, [*map(index_symbol, ("A.tile.0", "B.tile.1")), *sizes])
    tile = compile_function(back, [index_symbol("tile.raster"), *sizes])
    return place, tile


@pytest.mark.parametrize("width", [2, 3, 8])
def test_neighbours_share_rows_and_columns(width: int):
    """`width` squared consecutive workgroups read `width` tile rows and `width` tile columns."""
    graph = Pipeline([Rasterize(width=width), DataParallel()])(Gemm("f32").graph(TILE))
    found = trace(graph, {"m": 4 * 2 * width, "n": 4 * 3 * width, "k": 4})
    tiles = [found.of(workgroup)[0].tile for workgroup in range(6 * width * width)]
    for begin in range(0, len(tiles), width * width):
        rows, columns = (set(x) for x in zip(*tiles[begin : begin + width**2], strict=True))
        assert (len(rows), len(columns)) == (width, width)


@quick_cases(4)
@pytest.mark.parametrize(
    ("width", "snake"),
    chosen(
        [*product([2, 4, 8], [False, True]), (16, True)],
        product([2, 4, 8, 16, 32, 64], [False, True]),
    ),
)
def test_a_hilbert_curve_goes_to_a_neighbour_with_every_step(width: int, snake: bool):
    """Consecutive tiles are neighbours, also from one square of a band to the next.

    Each aligned run of 4^k tiles fills a square of 2^k rows and columns.
    """
    graph = DataParallel()(banded(width, snake, "m", "hilbert"))
    found = trace(graph, {"m": 4 * width, "n": 4 * 2 * width, "k": 4})
    tiles = [found.of(workgroup)[0].tile for workgroup in range(2 * width * width)]
    assert len(set(tiles)) == len(tiles)
    steps = [abs(i - k) + abs(j - h) for (i, j), (k, h) in pairwise(tiles)]
    assert set(steps) == {1}
    for side in (2, width):
        for begin in range(0, len(tiles), side * side):
            rows, columns = (set(x) for x in zip(*tiles[begin : begin + side**2], strict=True))
            assert (len(rows), len(columns)) == (side, side)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(2, 8))
@settings(max_examples=60)
def test_tiles_are_dealt_to_groups(m: int, n: int, groups: int):
    """Tiles are distributed round-robin to groups, and one group is visited after another."""
    graph = grouped(groups)
    hands = [range(group, m * n, groups) for group in range(groups)]
    order = [divmod(tile, n) for hand in hands for tile in hand]
    sizes = [size_symbol("tiles_m"), size_symbol("tiles_n")]
    there = graph.coordinates.forward(["A.tile.0", "B.tile.1"], ["tile.grouped"])
    back = graph.coordinates.reverse(["tile.grouped"], ["A.tile.0", "B.tile.1"])
    place = compile_function(there, [*map(index_symbol, ("A.tile.0", "B.tile.1")), *sizes])
    tile = compile_function(back, [index_symbol("tile.grouped"), *sizes])
    assert [tuple(tile(number, m, n)) for number in range(m * n)] == order
    assert [place(i, j, m, n)[0] for i, j in order] == list(range(m * n))


@cache
def grouped(groups: int) -> KernelGraph:
    return Grouped(groups=groups)(Gemm("f32").graph(TILE))


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_groups_work_on_neighbours_at_the_same_k(groups: int):
    """Workgroups w, w + W/G, w + 2·W/G and so on compute neighbouring tiles, each at the same k.

    W is the number of workgroups, and G the number of groups of the pass `Grouped`.
    """
    graph = Pipeline([Grouped(groups=groups), StreamK(workgroups=24)])(Gemm("f32").graph(TILE))
    found = trace(graph, {"m": 4 * 8, "n": 4 * 16, "k": 4 * 9})
    members = 24 // groups
    for member in range(members):
        together = [found.of(member + members * group) for group in range(groups)]
        for segments in zip(*together, strict=True):
            assert len({(s.k_first, s.k_count) for s in segments}) == 1
            numbers = [16 * s.tile[0] + s.tile[1] for s in segments]
            assert numbers == list(range(numbers[0], numbers[0] + groups))


@quick_cases(1)
@pytest.mark.parametrize(
    ("name", "order"),
    chosen(
        (
            ("stream-k", BANDED[0]),
            ("heterogeneous-tiles", BANDED[1]),
            ("two-tile-stream-k", CURVED[0]),
            ("data-parallel", GROUPED),
        ),
        product(SCHEDULES, (*BANDED, CURVED[0], GROUPED)),
    ),
    ids=str,
)
def test_compiled_kernels_compute_the_same(name: str, order: Pass):
    kernel = codegen.compile(Pipeline([order, SCHEDULES[name]])(Gemm("f32").graph(TILE)), "cpu")
    random = np.random.default_rng(1)
    for m, n, k in ((33, 50, 20), (1, 9, 70), (70, 3, 5)):
        a = random.integers(-4, 5, (m, k)).astype(np.float32)
        b = random.integers(-4, 5, (k, n)).astype(np.float32)
        assert np.array_equal(kernel(a, b), a @ b)


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    cover(0, [(steps,) for steps in FOUND], lambda case: words(case[0])),
    ids=lambda steps: ",".join(map(str, steps)),
)
def test_tiles_are_found_without_a_division(steps: tuple[Pass, ...]):
    """Tile numbers are proved to fit 32 bits, so kernels multiply by magic numbers, not divide."""
    graph = Pipeline(steps)(Gemm().graph((16, 16, 16)))
    kernel = codegen.compile(graph, "sm_80")
    assert re.findall(r"\b(?:div|rem)\.\w+", kernel.ptx) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "order"),
    cover(
        0, product([4096, 4352], [Rasterize(snake=True), *CURVED, GROUPED]), lambda case: (case[0],)
    ),
    ids=str,
)
def test_tiles_that_fit_need_no_guard(m: int, order: Pass):
    """Rows and columns of all bands, also the last one, are proved to lie inside the matrices."""
    gemm = Gemm(m=m, n=4096, k=4096)
    graph = Pipeline([order, TwoTileStreamK()])(gemm.graph((128, 256, 64)))
    indices = codegen.compile(graph, "sm_80").index_expressions
    assert {x.coordinate for x in indices} >= {"A", "B", "D"}
    assert {x.guard for x in indices} == {"true"}
