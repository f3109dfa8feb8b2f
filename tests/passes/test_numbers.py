"""Schedules have the published iteration counts for 10 x 12 x 512 and for 57 x 57 x 57 tiles."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordgraph import Gemm
from coordgraph.integers import evaluate
from coordgraph.interpreter import Trace, trace
from passes import StreamK, TwoTileStreamK
from tests.passes.schedules import TILE, in_tiles, parameters, symbolic
from tests.support.sampling import quick_cases

SEED = in_tiles(10, 12, 512, 32)
TWO_TILE = [
    "two-tile-stream-k",
    "two-tile-stream-k{owner=last}",
    "two-tile-stream-k{first=dp}",
    "two-tile-stream-k{owner=last,first=dp}",
]
CONTIGUOUS = [
    "two-tile-stream-k{waves=contiguous}",
    "two-tile-stream-k{owner=last,waves=contiguous}",
    "two-tile-stream-k{first=dp,waves=contiguous}",
    "two-tile-stream-k{owner=last,first=dp,waves=contiguous}",
]


HYBRID = [
    "hybrid-stream-k",
    "hybrid-stream-k{owner=last,first=dp}",
    "hybrid-stream-k{owner=last,waves=contiguous}",
]


def traced(name: str, problem: tuple[int, int, int, int]) -> Trace:
    graph = symbolic(name)
    found = trace(graph, parameters(graph, problem))
    assert found.problems() == ()
    return found


def segments(found: Trace, workgroup: int) -> list[tuple[int, int, int]]:
    """(output tile, first k tile, last k tile) of each segment of a workgroup."""
    columns = found.tiles[1]
    return [
        (s.tile[0] * columns + s.tile[1], s.k_first, s.k_first + s.k_count - 1)
        for s in found.of(workgroup)
    ]


def parts(name: str, problem: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """How the hybrid schedule `name` divides the iterations of a problem (m, n, k, workgroups).

    Returns four numbers of iterations: of the Stream-K part in total, of one workgroup in the
    Stream-K part, of the data-parallel part in total, of one workgroup in the data-parallel part.
    """
    graph = symbolic(name)
    values = graph.parameters.evaluate({**parameters(graph, problem), "read_c": 0})
    names = ("sk.tiles", "sk.local", "dp.tiles", "dp.local")
    sizes = [graph.coordinates[name].size for name in names]
    a, b, c, d = (int(evaluate(size, values)) for size in sizes if size is not None)
    return a, b, c, d * (values["dp_waves"] if "contiguous" not in name else 1)


PLAIN = [(18, 384, 511), (19, 0, 511), (20, 0, 511), (21, 0, 511), (22, 0, 255)]


def test_stream_k_gives_workgroup_5_five_segments():
    found = traced("stream-k", SEED)
    assert sum(found.iterations) == 61440
    assert set(found.iterations) == {1920}
    assert segments(found, 5) == PLAIN
    assert found.of(5)[0].tile == (1, 6)
    assert [s.role for s in found.of(5)] == ["final", "whole", "whole", "whole", "first"]


def test_stream_k_with_the_last_owner_walks_backwards():
    assert segments(traced("stream-k{owner=last}", SEED), 5) == PLAIN[::-1]


def whole(*tiles: int) -> list[tuple[int, int, int]]:
    return [(tile, 0, 511) for tile in tiles]


SK = [(8, 384, 511), (9, 0, 511), (10, 0, 255)]
SK_LATER = [(tile + 64, first, last) for tile, first, last in SK]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (CONTIGUOUS[0], SK + whole(66, 67)),
        (CONTIGUOUS[1], SK[::-1] + whole(66, 67)),
        (CONTIGUOUS[2], whole(10, 11) + SK_LATER),
        (CONTIGUOUS[3], whole(10, 11) + SK_LATER[::-1]),
        (TWO_TILE[0], SK + whole(56 + 5, 56 + 32 + 5)),
        (TWO_TILE[1], SK[::-1] + whole(56 + 5, 56 + 32 + 5)),
        (TWO_TILE[2], whole(5, 32 + 5) + SK_LATER),
        (TWO_TILE[3], whole(5, 32 + 5) + SK_LATER[::-1]),
    ],
)
def test_two_tile_stream_k_on_workgroup_5(name: str, expected: list[tuple[int, int, int]]):
    assert segments(traced(name, SEED), 5) == expected


@pytest.mark.parametrize("name", TWO_TILE)
def test_a_wave_is_one_run_of_neighbours(name: str):
    """In every wave, consecutive workgroups compute consecutive whole tiles."""
    found = traced(name, SEED)
    begin = 0 if "first=dp" in name else 120 - 2 * 32
    by_workgroup = [
        [tile for tile, first, last in segments(found, w) if last - first == 511 and begin <= tile]
        for w in range(32)
    ]
    for wave in range(2):
        tiles = [mine[wave] for mine in by_workgroup]
        assert tiles == list(range(begin + 32 * wave, begin + 32 * (wave + 1)))


@pytest.mark.parametrize("name", [*TWO_TILE, *CONTIGUOUS])
@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (SEED, (28672, 896, 32768, 1024)),
        (in_tiles(57, 57, 57, 132), (12141, 92, 173052, 1311)),
        (in_tiles(57, 57, 57, 304), (29241, 97, 155952, 513)),
        (in_tiles(4, 4, 8, 3), (32, 11, 96, 32)),
    ],
)
def test_the_parts_of_two_tile_stream_k(
    name: str, problem: tuple[int, int, int, int], expected: tuple[int, int, int, int]
):
    assert parts(name, problem) == expected


@pytest.mark.parametrize("name", HYBRID)
@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (SEED, (24 * 512, 384, 96 * 512, 3 * 512)),
        (in_tiles(57, 57, 57, 132), (81 * 57, 35, 24 * 132 * 57, 24 * 57)),
        (in_tiles(57, 57, 57, 304), (209 * 57, 40, 10 * 304 * 57, 10 * 57)),
        (in_tiles(4, 4, 8, 3), (8, 3, 15 * 8, 5 * 8)),
        (in_tiles(2, 3, 5, 10), (30, 3, 0, 0)),
        (in_tiles(8, 16, 8, 64), (0, 1, 1024, 16)),
    ],
)
def test_the_parts_of_hybrid_stream_k(
    name: str, problem: tuple[int, int, int, int], expected: tuple[int, int, int, int]
):
    """With T tiles, W workgroups and TK k tiles per tile, (T mod W)·TK are Stream-K iterations.

    57 x 57 tiles are 3249 = 24·132 + 81 = 10·304 + 209.
    """
    assert parts(name, problem) == expected


@pytest.mark.parametrize("name", [*TWO_TILE, *CONTIGUOUS])
def test_two_fixups(name: str):
    assert len(traced(name, in_tiles(4, 4, 8, 3)).receives) == 2


@pytest.mark.parametrize("name", ["stream-k", "stream-k{owner=last}", *TWO_TILE])
def test_one_tile_on_too_many_workgroups(name: str):
    found = traced(name, in_tiles(1, 1, 64, 128))
    assert len(found.receives) == 63
    assert found.idle == tuple(range(64, 128))


@quick_cases(2)
@pytest.mark.parametrize(
    ("least", "shares"),
    [(1, (1,) * 64), (2, (2,) * 32), (6, (6,) * 10 + (4,)), (64, (64,)), (100, (64,))],
)
def test_shares_are_no_slivers(least: int, shares: tuple[int, ...]):
    """No workgroup gets fewer than `least` iterations, unless no more are left.

    One tile has 64 iterations on 128 workgroups; workgroups without iterations do nothing.
    """
    for step in (StreamK(least=least), TwoTileStreamK(owner="last", least=least)):
        graph = step(Gemm("f32").graph(TILE))
        found = trace(graph, parameters(graph, in_tiles(1, 1, 64, 128)))
        assert found.problems() == ()
        assert found.iterations == shares + (0,) * (128 - len(shares))
        assert found.idle == tuple(range(len(shares), 128))


@pytest.mark.parametrize("name", TWO_TILE)
def test_whole_waves_are_data_parallel(name: str):
    found = traced(name, in_tiles(8, 16, 8, 64))
    assert found.sends == ()
    assert parts(name, in_tiles(8, 16, 8, 64)) == (0, 1, 1024, 16)
    assert {s.role for s in found.segments} == {"whole"}
    assert found.utilisation == 1.0


@quick_cases(2)
@pytest.mark.parametrize("name", ["stream-k", *TWO_TILE])
def test_57_cubed(name: str):
    traced(name, in_tiles(2, 2, 2, 3))
    start = time.process_time()  # CPU time, because other processes may be using this machine
    found = traced(name, in_tiles(57, 57, 57, 132))
    assert time.process_time() - start < 4
    assert sum(found.iterations) == 57**3
    # Whole tiles alone would take 25 waves of 57 iterations, 1425.
    assert max(found.iterations) == 1403
    assert found.utilisation > 0.999


@given(st.tuples(*[st.integers(1, 5)] * 2), st.integers(2, 5), st.integers(1, 4))
@example((2, 3), 4, 1)
def test_split_k_has_the_pieces_of_stream_k_on_a_grid_of_all_pieces(
    tiles: tuple[int, int], splits: int, share: int
):
    pieces = tiles[0] * tiles[1] * splits
    problem = in_tiles(*tiles, splits * share, pieces)
    split = traced(f"split-k{{splits={splits}}}", problem)
    streamed = traced("stream-k", problem)
    for workgroup in range(pieces):
        assert segments(split, workgroup) == segments(streamed, workgroup)
