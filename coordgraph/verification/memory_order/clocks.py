"""Clocks: which events happened before, and which writes are visible, as sets of bits.

Every event of an execution has a number; a set of events is an integer with a bit for each. Two
relations order events. *Time*: an event that another one causes, such as a wait, happens after it.
*Visibility*: a release and the acquire that observes it, with scopes that include both threads,
make the writes before the release visible behind the acquire (PTX ISA, "Causality Order"). Writes
must be visible to be read or overwritten. A read must only have happened before what it read is
overwritten: reads before a release, of any scope, have their values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Clock"]


@dataclass(slots=True)
class Clock:
    """What has happened before a place in an agent's program.

    Args:
        time: the events that have happened.
        seen: those events whose effects are visible.
        fenced: by the space that a proxy fence covers, the events that such a fence follows.
    """

    time: int = 0
    seen: int = 0
    fenced: dict[str, int] = field(default_factory=dict[str, int])

    def copy(self) -> Clock:
        """A copy that later joins do not change."""
        return Clock(self.time, self.seen, dict(self.fenced))

    def join(self, other: Clock, *, visible: bool = True) -> None:
        """Add what happened before another place; `visible` if it is also made visible here."""
        self.time |= other.time
        if visible:
            self.seen |= other.seen
        for space, events in other.fenced.items():
            self.fenced[space] = self.fenced.get(space, 0) | events

    def add(self, event: int) -> None:
        """Add an event of the agent itself, a set of one bit."""
        self.time |= event
        self.seen |= event

    def fence(self, space: str) -> None:
        """Record a proxy fence of a space."""
        self.fenced[space] = self.fenced.get(space, 0) | self.time
