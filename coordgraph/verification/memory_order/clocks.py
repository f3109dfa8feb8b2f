"""Clocks: the events that happened before a point of a program, and those visible there, as bits.

Every event of a simulated launch has a number; a set of events is an integer with a bit for each.
Two relations order events. *Time*: an event happens after the events that caused it; a wait, for
example, happens after the arrival that ended it. *Visibility*: if an acquire observes a release,
with scopes that include both threads, the writes before the release are visible after the acquire
(PTX ISA, "Causality Order"). A write must be visible to a thread that reads or overwrites the
value. A read need only have happened before a thread overwrites the value, because reads are
complete before the next release of their thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Clock"]


@dataclass(slots=True)
class Clock:
    """The events that happened before a point in the program of one simulated thread, as bit sets.

    Args:
        time: the events that have happened.
        seen: the events of `time` whose effects are visible to the thread.
        fenced: for each memory space, the events before the thread's last proxy fence of that
            space.
    """

    time: int = 0
    seen: int = 0
    fenced: dict[str, int] = field(default_factory=dict[str, int])

    def copy(self) -> Clock:
        """Return a copy; later changes of this clock do not change the copy."""
        return Clock(self.time, self.seen, dict(self.fenced))

    def join(self, other: Clock, *, visible: bool = True) -> None:
        """Add the events of another clock to those of this clock.

        Args:
            other: the other clock.
            visible: whether events that are visible in `other` become visible to this clock's
                thread, as after an acquire.
        """
        self.time |= other.time
        if visible:
            self.seen |= other.seen
        for space, events in other.fenced.items():
            self.fenced[space] = self.fenced.get(space, 0) | events

    def add(self, event: int) -> None:
        """Add an event of this clock's thread; `event` has only the bit of the event set."""
        self.time |= event
        self.seen |= event

    def fence(self, space: str) -> None:
        """Record that the thread executes a proxy fence of a memory space.

        The fence covers all events that have happened before it.
        """
        self.fenced[space] = self.fenced.get(space, 0) | self.time
