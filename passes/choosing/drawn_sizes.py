"""`SizeRange`: ranges of m, n and k, from which sizes are drawn."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from coordgraph import PassError, validation

__all__ = ["USUAL", "SizeRange", "draw_sizes", "parse_extents"]

Extent = tuple[int, int]
MULTIPLE = 8
"""Drawn extents are multiples of MULTIPLE, so that rows of 2-byte elements have a multiple of 16
bytes, which TMA requires. Extents below 2 * MULTIPLE are drawn from all integers."""
MOST_OPERATIONS, ATTEMPTS = 2e13, 20
"""MOST_OPERATIONS: largest product m·n·k of a drawn size; larger problems have the same best plans.
ATTEMPTS: a size with a larger product is drawn again, at most ATTEMPTS times; the size of the last
of these draws is taken whatever its product is."""


USUAL_EXTENTS = (128, 8192)
"""(smallest, largest) extent of m, n and k that is assumed for a program whose sizes are
unknown."""


def _range(value: Any, name: str) -> Extent:
    """Convert extents along an axis to (smallest, largest), and check them.

    Args:
        value: an integer, or a pair of the smallest and the largest extent.
        name: the name of the axis, for error messages.

    Raises:
        PassError: `value` is neither an integer nor such a pair, or the range is empty.
    """
    ends = value if isinstance(value, tuple | list) else (value, value)
    if len(ends) != 2:
        raise PassError(
            f"{name} = {value!r} is no range of extents; give one integer, or the smallest and the "
            "largest as (low, high)"
        )
    low, high = (validation.whole(x, f"an extent of {name}", PassError, least=1) for x in ends)
    if low > high:
        raise PassError(f"{name} = {value!r} is an empty range; give (low, high) with low <= high")
    return low, high


def parse_extents(text: str) -> Extent:
    """Parse `128:8192` to (smallest, largest) extent; a single number, `4096`, is used for both.

    Raises:
        ValueError: the text has another form.
    """
    low, _, high = text.partition(":")
    return int(low), int(high or low)


@dataclass(frozen=True)
class SizeRange:
    """The smallest and largest extents of a range of problem sizes, both inclusive.

    Args:
        m, n, k: the smallest and the largest extent along each axis, in elements.
        weight: how often sizes are drawn from this range: the probability is weight / sum of all
            weights.

    Raises:
        PassError: an extent is not an integer of at least 1, or a range is empty.
    """

    m: Extent
    n: Extent
    k: Extent
    weight: float = 1.0

    def __post_init__(self) -> None:
        for name in "mnk":
            object.__setattr__(self, name, _range(getattr(self, name), name))

    @classmethod
    def of(cls, **extents: int | Extent | None) -> SizeRange:
        """Make a range from an extent or (smallest, largest) per axis; None means 128 to 8192.

        Raises:
            PassError: an extent is not an integer of at least 1, or a range is empty.
        """
        m, n, k = (
            _range(USUAL_EXTENTS if (given := extents.get(axis)) is None else given, axis)
            for axis in "mnk"
        )
        return cls(m, n, k)

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {low}" if low == high else f"{name} {low} to {high}"
            for name, (low, high) in (("m", self.m), ("n", self.n), ("k", self.k))
        )

    def __contains__(self, size: tuple[int, int, int]) -> bool:
        ranges = (self.m, self.n, self.k)
        return all(low <= x <= high for x, (low, high) in zip(size, ranges, strict=True))


USUAL = (SizeRange.of(),)
"""The ranges for a program whose sizes are unknown: m, n and k from 128 to 8192."""


def draw_sizes(
    ranges: tuple[SizeRange, ...], count: int, seed: int = 0
) -> tuple[tuple[int, int, int], ...]:
    """Draw sizes (m, n, k) at random: each log-uniform in a range that is drawn by weight.

    Equal arguments give equal sizes. Sizes with m·n·k above `MOST_OPERATIONS` are drawn again, at
    most `ATTEMPTS` times.

    Args:
        ranges: the ranges; at least one.
        count: number of sizes.
        seed: another seed gives other sizes.
    """
    source = random.Random(f"sizes {seed}")
    weights = [each.weight for each in ranges]

    def sizes() -> Iterator[tuple[int, int, int]]:
        while True:
            (each,) = source.choices(ranges, weights)
            drawn = (_size(source, each) for _ in range(ATTEMPTS))
            yield next(
                (size for size in drawn if prod(size) <= MOST_OPERATIONS), _size(source, each)
            )

    drawn = sizes()
    return tuple(next(drawn) for _ in range(count))


def _size(source: random.Random, each: SizeRange) -> tuple[int, int, int]:
    m, n, k = (_draw(source, *extents) for extents in (each.m, each.n, each.k))
    return m, n, k


def _draw(source: random.Random, low: int, high: int) -> int:
    x = math.exp(source.uniform(math.log(low), math.log(high)))
    step = MULTIPLE if x >= 2 * MULTIPLE else 1
    return min(max(round(x / step) * step, low), high)
