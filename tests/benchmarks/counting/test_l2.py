"""Tests of the simulated L2 cache: invariants, and a comparison with a plain LRU list."""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.counting.counts import scheduled
from benchmarks.counting.l2 import Requests, requests, through_cache
from benchmarks.measures.traffic import NONE, ORDERS, SCHEDULES, pipeline_of
from coordgraph import VerifyError
from coordgraph.interpreter import trace
from tests.support.sampling import quick_cases

TILE = (16, 16, 16)
SLOTS = 6
WHOLE, RAGGED = (5 * 16, 7 * 16, 4 * 16), (77, 100, 53)
WHOLE_TILES = SCHEDULES[0]
PIPELINES = [pipeline_of(order, schedule) for schedule in SCHEDULES for order in ORDERS]
OTHERS = ["data-parallel", "split-k{splits=2}", "grouped,two-tile-stream-k{owner=last}"]


def read_by_lists(blocks: list[int], sizes: list[int], capacity: int) -> int:
    """Number of bytes that an LRU cache of `capacity` bytes reads from memory to load `blocks`.

    Block number i has `sizes[i]` bytes. The cached blocks are kept in a list, and the block that
    was used most recently is its last entry.
    """
    held: list[int] = []
    read = 0
    for block in blocks:
        if block in held:
            held.remove(block)
        else:
            read += sizes[block]
        held.append(block)
        while sum(sizes[one] for one in held) > capacity:
            held.pop(0)
    return read


@given(
    st.lists(st.integers(0, 7), max_size=60),
    st.lists(st.integers(1, 9), min_size=8, max_size=8),
    st.integers(0, 8),
    st.integers(0, 60),
)
@example([0, 1, 0, 2, 0], [1] * 8, 1, 2)
@example([5, 6, 5, 7, 6], [1, 1, 1, 1, 1, 4, 4, 4], 6, 8)
def test_the_cache_evicts_what_was_not_asked_for_longest(
    blocks: list[int], sizes: list[int], first_b: int, capacity: int
):
    asked = Requests(np.array(blocks, np.int64), np.array(sizes), first_b)
    found = through_cache(asked, capacity)
    assert found.read_bytes == read_by_lists(blocks, sizes, capacity)
    of_a = [block for block in set(blocks) if block < first_b]
    assert through_cache(asked, 100).read_a == sum(sizes[block] for block in of_a)
    assert found.compulsory_bytes <= found.read_bytes <= found.asked_bytes


@quick_cases(2)
@pytest.mark.parametrize("size", [WHOLE, RAGGED], ids=["whole", "ragged"])
@pytest.mark.parametrize("pipeline", PIPELINES + OTHERS)
def test_laws_of_every_order(pipeline: str, size: tuple[int, int, int]):
    """Every tile order computes each iteration once.

    An unlimited cache reads each block of A and B once; without a cache every request is read from
    memory.
    """
    m, n, k = size
    asked = requests(pipeline, TILE, size, SLOTS)
    tiles_m, tiles_n, depth = (-(-extent // 16) for extent in size)
    of_a, of_b = asked.blocks[::2], asked.blocks[1::2] - asked.first_b
    assert asked.first_b == tiles_m * depth
    done = Counter(
        map(tuple, np.column_stack((of_a // depth, of_b // depth, of_a % depth)).tolist())
    )
    assert (of_a % depth == of_b % depth).all()
    assert (len(done), set(done.values())) == (tiles_m * tiles_n * depth, {1})
    endless, none = through_cache(asked, 1e18), through_cache(asked, 0)
    assert (endless.read_a, endless.read_b) == (2 * m * k, 2 * n * k)
    assert endless.read_bytes == endless.compulsory_bytes
    assert none.read_bytes == none.asked_bytes == 2 * k * (m * tiles_n + n * tiles_m)
    between = [through_cache(asked, 1000 * kilo).read_bytes for kilo in (4, 8, 16, 40)]
    assert all(endless.read_bytes <= read <= none.read_bytes for read in between)
    if size == WHOLE:  # with blocks of equal size, a larger LRU cache never reads more from memory
        assert between == sorted(between, reverse=True)


@quick_cases(2)
@pytest.mark.parametrize("pipeline", [*PIPELINES, OTHERS[2]])
def test_workgroups_advance_in_step(pipeline: str):
    """If all workgroups are resident, the simulation advances all of them by one k tile at a time.

    The requests of all workgroups' first iterations come first, then those of all second
    iterations.
    """
    values = dict(zip(("m", "n", "k"), RAGGED, strict=True), workgroups=SLOTS)
    found = trace(scheduled(pipeline, TILE, "bf16"), values)
    assert len(found.workgroups) == SLOTS
    tiles_m, _, depth = found.tiles
    lists = [
        [
            (s.tile[0] * depth + k, (tiles_m + s.tile[1]) * depth + k)
            for s in found.of(workgroup)
            for k in range(s.k_first, s.k_first + s.k_count)
        ]
        for workgroup in range(SLOTS)
    ]
    steps = zip_longest(*lists)
    expected = [block for step in steps for pair in step if pair for block in pair]
    assert requests(pipeline, TILE, RAGGED, SLOTS).blocks.tolist() == expected


def test_who_is_free_takes_the_next_workgroup():
    """When a workgroup ends, the next workgroup starts on the SM that has become free.

    Therefore a data-parallel grid makes the same requests as a persistent grid whose workgroups are
    all resident.
    """
    one, stays = (
        requests(schedule, TILE, WHOLE, SLOTS) for schedule in ("data-parallel", WHOLE_TILES)
    )
    assert one.blocks.tolist() == stays.blocks.tolist()
    fewer = requests("data-parallel", TILE, WHOLE, 1)
    assert fewer.blocks.tolist() != one.blocks.tolist()


def test_bands_read_fewer_rows_and_columns():
    """Bands need fewer tile rows and columns at a time, so fewer blocks of A and B are read.

    In a grid of 10 x 12 tiles, 16 consecutive tiles lie in 2 rows and 12 columns in row-major
    order, but in 4 rows and 4 columns in bands of 4. The cache is large enough for the blocks that
    all workgroups read for one k tile, but not for the blocks of a whole wave.
    """
    size, block = (10 * 16, 12 * 16, 64 * 16), 2 * 16 * 16
    for order in (NONE, "rasterize{width=4}"):
        found = trace(
            scheduled(pipeline_of(order, WHOLE_TILES), TILE, "bf16"),
            {**dict(zip(("m", "n", "k"), size, strict=True)), "workgroups": 16},
        )
        waves = zip_longest(*(found.of(workgroup) for workgroup in range(16)))
        tiles = [[s.tile for s in wave if s] for wave in waves]
        panels = [len({m for m, _ in wave}) + len({n for _, n in wave}) for wave in tiles]
        assert panels[1] == {NONE: 2 + 12, "rasterize{width=4}": 4 + 4}[order]
        asked = requests(pipeline_of(order, WHOLE_TILES), TILE, size, 16)
        assert through_cache(asked, 40 * block).read_bytes == sum(panels) * 64 * block


def test_padding_takes_a_step_and_asks_for_nothing():
    """In the simulation, a padding tile of `reorder` takes time, but requests no block."""
    padded = requests(f"reorder{{group=4}},{WHOLE_TILES}", TILE, RAGGED, SLOTS)
    plain = requests(WHOLE_TILES, TILE, RAGGED, SLOTS)
    assert sorted(padded.blocks.tolist()) == sorted(plain.blocks.tolist())


def test_tiles_of_several_shapes_are_refused():
    # The first problem has so few tiles that all are small; the second has tiles of both shapes.
    for size in ((160, 96, 64), (320, 192, 64)):
        with pytest.raises(VerifyError, match="tiles of several shapes"):
            requests("heterogeneous-tiles", (32, 32, 16), size, 132)
    with pytest.raises(VerifyError, match="tiles of several shapes"):
        requests("heterogeneous-tiles", (32, 32, 16), (160, 96, 64), SLOTS)
