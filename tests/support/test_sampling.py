from __future__ import annotations

from itertools import combinations, product

from _pytest.mark import ParameterSet

from tests.support.sampling import covering, sample


def test_the_sample_is_repeatable_and_of_the_size_asked_for():
    names = [f"test_{i}" for i in range(100)]
    picked = sample(names, 10)
    assert len(picked) == 10
    assert picked < set(names)
    assert sample(names[::-1], 10) == picked
    assert picked != set(names[:10])
    assert sample(names, 1000) == set(names)


def test_the_quick_ones_cover_all_pairs():
    choices = ("abcdef", range(4), range(3))
    made = [p for p in covering(3, *choices) if isinstance(p, ParameterSet)]
    assert {p.values for p in made} == {*product(*choices)}
    quick = [p.values for p in made if not p.marks]
    assert 3 * len(quick) == len(made)
    for i, j in combinations(range(3), 2):
        pairs = {(values[i], values[j]) for values in quick}
        if 2 in (i, j) or len(choices[2]) >= 3:
            assert pairs == {*product(choices[i], choices[j])}
    assert all(mark.name == "slow" for p in made for mark in p.marks)
