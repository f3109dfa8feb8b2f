from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import cast

import pytest
from _pytest.mark import ParameterSet

from tests.support.sampling import (
    Slow,
    chosen,
    cover,
    covering,
    kinds,
    mark_slow_cases,
    quick_cases,
    sample,
    words,
)


def test_the_sample_is_repeatable_and_of_the_size_asked_for():
    names = [f"test_{i}" for i in range(100)]
    picked = sample(names, 10)
    assert len(picked) == 10
    assert picked < set(names)
    assert sample(names[::-1], 10) == picked
    assert picked != set(names[:10])
    assert sample(names, 1000) == set(names)
    assert sample(names, 10, "another seed") != picked


def test_a_sample_has_some_of_every_file():
    sizes = {"a.py": 1, "b.py": 10, "c.py": 1000}
    names = [f"{file}::test_{i}" for file, size in sizes.items() for i in range(size)]
    for seed in "abc":
        picked = [name.partition("::")[0] for name in sample(names, 23, seed)]
        assert picked.count("a.py") == 1
        assert 2 <= picked.count("b.py") < picked.count("c.py")
        assert {*sample(names, 3, seed)} == {*sample(names[::-1], 3, seed)}
        assert len({name.partition("::")[0] for name in sample(names, 3, seed)}) == 3


@pytest.fixture(autouse=True)
def slow_ones_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slow, "collected", True)


def quick_of(made: list[ParameterSet]) -> list[tuple[object, ...]]:
    assert all(mark.name == "slow" for p in made for mark in p.marks)
    return [tuple(p.values) for p in made if not p.marks]


def test_the_quick_ones_cover_all_pairs():
    choices = ("abcdef", range(4), range(3))
    made = covering(3, *choices)
    assert {p.values for p in made} == {*product(*choices)}
    quick = quick_of(made)
    assert 3 * len(quick) == len(made)
    for i, j in combinations(range(3), 2):
        pairs = {(values[i], values[j]) for values in quick}
        if 2 in (i, j) or len(choices[2]) >= 3:
            assert pairs == {*product(choices[i], choices[j])}


def test_a_cover_has_every_value_then_pairs():
    choices = ("abcdef", range(4), range(3))
    cases = [*product(*choices)]
    for most in (1, 6, 20, 1000):
        made = cover(most, cases)
        assert [p.values for p in made] == cases
        quick = quick_of(made)
        assert len(quick) == min(max(most, 6), len(cases))
        assert [{*axis} for axis in zip(*quick, strict=True)] == [{*axis} for axis in choices]

    def pairs_of(cases: Iterable[tuple[object, ...]]) -> set[tuple[object, ...]]:
        return {pair for case in cases for pair in combinations(enumerate(case), 2)}

    covered = pairs_of(quick_of(cover(30, cases)))
    assert len(covered) >= 0.95 * len(pairs_of(cases))


def test_a_cover_of_what_is_no_tuple():
    made = cover(1, ["an", "at", "on"], lambda word: (word[0], word[1], "same"))
    assert [p.values for p in made] == [("an",), ("at",), ("on",)]
    assert quick_of(made) == [("at",), ("on",)] or quick_of(made) == [("an",), ("at",), ("on",)]


def test_words_of_schedules():
    assert words(("a-b{x=1,y=c}", "plain", 3)) == ("a-b", "x=1", "y=c", "plain", "3")
    assert kinds(("a{x=1,reduction=tree}", "b{order=c,y=2}")) == (
        *("a", "reduction=tree"),
        *("b", "order=c"),
    )
    made = cover(0, ["a", "a{x=1}", "a{x=1,y=2}", "b{x=1}"], words)
    assert quick_of(made) == [("a{x=1,y=2}",), ("b{x=1}",)]


def test_chosen_ones_are_quick():
    cases = [*product("ab", "cd")]
    made = chosen((("b", "c"),), cases)
    assert [p.values for p in made] == cases
    assert quick_of(made) == [("b", "c")]


def test_slow_ones_are_not_made_where_none_is_collected(monkeypatch: pytest.MonkeyPatch):
    cases = [*product("ab", "cd")]
    wanted = quick_of(cover(2, cases)), quick_of(covering(2, "ab", "cd"))
    monkeypatch.setattr(Slow, "collected", False)
    found = [[p.values for p in made] for made in (cover(2, cases), covering(2, "ab", "cd"))]
    assert [*map(list, wanted)] == found


class Case:
    """A stand-in for a test that pytest collected: all that `mark_slow_cases` reads and marks."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator):
        self.nodeid, self.marks = nodeid, {mark.name: mark.mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, name: str) -> None:
        self.marks[name] = getattr(pytest.mark, name).mark


@pytest.mark.parametrize(
    ("count", "quick"),
    [(1, [0]), (2, [0, 9]), (3, [0, 4, 9]), (4, [0, 3, 6, 9]), (20, [*range(10)])],
)
def test_quick_cases_are_spread_over_all(count: int, quick: list[int]):
    cases = [Case(f"file.py::test_it[{number}]", quick_cases(count)) for number in range(10)]
    others = [Case("file.py::test_it"), Case("file.py::test_that[1]", quick_cases(1))]
    slow = Case("file.py::test_it[-]", quick_cases(count), pytest.mark.slow)
    mark_slow_cases(cast("list[pytest.Item]", [slow, *cases, *others]))
    assert [number for number, case in enumerate(cases) if "slow" not in case.marks] == quick
    assert not any("slow" in case.marks for case in others)
