"""`split-k{splits=none}` and `adjacent=tiles`: the pieces of all workgroups, in launch order."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coordgraph import Gemm
from coordgraph.interpreter import trace
from passes import SplitK
from passes.pipeline import Pipeline

TILE = 4
PROBLEM = Gemm("f32").graph((TILE, TILE, TILE))
counts = st.integers(1, 6)


def segments(step: SplitK, m: int, n: int, k: int, **given: int) -> list[list[tuple[int, ...]]]:
    """(tile row, tile column, first k tile, number of k tiles) of all segments, by workgroup."""
    found = trace(step(PROBLEM), {"m": m * TILE, "n": n * TILE, "k": k * TILE, **given})
    assert not found.problems()
    grid = m * n * (step.splits or max(given["workgroups"] // (m * n), 1))
    return [[(*s.tile, s.k_first, s.k_count) for s in found.of(w)] for w in range(grid)]


@given(counts, counts, st.integers(2, 5), st.integers(0, 3), st.integers(1, 12))
def test_neighbours_have_the_same_k_tiles_of_consecutive_tiles(
    m: int, n: int, q: int, more: int, k: int
):
    step = SplitK(splits=None, reduction="scatter", adjacent="tiles")
    tiles = m * n
    found = segments(step, m, n, k, workgroups=tiles * q + min(more, tiles - 1))
    for piece in range(q):
        wave = found[piece * tiles : (piece + 1) * tiles]
        assert len({tuple(part[2:] for part in parts) for parts in wave}) == 1
        numbers = [row * n + column for parts in wave for row, column, *_ in parts]
        assert numbers in (list(range(tiles)), [])


@given(counts, counts, st.integers(1, 12), st.integers(2, 5), st.sampled_from(["pieces", "tiles"]))
def test_the_grid_decides_the_number_of_pieces(m: int, n: int, k: int, splits: int, adjacent: str):
    """With a grid of `splits` workgroups for each tile, pieces are those of the option `splits`."""
    by_grid = SplitK(splits=None, reduction="peers", adjacent=adjacent)  # pyright: ignore[reportArgumentType]
    found = segments(by_grid, m, n, k, workgroups=m * n * splits)
    fixed = segments(SplitK(splits=splits, reduction="peers"), m, n, k)
    if adjacent == "pieces":
        assert found == fixed
    assert sorted(found) == sorted(fixed)


@given(counts, counts, st.integers(1, 12), counts)
def test_a_grid_that_is_too_small_divides_no_tile(m: int, n: int, k: int, workgroups: int):
    step = SplitK(splits=None, reduction="scatter", adjacent="tiles")
    found = segments(step, m, n, k, workgroups=min(workgroups, m * n))
    assert found == [[(row, column, 0, k)] for row in range(m) for column in range(n)]


def test_without_the_option_neighbours_have_pieces_of_one_tile():
    found = [only for (only,) in segments(SplitK(splits=4), 2, 1, 8)]
    assert all(one[:2] == next_one[:2] for one, next_one in pairwise(found[:4]))


def test_the_options_are_written_and_read():
    text = "split-k{splits=none,reduction=scatter,adjacent=tiles}"
    assert str(Pipeline.parse(text)) == text
