"""`Events`: the activities of each workgroup of a simulated launch, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain

import numpy as np
from numpy.typing import NDArray

__all__ = ["Activity", "Events", "Row"]

Row = tuple[float, float, int, int, int, int, int]
"""Type of one simulated event: its values for the columns of `Events`, in the order of the columns.
"""
WIDTH = 7
"""Number of columns of `Events`."""


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

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Events:
        """Convert rows (one for each event) to columns."""
        values = chain.from_iterable(rows)
        table = np.fromiter(values, np.float64, len(rows) * WIDTH).reshape(-1, WIDTH).T
        return cls(table[0].copy(), table[1].copy(), *table[2:].astype(np.int64))

    def __len__(self) -> int:
        return len(self.begin)

    def seconds(self, activity: Activity) -> float:
        """Seconds of an activity, summed over workgroups, except while it overlaps multiplying."""
        chosen = (self.activity == activity) & (self.behind == 0)
        return float((self.end[chosen] - self.begin[chosen]).sum())
