"""Events: the points where the interpreter may switch from one workgroup to another."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["ANY", "Event", "Point"]

ANY = -1
"""Value of `Event.value` that stands for every flag value greater than 0."""


class Point(Enum):
    """The step that a workgroup takes when the scheduler next chooses it."""

    BEGIN = "begin"
    """Start the workgroup's program."""
    SEGMENT = "segment"
    """Zero the accumulator and begin another segment (consecutive k tiles of one output tile)."""
    SEND = "send"
    """Store a partial sum in a slot of the workspace."""
    RAISE = "raise"
    """Set the flag of a workspace slot, which says that the slot holds a partial sum."""
    WAIT = "wait"
    """Read a workspace slot. The scheduler cannot choose the workgroup before the flag is set."""
    CLEAR = "clear"
    """Reset the flag of a workspace slot, or subtract 1 where several workgroups read the slot."""
    CLEARED = "cleared"
    """Continue after `CLEAR` has changed the flag."""


@dataclass(frozen=True, slots=True)
class Event:
    """A point before which a workgroup stops, so that the scheduler may run another one.

    Args:
        point: the step that the workgroup takes next.
        slot: the number of the workspace slot that the step reads or writes; -1 for none.
        flag: the flag of that slot: the name of the tensor of flags, and the index in it.
        value: the value that the step gives the flag, or that a waiting step needs; `ANY` if
            every value greater than 0 will do.
    """

    point: Point
    slot: int = -1
    flag: tuple[str, int] = ("", -1)
    value: int = 1

    def met(self, now: int) -> bool:
        """True if `now`, the flag's current value, is the value that the event waits for."""
        return now > 0 if self.value == ANY else now == self.value
