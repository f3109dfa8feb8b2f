"""Events: the places where a workgroup can be interrupted by others."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["ANY", "Event", "Point"]

ANY = -1
"""Waited for: whatever a flag is when it is up."""


class Point(Enum):
    """What a workgroup does next, once a scheduler lets it."""

    BEGIN = "begin"
    SEGMENT = "segment"
    """Begin another segment."""
    SEND = "send"
    """Store a partial in its slot."""
    RAISE = "raise"
    """Raise the slot's flag."""
    WAIT = "wait"
    """Go on with a slot whose flag is up; until then the workgroup cannot be chosen."""
    CLEAR = "clear"
    """Lower the slot's flag, having added the partial, or being one of those who will."""
    CLEARED = "cleared"
    """Go on after the flag was lowered."""


@dataclass(frozen=True, slots=True)
class Event:
    """A point of a workgroup; `slot` and the place of its flag where a slot is concerned.

    `value` is what the flag becomes, or is waited to be; `ANY` where it need but be up.
    """

    point: Point
    slot: int = -1
    flag: tuple[str, int] = ("", -1)
    value: int = 1

    def met(self, now: int) -> bool:
        """What the flag says is what is waited for."""
        return now > 0 if self.value == ANY else now == self.value
