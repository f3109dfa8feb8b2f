"""Schedulers: strategies that choose which workgroup the interpreter runs next.

A correct kernel gives the same result under every scheduler. A scheduler receives the workgroups
that can continue, each with the `Event` before which it stopped, and picks one of them. A workgroup
that waits for a flag is not offered until the flag is set, because a failed poll changes nothing.
Between two events a workgroup touches only state of its own, so no finer interleaving matters.
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
    """Protocol: an object whose `choose` method picks the workgroup to run next."""

    def choose(self, ready: Mapping[int, Event]) -> int:
        """The number of the workgroup to run up to its next event.

        Args:
            ready: the workgroups that can continue, each with the event before which it stopped;
                never empty.
        """
        ...


class InOrder:
    """Scheduler that always runs the workgroup with the lowest number."""

    def choose(self, ready: Mapping[int, Event]) -> int:
        """The lowest workgroup number in `ready`."""
        return min(ready)


class Reversed:
    """Scheduler that always runs the workgroup with the highest number."""

    def choose(self, ready: Mapping[int, Event]) -> int:
        """The highest workgroup number in `ready`."""
        return max(ready)


class Shuffled:
    """Scheduler that runs a random workgroup at every event; `seed` makes it reproducible."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def choose(self, ready: Mapping[int, Event]) -> int:
        """A random workgroup of `ready`."""
        return self._random.choice(sorted(ready))


class OneAtATime(Shuffled):
    """Scheduler that runs one workgroup until it waits or ends, then another at random."""

    _running = -1

    def choose(self, ready: Mapping[int, Event]) -> int:
        """The workgroup chosen last if it can continue, else a random workgroup of `ready`."""
        if self._running not in ready:
            self._running = super().choose(ready)
        return self._running


class _Preferring(Shuffled):
    """Base of schedulers that prefer some kinds of event; ties are broken at random."""

    rank: Mapping[Point, int]
    """Priority by the point before which a workgroup stopped: the lowest runs first; default 1."""

    def choose(self, ready: Mapping[int, Event]) -> int:
        """A random one of the workgroups in `ready` whose events have the lowest rank."""
        best = min(self.rank.get(event.point, 1) for event in ready.values())
        return super().choose({w: e for w, e in ready.items() if self.rank.get(e.point, 1) == best})


class StarveSignallers(_Preferring):
    """Scheduler that delays workgroups about to store a partial sum or to change a flag."""

    rank = {Point.SEND: 2, Point.CLEAR: 3, Point.RAISE: 4}  # noqa: RUF012


class WaitersFirst(_Preferring):
    """Scheduler that runs workgroups whose awaited flag is set first, then unstarted ones."""

    rank = {Point.WAIT: -2, Point.BEGIN: -1}  # noqa: RUF012


SCHEDULERS: dict[str, type[Scheduler]] = {
    "in-order": InOrder,
    "reversed": Reversed,
    "shuffled": Shuffled,
    "one-at-a-time": OneAtATime,
    "starve-signallers": StarveSignallers,
    "waiters-first": WaitersFirst,
}
"""All scheduler classes, by name."""
