"""`stream-k{adjacent=tiles}`: workgroups that are launched in turn have adjacent tiles."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgraph import Gemm
from coordgraph.interpreter import trace
from passes import StreamK
from passes.pipeline import Pipeline

TILE = 4
PROBLEM = Gemm("f32").graph((TILE, TILE, TILE))
counts = st.integers(1, 6)


def segments(adjacent: str, workgroups: int, m: int, n: int, k: int) -> list[list[tuple[int, ...]]]:
    """(tile row, tile column, first k tile, number of k tiles) of all segments, by workgroup."""
    step = StreamK(reduction="scatter", shares="balanced", adjacent=adjacent)  # pyright: ignore[reportArgumentType]
    found = trace(
        step(PROBLEM), {"m": m * TILE, "n": n * TILE, "k": k * TILE, "workgroups": workgroups}
    )
    return [[(*s.tile, s.k_first, s.k_count) for s in found.of(w)] for w in range(workgroups)]


@given(counts, counts, st.integers(1, 5), st.integers(0, 3))
def test_neighbours_have_the_same_k_tiles_of_consecutive_tiles(m: int, n: int, q: int, more: int):
    """If the grid is a multiple of the tiles, and every tile has as many k tiles as pieces."""
    found = segments("tiles", m * n * q, m, n, q * (more + 1))
    tiles = m * n
    for piece in range(q):
        wave = [only for (only,) in found[piece * tiles : (piece + 1) * tiles]]
        assert len({(first, count) for _, _, first, count in wave}) == 1
        numbers = [row * n + column for row, column, *_ in wave]
        assert numbers == list(range(tiles))


@given(counts, counts, st.integers(1, 9), st.integers(1, 40))
def test_workgroups_are_only_renumbered(m: int, n: int, k: int, workgroups: int):
    """For any grid the workgroups have the same shares as without the option, in another order."""
    tiles = segments("tiles", workgroups, m, n, k)
    assert sorted(tiles) == sorted(segments("pieces", workgroups, m, n, k))


def test_without_the_option_neighbours_have_pieces_of_one_tile():
    found = [only for (only,) in segments("pieces", 8, 2, 1, 8)]
    assert all(one[:2] == next_one[:2] for one, next_one in pairwise(found[:4]))


def test_the_option_is_written_and_read():
    text = "stream-k{reduction=scatter,shares=balanced,adjacent=tiles}"
    assert str(Pipeline.parse(text)) == text


@pytest.mark.parametrize("schedule", [StreamK(adjacent="tiles"), StreamK(adjacent="pieces")])
def test_a_grid_of_fixed_size(schedule: StreamK):
    fixed = StreamK(workgroups=5, adjacent=schedule.adjacent)
    found = trace(fixed(PROBLEM), {"m": 8, "n": 8, "k": 20})
    assert sum(s.k_count for w in range(5) for s in found.of(w)) == 2 * 2 * 5
