"""`PartialSums`: when partial sums are sent, and which workgroups wait for one."""

from __future__ import annotations

from typing import NamedTuple

from coordgraph.interpreter.lockstep import Steps

__all__ = ["PartialSums", "Wait"]


class Wait(NamedTuple):
    """A workgroup that waits for a partial sum.

    Attributes:
        step: the index of the step that waits.
        since: the time when the wait began, in seconds since the launch began.
        workgroup: the number of the workgroup.
    """

    step: int
    since: float
    workgroup: int


class PartialSums:
    """The partial sums of a launch.

    Each partial sum has a number: partial sums that are sent to one workspace slot one after
    another have consecutive numbers.

    Args:
        steps: the steps of every workgroup, such as main loops, sends and stores.

    Attributes:
        blocked: the waits for partial sums whose time of sending is not known yet, by workgroup.
    """

    def __init__(self, steps: Steps) -> None:
        turns = int((steps.first + steps.count)[steps.slot >= 0].max(initial=0))
        self._first: list[int] = (steps.slot * turns + steps.first).tolist()
        """For each step that sends or receives, the number of its first partial sum."""
        self._counts: list[int] = steps.count.tolist()
        self._readers: list[int] = steps.readers.tolist()
        self._sent: dict[int, float] = {}
        """For each partial sum, by its number: the time at which it is sent."""
        self._left: dict[int, int] = {}
        """For each partial sum that has been sent: how many workgroups have still to receive it."""
        self._waiting: dict[int, list[int]] = {}
        """The workgroups that wait for a partial sum, by the number of the partial sum."""
        self.blocked: dict[int, Wait] = {}

    def send(self, step: int, time: float) -> list[Wait]:
        """Send the partial sum of a step at a time, which may be in the future.

        Returns:
            The waits for this partial sum, which are no longer `blocked`.
        """
        number = self._first[step]
        self._sent[number] = time
        self._left[number] = self._left.get(number, 0) + self._readers[step]
        if number not in self._waiting:
            return []
        return [self.blocked.pop(workgroup) for workgroup in self._waiting.pop(number)]

    def receive(self, step: int, time: float, workgroup: int) -> float | None:
        """Receive the partial sums of a step, for which a workgroup waits from `time` on.

        Returns:
            The time when the last of these partial sums has been sent, `time` at the earliest. None
            if the time is not known yet: then the workgroup is `blocked`.
        """
        first, left = self._first[step], self._left
        numbers = range(first, first + self._counts[step])
        for number in numbers:
            if not left.get(number):
                self._waiting.setdefault(number, []).append(workgroup)
                self.blocked[workgroup] = Wait(step, time, workgroup)
                return None
        for number in numbers:
            left[number] -= 1
            at = self._sent[number]
            if at > time:
                time = at
        return time
