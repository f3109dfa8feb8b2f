"""Samples of tests: of those selected (`pytest -m slow --sample 40`), and of all combinations."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import product

import pytest

__all__ = ["covering", "sample"]


def sample(names: Sequence[str], count: int) -> set[str]:
    """Pick `count` of the names, the same ones every time and whatever their order."""
    return set(sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:count])


def covering(every: int, *choices: Iterable[object]) -> list[object]:
    """All combinations, of which one in `every` is quick and the others are behind `slow`.

    The quick ones lie on diagonals: every choice is among them with an equal share of those of each
    other parameter, and of three parameters with at least `every` choices, so is every pair.
    """
    return [
        pytest.param(*(value for _, value in chosen), marks=() if quick else pytest.mark.slow)
        for chosen in product(*map(enumerate, choices))
        for quick in [sum(number for number, _ in chosen) % every == 0]
    ]
