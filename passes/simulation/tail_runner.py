"""`TailRunner` simulates tails, the steps between main loops, for `UniformEngine`."""

from __future__ import annotations

from array import array
from bisect import insort

import numpy as np
from numpy.typing import NDArray

from coordgraph.interpreter.lockstep import StepKind
from passes.simulation.events import NONE, Times
from passes.simulation.uniform_tables import BEGIN, NOT_PLAIN, UniformTables, places

__all__ = ["TailRunner"]

SEND, WAITS = int(StepKind.SEND), (int(StepKind.RECEIVE), int(StepKind.AWAIT))
UNKNOWN = -1.0
"""Stands for the time at which a partial sum is sent, as long as that time is not known."""

Rest = tuple[int, int, float]
"""Type of a tail (the steps after a main loop, up to the next one), or of the steps of a tail that
remain after a wait: the number of the main loop before the tail; the index of the first step, or
NONE for all steps of a plain tail (one that waits only at its begin and sends only at its end); and
the time at which this step begins."""


class TailRunner:
    """Simulates the tails of a launch: the steps after each main loop, up to the next one.

    Args:
        tables: what is known of the launch before the simulation, such as seconds of each step.
        times: when steps begin and end, which this class sets.
        timers: the events in the future, such as the begin of a main loop (see `UniformEngine`);
            this class adds events.
        started: a list to which the engine appends an element whenever a workgroup starts; only its
            length is used here.
        workgroups: number of workgroups that have steps.

    Attributes:
        waiting: for each partial sum whose time of sending is not known yet, the tails that wait
            for this partial sum.
    """

    def __init__(
        self,
        tables: UniformTables,
        times: Times,
        timers: list[tuple[float, int]],
        started: list[int],
        workgroups: int,
    ) -> None:
        self.tables, self.times, self.timers = tables, times, timers
        self.started, self.workgroups = started, workgroups
        tails = tables.tails
        self.kinds, self.table = tails.kinds, tails.table
        self.receives: list[int] = tails.receives.tolist()
        self.sends: list[int] = tails.sends.tolist()
        self.sent = [*[UNKNOWN] * tails.nothing, 0.0, UNKNOWN]
        """For each partial sum, the time at which it is sent. The last two entries are for tails
        (the steps after a main loop) that receive no partial sum, and for tails that send no
        partial sum."""
        self.waiting: dict[int, list[Rest]] = {}
        self.step_of = _integers(tables.loops.steps)
        self.stops = _integers(tails.stops)
        self.counts = _integers(tables.steps.count)
        self.numbers = _integers(tables.numbers)
        self.step_kinds = tables.steps.kind.astype(np.uint8).tobytes()
        self.seconds = array("d", tables.seconds.tobytes())

    def run(self, loop: int, time: float) -> list[Rest] | None:
        """Simulate the steps after a main loop (its tail), up to a wait for a partial sum.

        Args:
            loop: the number of the main loop.
            time: when the main loop ends, in seconds since the launch began.

        Returns:
            The tails that waited for the partial sums that this tail sends. The caller must pass
            them to `wake`.
        """
        received = self.receives[loop]
        if received == NOT_PLAIN:
            return self._execute(loop, self.step_of[loop] + 1, time)
        sent = self.sent[received]
        if sent == UNKNOWN:
            self.waiting.setdefault(received, []).append((loop, NONE, time))
            return None
        first, others, drain, later, event = self.table[self.kinds[loop]]
        number = self.sends[loop]
        self.sent[number] = time = (sent if sent > time else time) + first + others
        if event == BEGIN or len(self.started) < self.workgroups:
            insort(self.timers, (time + drain + later, 2 * loop + event))
        return self.waiting.pop(number, None)

    def wake(self, rests: list[Rest]) -> None:
        """Continue tails (the steps after a main loop) whose awaited partial sums now have times.

        Tails that wait for partial sums which these tails send are continued, too.

        Args:
            rests: what is left of each tail to continue; empty when the method returns.
        """
        while rests:
            loop, step, time = rests.pop()
            woken = self.run(loop, time) if step == NONE else self._execute(loop, step, time)
            rests += woken or ()

    def _execute(self, loop: int, step: int, time: float) -> list[Rest]:
        """Execute the steps after a main loop (its tail), up to a wait for a partial sum.

        This is for tails that are not plain: a plain tail waits only before its first step, and
        sends only after its last step.

        Args:
            loop: the main loop before the tail.
            step: the index of the first step to execute.
            time: when this step begins, in seconds since the launch began.

        Returns:
            The other tails that waited for the partial sums that this tail sends.
        """
        woken: list[Rest] = []
        begins, ends, kinds = self.times.begin, self.times.end, self.step_kinds
        for at in range(step, self.stops[loop]):
            kind = kinds[at]
            if kind in WAITS:
                until = self._sent(loop, at, time)
                if until == UNKNOWN:
                    return woken
                begins[at] = time = until
            ends[at] = time = time + self.seconds[at]
            if kind == SEND:
                number = self.numbers[at]
                self.sent[number] = time
                woken += self.waiting.pop(number, ())
        _, _, drain, later, event = self.table[self.kinds[loop]]
        if event == BEGIN or len(self.started) < self.workgroups:
            insort(self.timers, (time + drain + later, 2 * loop + event))
        return woken

    def _sent(self, loop: int, step: int, time: float) -> float:
        """When all partial sums of a waiting step have been sent, `time` at the earliest.

        The result is UNKNOWN if the time of a partial sum is not known; the tail then waits for
        that partial sum.
        """
        first, until = self.numbers[step], time
        for number in range(first, first + self.counts[step]):
            sent = self.sent[number]
            if sent == UNKNOWN:
                self.waiting.setdefault(number, []).append((loop, step, time))
                return UNKNOWN
            if sent > until:
                until = sent
        return until

    def set_times(self) -> None:
        """Set the times of the steps after main loops that `run` has not executed one by one.

        The method is called when all main loops have ended.
        """
        t, loops, tails = self.tables, self.tables.loops.steps, self.tables.tails
        begin, end = np.frombuffer(self.times.begin), np.frombuffer(self.times.end)
        receiving = np.flatnonzero(tails.plain & (tails.receives != tails.nothing))
        sent = np.array(self.sent)[tails.receives[receiving]]
        begin[loops[receiving] + 1] = np.maximum(end[loops[receiving]], sent)
        for number, (_, place) in enumerate(places(loops, tails.stops, tails.plain)):
            # For a step that does not wait `begin` is 0, so the step begins when the step before it
            # ends.
            since = end[place - 1] if number else np.maximum(end[place - 1], begin[place])
            end[place] = since + t.seconds[place]


def _integers(values: NDArray[np.int64]) -> array[int]:
    """`values` as an `array.array`, whose elements Python reads faster than those of numpy."""
    return array("q", values.astype(np.int64).tobytes())
