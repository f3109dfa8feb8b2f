"""Bands: against nested loops that visit the same plane, and what they cost in compiled kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import codegen
from coordgraph import Gemm, KernelGraph
from coordgraph.integers import compile_function, index_symbol, size_symbol
from coordgraph.interpreter import trace
from passes import DataParallel, Pass, Pipeline, Rasterize, StreamK, TwoTileStreamK
from tests.passes.schedules import SCHEDULES, TILE

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
FOUND = (
    *((schedule,) for schedule in PROVED),
    *((BANDED[0], schedule) for schedule in PROVED[:3]),
    *((BANDED[1], schedule) for schedule in PROVED[3:5]),
)


def visited(rows: int, columns: int, width: int, snake: bool) -> Iterator[tuple[int, int]]:
    """The order, as loops."""
    for band, begin in enumerate(range(0, rows, width)):
        every = range(columns)
        for column in reversed(every) if snake and band % 2 else every:
            for row in range(begin, min(begin + width, rows)):
                yield row, column


@cache
def banded(width: int, snake: bool, along: str) -> KernelGraph:
    step = Rasterize(width=width, snake=snake, along=along)
    return step(Gemm("f32").graph(TILE))


@given(
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(1, 12),
    st.booleans(),
    st.sampled_from("mn"),
)
@settings(max_examples=150)
def test_the_order_is_that_of_the_loops(m: int, n: int, width: int, snake: bool, along: str):
    """Both directions, with sizes that are symbols: every tile at its place, none twice."""
    graph = banded(width, snake, along)
    if graph.dangling[0].id != "tile.raster":
        return  # one row at a time, as schedules do by themselves
    there = graph.coordinates.forward(["A.tile.0", "B.tile.1"], ["tile.raster"])
    back = graph.coordinates.reverse(["tile.raster"], ["A.tile.0", "B.tile.1"])
    sizes = [size_symbol("tiles_m"), size_symbol("tiles_n")]
    place = compile_function(there, [*map(index_symbol, ("A.tile.0", "B.tile.1")), *sizes])
    tile = compile_function(back, [index_symbol("tile.raster"), *sizes])
    order = (
        list(visited(m, n, width, snake))
        if along == "m"
        else [(i, j) for j, i in visited(n, m, width, snake)]
    )
    assert [tuple(tile(number, m, n)) for number in range(m * n)] == order
    assert [place(i, j, m, n)[0] for i, j in order] == list(range(m * n))


@pytest.mark.parametrize("width", [2, 3, 8])
def test_neighbours_share_rows_and_columns(width: int):
    """`width` squared workgroups need `width` rows and `width` columns, wherever they begin."""
    graph = Pipeline([Rasterize(width=width), DataParallel()])(Gemm("f32").graph(TILE))
    found = trace(graph, {"m": 4 * 2 * width, "n": 4 * 3 * width, "k": 4})
    tiles = [found.of(workgroup)[0].tile for workgroup in range(6 * width * width)]
    for begin in range(0, len(tiles), width * width):
        rows, columns = (set(x) for x in zip(*tiles[begin : begin + width**2], strict=True))
        assert (len(rows), len(columns)) == (width, width)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("order", BANDED, ids=str)
def test_compiled_kernels_compute_the_same(name: str, order: Pass):
    kernel = codegen.compile(Pipeline([order, SCHEDULES[name]])(Gemm("f32").graph(TILE)), "cpu")
    random = np.random.default_rng(1)
    for m, n, k in ((33, 50, 20), (1, 9, 70), (70, 3, 5)):
        a = random.integers(-4, 5, (m, k)).astype(np.float32)
        b = random.integers(-4, 5, (k, n)).astype(np.float32)
        assert np.array_equal(kernel(a, b), a @ b)


@pytest.mark.parametrize("steps", FOUND, ids=lambda steps: ",".join(map(str, steps)))
def test_tiles_are_found_without_a_division(steps: tuple[Pass, ...]):
    """Tile numbers are proved to fit 32 bits: what the launch decides is multiplied by instead."""
    graph = Pipeline(steps)(Gemm().graph((64, 64, 32)))
    kernel = codegen.compile(graph, "sm_80")
    assert re.findall(r"\b(?:div|rem)\.\w+", kernel.ptx) == []


@pytest.mark.parametrize("m", [4096, 4352])
def test_tiles_that_fit_need_no_guard(m: int):
    """All that there is to know of a band's rows and columns is proved, the last band's too."""
    gemm = Gemm(m=m, n=4096, k=4096)
    graph = Pipeline([Rasterize(snake=True), TwoTileStreamK()])(gemm.graph((128, 256, 64)))
    indices = codegen.compile(graph, "sm_80").index_expressions
    assert {x.coordinate for x in indices} >= {"A", "B", "D"}
    assert {x.guard for x in indices} == {"true"}
