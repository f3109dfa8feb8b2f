"""Schedulers: who runs next. A right schedule means the same under every one of them.

A scheduler sees the workgroups that can go on, each with the event it stopped before, and picks
one. A failed poll of a flag changes nothing, so a workgroup that waits for a flag that is down is
not offered. What lies between two events cannot be seen by others, so nothing finer is needed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

from coordgraph.interpreter.events import Event, Point

__all__ = [
    "SCHEDULERS",
    "InOrder",
    "OneAtATime",
    "Reversed",
    "Scheduler",
    "Shuffled",
    "StarveSignallers",
    "WaitersFirst",
]


class Scheduler(Protocol):
    """Any object with this method."""

    def choose(self, ready: Mapping[int, Event]) -> int:
        """The workgroup to run up to its next event; `ready` is never empty."""
        ...


class InOrder:
    """The lowest number first, at every event."""

    def choose(self, ready: Mapping[int, Event]) -> int:
        """The lowest."""
        return min(ready)


class Reversed:
    """The highest number first, at every event."""

    def choose(self, ready: Mapping[int, Event]) -> int:
        """The highest."""
        return max(ready)


class Shuffled:
    """Any of them, from a seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def choose(self, ready: Mapping[int, Event]) -> int:
        """A random one."""
        return self._random.choice(sorted(ready))


class OneAtATime(Shuffled):
    """Run one as far as it goes, then another."""

    _running = -1

    def choose(self, ready: Mapping[int, Event]) -> int:
        """The same again, if it can go on."""
        if self._running not in ready:
            self._running = super().choose(ready)
        return self._running


class _Preferring(Shuffled):
    """Those whose event is best, by `rank`; among equals a random one."""

    rank: Mapping[Point, int]

    def choose(self, ready: Mapping[int, Event]) -> int:
        """One of the best."""
        best = min(self.rank.get(event.point, 1) for event in ready.values())
        return super().choose({w: e for w, e in ready.items() if self.rank.get(e.point, 1) == best})


class StarveSignallers(_Preferring):
    """Who is about to send, raise or lower a flag comes last."""

    rank = {Point.SEND: 2, Point.CLEAR: 3, Point.RAISE: 4}  # noqa: RUF012


class WaitersFirst(_Preferring):
    """Who waited goes on as soon as the flag is up; then who has not begun."""

    rank = {Point.WAIT: -2, Point.BEGIN: -1}  # noqa: RUF012


SCHEDULERS: dict[str, type[Scheduler]] = {
    "in-order": InOrder,
    "reversed": Reversed,
    "shuffled": Shuffled,
    "one-at-a-time": OneAtATime,
    "starve-signallers": StarveSignallers,
    "waiters-first": WaitersFirst,
}
"""Every kind, by name."""
