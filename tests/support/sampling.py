"""Choose which tests are quick, and draw random slow ones (`pytest -m slow --sample 40`)."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import combinations, product
from math import sqrt
from typing import Any

import pytest
from _pytest.mark import ParameterSet

__all__ = [
    "Slow",
    "chosen",
    "cover",
    "covering",
    "kinds",
    "mark_slow_cases",
    "quick_cases",
    "sample",
    "words",
]


class Slow:
    """Whether this run collects slow tests; `conftest.py` sets it before it loads test modules.

    There are more slow tests than quick ones, so a run without them does not create their
    parameters. A run that updates goldens runs every page of the documentation.
    """

    collected = True
    updating = False


def quick_cases(count: int) -> pytest.MarkDecorator:
    """Of the parametrized function's cases, `count` are quick; the others are marked `slow`.

    The quick ones are spread evenly over the cases in the order of collection, first and last
    included (only the first if `count` is 1). Use `cover` instead where all values must be quick.
    """
    return pytest.mark.quick_cases(count)


def mark_slow_cases(items: Iterable[pytest.Item]) -> None:
    """For each function marked `quick_cases`: mark all cases that are not quick as `slow`."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("quick_cases"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in functions.values():
        mark = cases[0].get_closest_marker("quick_cases")
        assert mark
        cases = [case for case in cases if not case.get_closest_marker("slow")]
        count = min(mark.args[0], len(cases))
        steps = max(count - 1, 1)
        quick = {round(i * (len(cases) - 1) / steps) for i in range(count)}
        for number, case in enumerate(cases):
            if number not in quick:
                case.add_marker("slow")


def sample(names: Sequence[str], count: int, seed: str = "") -> set[str]:
    """Choose `count` node ids: one or more of each file if `count` allows, more of larger files.

    The same seed and node ids give the same sample, in whatever order the node ids come.
    """

    def digest(name: str) -> bytes:
        return hashlib.sha256(f"{seed}:{name}".encode()).digest()

    files: dict[str, list[str]] = {}
    for name in sorted(names, key=digest):
        files.setdefault(name.partition("::")[0], []).append(name)
    # The first test of every file is chosen before any file's second test. All other tests are
    # ordered by their position in the file's list, divided by the square root of the list's length.
    ranks = {
        name: (number > 0, number / sqrt(len(inside)), digest(name))
        for inside in files.values()
        for number, name in enumerate(inside)
    }
    return set(sorted(names, key=lambda name: ranks[name])[:count])


def covering(every: int, *choices: Iterable[object]) -> list[ParameterSet]:
    """All combinations of the choices; one in `every` is quick, and the others are marked `slow`.

    A combination is quick if the sum of its choices' positions is a multiple of `every`. So of two
    parameters, each choice of one is combined with one in `every` choices of the other. Of three
    parameters with at least `every` choices each, every pair of choices is in a quick combination.
    """
    return [
        _parameters(tuple(value for _, value in chosen), quick)
        for chosen in product(*map(enumerate, choices))
        for quick in [sum(number for number, _ in chosen) % every == 0]
        if quick or Slow.collected
    ]


def cover(
    most: int, cases: Iterable[Any], values: Callable[[Any], tuple[object, ...]] | None = None
) -> list[ParameterSet]:
    """All cases; the quick ones together contain every value, the others are marked `slow`.

    Quick cases are first chosen until every value is in one. Then the case with the most pairs of
    values that no quick case has is added, until `most` cases are quick. Every run chooses the same
    cases.

    Args:
        most: number of quick cases; more are quick if all values need more.
        cases: the cases; a tuple holds the values of several parameters.
        values: returns the values of a case; by default (position, value) pairs of the tuple.
    """
    cases = [*cases]
    axes = [values(case) if values else tuple(enumerate(case)) for case in cases]
    left, quick = Counter(value for case in {*axes} for value in case), set[int]()
    pairs = set[tuple[object, ...]]()
    while len(quick) < len(cases) and (left or len(quick) < most):

        def gain(number: int) -> tuple[int, int, int]:
            new = {*combinations(axes[number], 2)} - pairs
            return sum(value in left for value in axes[number]), len(new), -number

        best = max((n for n in range(len(cases)) if n not in quick), key=gain)
        quick.add(best)
        pairs.update(combinations(axes[best], 2))
        for value in axes[best]:
            left.pop(value, None)
    return [
        _parameters(case if isinstance(case, tuple) else (case,), number in quick)
        for number, case in enumerate(cases)
        if number in quick or Slow.collected
    ]


def words(case: Any) -> tuple[str, ...]:
    """Values of a case that `cover` must cover: the schedule's name and each of its options."""
    text = ",".join(map(str, case)) if isinstance(case, tuple) else str(case)
    return tuple(word for word in re.split("[{},]", text) if word)


def kinds(case: Any) -> tuple[str, ...]:
    """The values of a case (see `words`) that matter for tests of code generation.

    Most schedule options are left out: they change only index formulas, which the interpreter's
    tests cover. Options for reductions and orders are kept, because they add operations or tables,
    which need code of their own.
    """
    return tuple(w for w in words(case) if w.startswith(("reduction=", "order=")) or "=" not in w)


def chosen(quick: Container[Any], cases: Iterable[Any]) -> list[ParameterSet]:
    """All cases; those in `quick` are quick, and the others are marked `slow`."""
    return [
        _parameters(case if isinstance(case, tuple) else (case,), case in quick)
        for case in cases
        if case in quick or Slow.collected
    ]


def _parameters(values: tuple[object, ...], quick: bool) -> ParameterSet:
    return pytest.param(*values, marks=() if quick else pytest.mark.slow)
