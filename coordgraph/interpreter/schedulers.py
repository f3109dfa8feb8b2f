"""Schedulers: strategies that choose which workgroup the interpreter runs next.

A correct kernel gives the same result under every scheduler. A scheduler receives the workgroups
that can continue, with the `Event` before which each workgroup stopped, and chooses one of them.
Workgroups whose awaited flag is not set are left out. Between two events a workgroup only accesses
state that no other workgroup reads, so switching more often could not change the result.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

from coordgraph.errors import LaunchError
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
    "scheduler_of",
]


class Scheduler(Protocol):
    """Protocol: an object whose `choose` method picks the workgroup to run next."""

    def choose(self, ready: Mapping[int, Event]) -> int:
        """Choose the workgroup that runs up to its next event; returns its number.

        Args:
            ready: the numbers of the workgroups that can continue, and the event before which each
                workgroup stopped; never empty.
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
        """The number of a random workgroup in `ready`."""
        return self._random.choice(sorted(ready))


class OneAtATime(Shuffled):
    """Scheduler that runs a workgroup until it waits or ends, then runs a random workgroup."""

    _running = -1

    def choose(self, ready: Mapping[int, Event]) -> int:
        """The workgroup chosen last if it is in `ready`, else a random workgroup in `ready`."""
        if self._running not in ready:
            self._running = super().choose(ready)
        return self._running


class _Preferring(Shuffled):
    """Base class of schedulers that prefer some kinds of events; ties are broken at random."""

    rank: Mapping[Point, int]
    """Priority of a workgroup by the kind of event before which it stopped.

    A lower number runs first; kinds of events that are left out have priority 1.
    """

    def choose(self, ready: Mapping[int, Event]) -> int:
        """A random workgroup among those in `ready` whose events have the lowest `rank`."""
        best = min(self.rank.get(event.point, 1) for event in ready.values())
        return super().choose({w: e for w, e in ready.items() if self.rank.get(e.point, 1) == best})


class StarveSignallers(_Preferring):
    """Scheduler that delays workgroups which are about to store a partial sum or change a flag."""

    rank = {Point.SEND: 2, Point.CLEAR: 3, Point.RAISE: 4}  # noqa: RUF012


class WaitersFirst(_Preferring):
    """Scheduler that prefers workgroups whose awaited flag is set, then unstarted workgroups."""

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


def scheduler_of(given: Any) -> Scheduler:
    """Convert the argument `schedule` of `interpret` to a scheduler.

    The argument is a scheduler, a name in `SCHEDULERS`, or None for `InOrder`.

    Raises:
        LaunchError: the argument is neither a scheduler, nor a name in `SCHEDULERS`, nor None.
    """
    found: Any = given
    if given is None:
        return InOrder()
    if isinstance(given, str) and given in SCHEDULERS:
        return SCHEDULERS[given]()
    if not isinstance(given, type) and callable(getattr(given, "choose", None)):
        return found
    raise LaunchError(
        f"schedule = {given!r} is no scheduler; give an object with a method choose, or one of: "
        f"{', '.join(SCHEDULERS)}"
    )
