"""Events: points in a workgroup's program where the interpreter may switch to another workgroup."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["ANY", "Event", "Point"]

ANY = -1
"""Value of `Event.value` for a workgroup that waits until a flag has any value greater than 0."""


class Point(Enum):
    """The step that a stopped workgroup takes when the scheduler next runs it."""

    BEGIN = "begin"
    """Start the workgroup's program."""
    SEGMENT = "segment"
    """Zero the accumulator and begin another segment (consecutive k tiles of one output tile)."""
    TICKET = "ticket"
    """Take a ticket from a counter, which gives the workgroup its next index of a dynamic loop."""
    SEND = "send"
    """Store a partial sum in a slot of the workspace."""
    RAISE = "raise"
    """Set the flag of a workspace slot, which says that the slot holds a partial sum."""
    WAIT = "wait"
    """Read a workspace slot; the scheduler cannot choose the workgroup before the slot's flag is
    set."""
    CLEAR = "clear"
    """Reset the flag of a workspace slot, or decrement it if several workgroups read the slot."""
    CLEARED = "cleared"
    """Continue after the flag of a workspace slot was reset or decremented (`CLEAR`)."""


@dataclass(frozen=True, slots=True)
class Event:
    """A point before which a workgroup stops, so that the scheduler may run another workgroup.

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
        """True if the awaited flag has the value for which the workgroup waits.

        Args:
            now: the current value of the flag.
        """
        return now > 0 if self.value == ANY else now == self.value
