"""`Events`: the activities of each workgroup of a simulated launch, as columns."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from coordgraph.interpreter.lockstep import StepKind, Steps

__all__ = ["NONE", "Activity", "Events", "Times"]

NONE = -1
"""The step of an event that belongs to no step."""


class Activity(IntEnum):
    """What a workgroup does during an event of a timeline, such as multiply or wait."""

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
    """The events of a simulated run, sorted by workgroup and then in the order of its steps.

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
OF_STEP = np.array([ACTIVITIES[kind] for kind in StepKind])
"""`ACTIVITIES` as an array: the activity of a step is the element at the index of its kind."""


class Times:
    """The times of a simulated launch, in seconds since the launch began.

    A launch has millions of events, so the simulation stores only times; the columns of `Events`
    are computed from them at the end, with numpy. A step begins when the step before it ends,
    except for a step whose begin is stored.

    Args:
        steps: the steps of every workgroup, such as main loops, sends and stores.

    Attributes:
        begin: by step, when a main loop begins, or when the wait of a receiving step ends.
        end: by step, when the step ends.
        started, entered: by workgroup, when it starts, and when it comes to its first step.
        left, ended: by workgroup, when its last stores begin to drain, and when it ends.
        slot: by workgroup, the slot on which it runs; NONE if it has no steps.
        behind: the steps that one ping-pong warpgroup executes while the other one multiplies.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.begin, self.end = _zeros(len(steps)), _zeros(len(steps))
        self.started, self.entered = _zeros(steps.workgroups), _zeros(steps.workgroups)
        self.left, self.ended = _zeros(steps.workgroups), _zeros(steps.workgroups)
        self.slot = [NONE] * steps.workgroups
        self.behind: list[int] = []

    def events(self) -> Events:
        """The events as columns, without those that take no time."""
        s = self.steps
        numbers = np.arange(len(s), dtype=np.int32)
        owners = np.arange(s.workgroups)
        borders = np.searchsorted(s.workgroup, np.arange(s.workgroups + 1))
        # A workgroup has a row for its start, two for each step (the pause before it and the step
        # itself), and a row for draining. So its rows are in the order of time.
        starts, drains = 2 * (borders[:-1] + owners), 2 * (borders[1:] + owners) + 1
        pauses = 2 * (numbers + s.workgroup) + 1
        executed = pauses + 1
        end_of_step, behind = np.frombuffer(self.end), self._is_behind()
        before = self._previous_ends(end_of_step, behind)
        waits = (s.kind == StepKind.RECEIVE) | (s.kind == StepKind.AWAIT)
        begin_of_step = np.where(waits | (s.kind == StepKind.MULTIPLY), self.begin, before)

        entered, started = np.frombuffer(self.entered), np.frombuffer(self.started)
        left, ended = np.frombuffer(self.left), np.frombuffer(self.ended)
        kept = np.zeros(2 * (len(s) + s.workgroups), bool)
        # (rows, begin, end, activity, mask of the rows that belong to a step; None for no row)
        every = np.ones(len(s), bool)
        groups = (
            (starts, started, entered, Activity.START, None),
            (pauses, before, begin_of_step, np.where(waits, Activity.WAIT, Activity.TURN), waits),
            (executed, begin_of_step, end_of_step, OF_STEP[s.kind], every),
            (drains, left, ended, Activity.DRAIN, None),
        )
        for rows, begins, ends, *_ in groups:
            kept[rows] = ends > begins
        places = np.cumsum(kept, dtype=np.int32) - 1
        count = int(places[-1]) + 1 if len(places) else 0
        begin, end = np.empty((2, count))
        activity, overlaps = np.empty(count, np.int64), np.zeros(count, np.int64)
        step = np.full(count, NONE, np.int64)
        for rows, begins, ends, what, numbered in groups:
            chosen = kept[rows]
            at = places[rows[chosen]]
            begin[at], end[at] = begins[chosen], ends[chosen]
            activity[at] = what[chosen] if isinstance(what, np.ndarray) else int(what)
            if numbered is not None:
                step[at] = np.where(numbered[chosen], numbers[chosen], NONE)
            if rows is executed:
                overlaps[at] = behind[chosen]
        workgroup = np.repeat(owners, 2 * (np.diff(borders) + 1))[kept]
        slot = np.array(self.slot, np.int64)[workgroup]
        return Events(begin, end, workgroup, slot, activity, step, overlaps)

    def sort(self, order: NDArray[np.int64], steps: Steps) -> None:
        """Sort the times of steps by the workgroups that have executed the steps.

        Args:
            order: for each step in the new order, the index of the step in the old order.
            steps: the steps in the new order, with the workgroups that have executed them.
        """
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        self.steps = steps
        self.begin = array("d", np.array(self.begin)[order].tobytes())
        self.end = array("d", np.array(self.end)[order].tobytes())
        self.behind = places[self.behind].tolist() if self.behind else []

    def makespan(self, launch: float) -> float:
        """When the last workgroup has ended; `launch` seconds if no workgroup has steps."""
        return max(launch, max(self.ended, default=launch))

    def _is_behind(self) -> NDArray[np.bool_]:
        """For each step, whether the workgroup multiplies another tile at the same time."""
        found = np.zeros(len(self.steps), bool)
        found[self.behind] = True
        return found

    def _previous_ends(
        self, end: NDArray[np.float64], behind: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """For each step, when the step before it ends, or when its workgroup begins its steps.

        If a main loop overlaps other steps, the step before it is the main loop of the other
        ping-pong warpgroup.

        Args:
            end: by step, when it ends.
            behind: by step, whether the workgroup multiplies another tile at the same time.
        """
        s, numbers = self.steps, np.arange(len(end))
        first = np.diff(s.workgroup, prepend=-1) > 0
        if self.behind:
            alone = np.maximum.accumulate(np.where(behind, 0, numbers))
            before = end[np.where(behind, numbers - 1, np.roll(alone, 1))]
        else:
            before = np.roll(end, 1)
        return np.where(first, np.frombuffer(self.entered)[s.workgroup], before)


def _zeros(count: int) -> array[float]:
    """An array of `count` zeros, whose elements Python accesses faster than those of numpy."""
    return array("d", bytes(8 * count))
