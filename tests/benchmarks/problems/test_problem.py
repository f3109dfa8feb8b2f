"""The operand sets of a benchmark problem together are larger than three times the L2 cache."""

from __future__ import annotations

from benchmarks.problems.problem import MAX_SETS, buffer_sets


def test_buffers_exceed_thrice_the_cache_within_limits():
    cache = 60 << 20
    for size in (1 << 20, 7 << 20, 59 << 20, 61 << 20):
        assert buffer_sets(size, cache) * size > 3 * cache
        assert (buffer_sets(size, cache) - 1) * size <= 3 * cache or buffer_sets(size, cache) == 2
    assert buffer_sets(1 << 10, cache) == MAX_SETS
    assert buffer_sets(20 << 30, cache) == 2
