from __future__ import annotations

from tests.support.sampling import sample


def test_the_sample_is_repeatable_and_of_the_size_asked_for():
    names = [f"test_{i}" for i in range(100)]
    picked = sample(names, 10)
    assert len(picked) == 10
    assert picked < set(names)
    assert sample(names[::-1], 10) == picked
    assert picked != set(names[:10])
    assert sample(names, 1000) == set(names)
