"""Divide a measure's time limit among its problems."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["TimeBudget"]


class TimeBudget:
    """The time that is left, shared equally by the problems that are left.

    Args:
        minutes: the time limit of all problems together.
        problems: how many problems there are.
        clock: seconds; tests pass their own.
    """

    def __init__(
        self, minutes: float, problems: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock, self.left = clock, problems
        self.end = clock() + 60 * minutes

    @property
    def over(self) -> bool:
        """Whether the time limit has passed."""
        return self.clock() >= self.end

    def next_deadline(self) -> float:
        """Begin the next problem, and return when its sampling should end."""
        now = self.clock()
        share = max(0.0, self.end - now) / max(1, self.left)
        self.left -= 1
        return now + share
