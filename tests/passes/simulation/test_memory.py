"""`Cache`, the simulated L2 cache of k tiles, and `Traffic`, which adds up bytes of misses."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from passes.simulation import Kernel, memory, simulate
from passes.simulation.launching import Launch
from passes.simulation.memory import Cache, Pieces, Traffic
from tests.passes.simulation.runs import A100, H200, scheduled, small


def test_what_was_read_is_held_until_the_cache_is_full():
    cache = Cache(1000.0)
    assert cache.request(0, 0, 8, 0.0, 0.0, 0) == (8, False)
    assert cache.request(0, 0, 8, 999.0, 0.0, 0) == (0, False)
    assert cache.request(0, 0, 8, 1999.0, 0.0, 0) == (8, False)
    assert cache.request(1, 0, 8, 1999.0, 0.0, 0) == (8, False)


def test_only_k_tiles_that_nobody_read_are_missing():
    cache = Cache(1000.0)
    cache.request(0, 0, 4, 0.0, 0.0, 0)
    cache.request(0, 6, 8, 0.0, 0.0, 0)
    assert cache.request(0, 0, 10, 10.0, 0.0, 0)[0] == 4
    assert cache.request(0, 0, 10, 10.0, 0.0, 0)[0] == 0


def test_a_workgroup_that_is_far_behind_in_k_reads_again():
    # Two workgroups read the same rows of A. The second workgroup begins at k tile 0 while the
    # first is at k tile 50. So the second reaches k tile 50 after 50 iterations, when that tile may
    # have been evicted.
    for pace, missing in ((10.0, 0), (30.0, 50)):
        cache = Cache(1000.0)
        cache.request(0, 50, 100, 0.0, pace, 0)
        assert cache.request(0, 0, 50, 0.0, pace, 1)[0] == 50
        assert cache.request(0, 50, 100, 50 * pace, pace, 1)[0] == missing


def test_neighbours_that_read_together_are_near():
    cache = Cache(1000.0, near=16)
    cache.request(0, 0, 8, 0.0, 1.0, 0)
    assert cache.request(0, 0, 8, 0.0, 1.0, 15)[1]
    assert not cache.request(0, 0, 8, 0.0, 1.0, 40)[1]
    assert not cache.request(0, 0, 8, 500.0, 1.0, 41)[1]


RANGES = ((0, 4), (4, 8), (8, 12), (0, 8), (2, 6), (0, 12))


@given(st.lists(st.tuples(st.sampled_from(RANGES), st.integers(0, 25), st.integers(0, 3))))
@example([((0, 12), 0, 3), ((8, 12), 5, 3), ((0, 4), 5, 3), ((8, 12), 20, 3)])
def test_a_range_that_was_read_before_is_found_as_by_a_search(
    requests: list[tuple[tuple[int, int], int, int]],
):
    found, searched = Cache(20.0), Cache(20.0)
    volume = 0
    for (first, stop), bytes_read, pace in requests:
        volume += bytes_read
        given = 0, first, stop, float(volume), float(pace), 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(memory, "_same", lambda *_: -1)
            expected = searched.request(*given)
        assert found.request(*given) == expected
        assert found.reads == searched.reads


PIECES = ((0, 4), (4, 8), (8, 11))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(PIECES), st.integers(0, 1), st.integers(0, 25), st.integers(0, 40)
        )
    ),
    st.integers(0, 3),
)
def test_pieces_are_found_as_by_the_general_model(
    requests: list[tuple[tuple[int, int], int, int, int]], pace: int
):
    cache, pieces = Cache(60.0), Pieces(60.0)
    volume = 0.0
    for (first, stop), panel, bytes_read, slot in requests:
        volume += bytes_read
        given = panel, first, stop, volume, float(pace), slot
        assert pieces.request(*given) == cache.request(*given)


@pytest.mark.parametrize(
    ("schedule", "model"),
    [("data-parallel", Pieces), ("split-k{splits=3}", Pieces), ("stream-k", Cache)],
)
def test_ranges_of_k_that_overlap_need_the_general_model(
    schedule: str, model: type, general_engine: None
):
    chosen: list[type] = []
    init = Traffic.__init__

    def recorded(self: Traffic, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        chosen.append(type(self.cache))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Traffic, "__init__", recorded)
        simulate(scheduled(schedule), {"m": 1280, "n": 1280, "k": 2048}, H200)
    assert chosen == [model]


@given(st.lists(st.integers(0, 7), min_size=1, max_size=60), st.integers(1, 8))
def test_whole_panels_are_kept_as_by_least_recent_use(panels: list[int], room: int):
    """`Cache` misses at most as often as a plain LRU cache for `room` panels.

    A panel is the rows of A, or the columns of B, that the tiles of one tile row or column read.

    `Cache` evicts a panel after memory has delivered a given number of bytes since its last use;
    an LRU cache evicts it after a given number of other panels were used.
    """
    cache, volume, missed = Cache(room + 0.5), 0.0, 0
    held: OrderedDict[int, None] = OrderedDict()
    least = 0
    for panel in panels:
        missing, _ = cache.request(panel, 0, 1, volume, 0.0, 0)
        volume += missing
        missed += int(missing)
        least += panel not in held
        held[panel] = None
        held.move_to_end(panel)
        if len(held) > room:
            held.popitem(last=False)
    assert len({*panels}) <= missed <= len(panels)
    assert missed <= least


def test_order_of_tiles_decides_what_memory_delivers():
    problem = {"m": 16384, "n": 16384, "k": 4096}
    rows, bands = (
        simulate(scheduled(f"{order}data-parallel{{persistent=true}}"), problem, H200).read_bytes
        for order in ("", "rasterize{width=12},")
    )
    assert bands < 0.5 * rows


def test_a_cache_for_everything_reads_everything_once():
    problem = {"m": 4096, "n": 4096, "k": 4096}
    found = simulate(scheduled("stream-k"), problem, small(108, l2_bytes=1e12))
    assert found.read_bytes == pytest.approx(found.compulsory_bytes)
    assert found.asked_bytes > 5 * found.read_bytes
    none = simulate(scheduled("stream-k"), problem, small(108, l2_bytes=0.0))
    assert none.read_bytes == pytest.approx(none.asked_bytes, rel=0.05)


def test_less_bandwidth_takes_longer_and_is_not_exceeded():
    problem, graph = {"m": 4096, "n": 4096, "k": 8192}, scheduled("data-parallel")
    launch = Launch.of(graph, problem, A100, None, Kernel())
    before = 0.0
    for rate in (4e12, 1e12, 2e11):
        found = launch.run(small(108, dram_rate=rate, l2_bytes=1e6))
        assert found.makespan > before
        assert (found.read_bytes + found.stored_bytes) / found.makespan <= rate
        before = found.makespan
