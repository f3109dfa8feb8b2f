"""The CPU target reaches at least a quarter of numpy's speed on the same number of threads."""

from __future__ import annotations

import pytest

from benchmarks.measures.cpu_vs_numpy import measure


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_at_least_a_quarter_of_numpys_speed(threads: int):
    best = 0.0
    # the test tries up to three times, since other processes may slow one try down
    for _ in range(3):
        found = measure(1024, threads)
        best = max(best, found["coordgraph"] / found["numpy"])
        if best >= 0.25:
            break
    assert best >= 0.25
