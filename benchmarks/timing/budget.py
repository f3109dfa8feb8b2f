"""Divide a measure's time limit among its problems."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["TimeBudget"]


class TimeBudget:
    """A time limit whose remaining time is divided equally among the remaining problems.

    Args:
        minutes: the time limit for all problems together, in minutes.
        problems: how many problems there are.
        clock: a function that returns the time in seconds; tests replace it.
    """

    def __init__(
        self, minutes: float, problems: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock, self.left = clock, problems
        self.end = clock() + 60 * minutes

    @property
    def over(self) -> bool:
        """True if the time limit has passed."""
        return self.clock() >= self.end

    def next_deadline(self) -> float:
        """Start the next problem; returns the time, by `clock`, when its sampling should end."""
        now = self.clock()
        share = max(0.0, self.end - now) / max(1, self.left)
        self.left -= 1
        return now + share
