"""`Events`: the activities of each workgroup of a simulated launch, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from coordgraph.interpreter.lockstep import StepKind, Steps

__all__ = ["NONE", "Activity", "Events", "Recorder"]

NONE = -1
"""The step of an event that belongs to no step."""


class Activity(IntEnum):
    """What a workgroup does during an event."""

    START = 0
    """Begin: set up, and load the first tiles."""
    MULTIPLY = 1
    """Run main loop iterations (k tiles) of an output tile."""
    SEND = 2
    """Write a partial sum and set its flag."""
    WAIT = 3
    """Wait for a partial sum."""
    RECEIVE = 4
    """Read partial sums and add them."""
    FINISH = 5
    """Run the epilogue and store an output tile or, in a reduce-scatter, the workgroup's shares of
    a tile."""
    DRAIN = 6
    """Wait until the last stores are done, and end."""
    TURN = 7
    """Ping-pong: wait until the tensor cores are handed over to the other warpgroup, or until the
    other warpgroup has finished its tile."""
    LOAD = 8
    """Load tiles of A and B to shared memory. Only measured runs have such events, from the
    producer warp."""


@dataclass(frozen=True)
class Events:
    """The events of a simulated run, in the order in which the simulation recorded them.

    Events of one workgroup follow each other without a gap. With ping-pong warpgroups, the FINISH
    of one overlaps the MULTIPLY of the other; the column `behind` marks such events.

    Attributes:
        begin, end: seconds since the launch began.
        workgroup: the number of the workgroup.
        slot: the number of the SM, or of the cluster of SMs, on which the workgroup ran. If an SM
            runs several workgroups at the same time, it has as many slots, with consecutive
            numbers.
        activity: the `Activity`.
        step: the index of the step in the `Steps` of the schedule; -1 for START, DRAIN and TURN.
        behind: 1 if the workgroup multiplies another tile at the same time.
    """

    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    workgroup: NDArray[np.int64]
    slot: NDArray[np.int64]
    activity: NDArray[np.int64]
    step: NDArray[np.int64]
    behind: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.begin)

    def seconds(self, activity: Activity) -> float:
        """Seconds of an activity, summed over workgroups, except while it overlaps multiplying."""
        chosen = (self.activity == activity) & (self.behind == 0)
        return float((self.end[chosen] - self.begin[chosen]).sum())


ACTIVITIES = {
    StepKind.MULTIPLY: Activity.MULTIPLY,
    StepKind.SEND: Activity.SEND,
    **dict.fromkeys((StepKind.RECEIVE, StepKind.AWAIT, StepKind.ADD), Activity.RECEIVE),
    **dict.fromkeys((StepKind.FINISH, StepKind.STORE), Activity.FINISH),
}
"""The activity of a step, by its kind."""
WAIT, BEHIND = len(Activity), len(Activity) + 1
"""Kinds of recorded events beside an `Activity`: a wait of a step, and a step of one ping-pong
warpgroup while the other one multiplies."""
OF_STEP = len(Activity) + 2
"""Kind of a recorded event whose activity is that of its step."""
WIDTH = OF_STEP + 1


class Recorder:
    """Collects the events of a simulation.

    An event is three numbers in a flat list: begin, end, and a code. The code is `WIDTH` times the
    number of the step (or of the workgroup, if the event belongs to no step), plus the kind of the
    event.
    Columns of `Events` that follow from the step or the workgroup are computed at the end, with
    numpy. A launch has millions of events, so a tuple of all columns for each takes too long.

    Args:
        steps: what every workgroup does.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self._values: list[float] = []

    def of_step(
        self, begin: float, end: float, step: int, *, waits: bool = False, behind: bool = False
    ) -> None:
        """Record that a step takes from `begin` to `end`, unless it takes no time.

        Args:
            begin, end: seconds since the launch began.
            step: the index of the step.
            waits: the workgroup waits for a partial sum that the step receives.
            behind: the workgroup multiplies another tile at the same time.
        """
        if end > begin:
            kind = WAIT if waits else BEHIND if behind else OF_STEP
            self._values += (begin, end, step * WIDTH + kind)

    def of_workgroup(self, begin: float, end: float, workgroup: int, activity: Activity) -> None:
        """Record an activity of a workgroup that belongs to no step, unless it takes no time."""
        if end > begin:
            self._values += (begin, end, workgroup * WIDTH + activity)

    def events(self, slot_of: NDArray[np.int64]) -> Events:
        """The recorded events as columns; `slot_of` has the slot of each workgroup."""
        s = self.steps
        begin, end, codes = np.array(self._values, np.float64).reshape(-1, 3).T
        number, kind = np.divmod(codes.astype(np.int64), WIDTH)
        has_step = kind >= len(Activity)
        step = np.where(has_step, number, NONE)
        workgroup, activity = number.copy(), kind.copy()
        workgroup[has_step] = s.workgroup[number[has_step]]
        of_kind = np.array([ACTIVITIES[kind] for kind in StepKind])
        activity[has_step] = of_kind[s.kind[number[has_step]]]
        activity[kind == WAIT] = Activity.WAIT
        slot = slot_of[workgroup]
        behind = (kind == BEHIND).astype(np.int64)
        return Events(begin.copy(), end.copy(), workgroup, slot, activity, step, behind)
