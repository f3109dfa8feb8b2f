"""Events: the places where a workgroup can be interrupted by others."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Event", "Point"]


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
    """Lower the slot's flag, having added the partial."""
    CLEARED = "cleared"
    """Go on after the flag was lowered."""


@dataclass(frozen=True, slots=True)
class Event:
    """A point of a workgroup; `slot` and the place of its flag where a slot is concerned.

    `value` is what the flag becomes, or is waited to be.
    """

    point: Point
    slot: int = -1
    flag: tuple[str, int] = ("", -1)
    value: int = 1
