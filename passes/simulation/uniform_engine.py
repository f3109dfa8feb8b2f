"""`UniformEngine` simulates launches whose main loops are of few kinds, faster than `Engine`.

Main loops of one kind have the same number of k tiles and read equally many bytes of A and B. The
simulation has the same events in the same order as that of `Engine`, and computes the same times.
But all that does not depend on time is looked up in tables (`passes.simulation.uniform_tables`). So
the event loop only orders the begins and ends of main loops by time, and asks the model of the L2
cache. The times of steps that follow a main loop after a fixed time are computed at the end, with
numpy.
"""

from __future__ import annotations

from bisect import insort
from math import inf, prod
from typing import NamedTuple

import numpy as np

from coordgraph.interpreter.lockstep import Steps
from passes.simulation.events import NONE, Events, Times
from passes.simulation.machine import Machine
from passes.simulation.range_cache import RangeCache
from passes.simulation.sharing import Paces
from passes.simulation.tail_runner import TailRunner
from passes.simulation.uniform_tables import UniformTables
from passes.simulation.work import Kernel, Setup, TileWork

__all__ = ["Requested", "UniformEngine"]


class Requested(NamedTuple):
    """Total bytes that all main loops of a launch request and read.

    Attributes:
        asked: bytes that were requested from the L2 cache.
        read_a, read_b: bytes of A and of B that were read from DRAM.
    """

    asked: float
    read_a: float
    read_b: float


class UniformEngine:
    """Simulates one launch of a schedule whose main loops are of few kinds.

    Only workgroups that have steps are simulated; this class numbers them consecutively.

    Args:
        tables: what does not depend on time, such as bytes, and seconds of each step.
        work: the seconds and bytes of work on one tile.
        machine: the GPU.
        kernel: the cluster shape with which the graph is compiled.
        setup: seconds from the launch until workgroups start, and from then until they multiply.

    Attributes:
        slots: number of workgroups that run at the same time.
        times: when steps and workgroups begin and end, as far as this has been simulated.
    """

    def __init__(
        self, tables: UniformTables, work: TileWork, machine: Machine, kernel: Kernel, setup: Setup
    ) -> None:
        self.tables, self.work, self.setup = tables, work, setup
        last, ctas = tables.tails.last, prod(kernel.cluster)
        self.slots = machine.slots(ctas, kernel.resident)
        self.paces = Paces(machine, [work], ctas)
        self.cache = RangeCache(tables.ranges, tables.outcomes.base, machine.l2_bytes)
        self.times = Times(tables.steps)
        firsts = np.append(0, np.flatnonzero(last)[:-1] + 1)
        self.firsts: list[int] = firsts.tolist()
        """For each workgroup, the number of its first main loop."""
        self.workgroup: list[int] = (np.cumsum(last) - last).tolist()
        """For each main loop, the number of the workgroup that executes it."""
        self.slot = [*range(min(self.slots, len(firsts)))]
        """For each workgroup that has started, the slot (SM) on which the workgroup runs."""
        self.previous = [NONE] * len(self.slot)
        """For each workgroup that has started: the workgroup that ran on the same slot (SM) before,
        or NONE."""
        begin = setup.launch + (setup.first + work.first)
        self.timers = [(begin, 2 * loop) for loop in self.firsts[: len(self.slot)]]
        """Events in the future, sorted: the time; and 2 * loop if a main loop begins, or
        2 * loop + 1 if a workgroup has ended of which `loop` was the last main loop, so that its
        slot gets the next workgroup. Events at the same time happen in the order of their
        workgroups."""
        self.tails = TailRunner(tables, self.times, self.timers, self.slot, len(firsts))
        self.began, self.ended = [0.0] * len(last), [0.0] * len(last)
        self.outcomes = [0] * len(last)
        """outcomes: for each main loop, which of its operands the L2 cache holds, as a number (see
        `Outcomes`). began, ended: for each main loop, when it begins and when it ends."""

    def run(self) -> Events | None:
        """Run until all workgroups have ended.

        Returns:
            None if workgroups wait for partial sums that are never sent (`Engine` raises an error
            that names them).
        """
        self._run_loops()
        if self.tails.waiting:
            return None
        loops = self.tables.loops.steps
        np.frombuffer(self.times.begin)[loops] = self.began
        np.frombuffer(self.times.end)[loops] = self.ended
        self.tails.set_times()
        self._set_workgroups()
        return self.times.events()

    @property
    def executed(self) -> Steps:
        """The steps of all workgroups, in the order in which the simulation executed them."""
        return self.times.steps

    @property
    def traffic(self) -> Requested:
        """Bytes that all main loops requested from the L2 cache and read from DRAM, after `run`."""
        o = self.tables.outcomes
        times = np.bincount(self.outcomes, minlength=len(o.counts))
        asked = np.array(o.asked) * np.array(o.counts)
        return Requested(*(float(times @ x) for x in (asked, o.read_a, o.read_b)))

    def _run_loops(self) -> None:
        """Simulate the begin and the end of each main loop, in the order of time."""
        # Python reads local variables faster than attributes.
        o, slots, firsts, workgroups = self.tables.outcomes, self.slot, self.firsts, self.workgroup
        counts, asked, read, keys, timers = o.counts, o.asked, o.read, o.keys, self.timers
        began, ended, outcomes = self.began, self.ended, self.outcomes
        request, run_tail, known = self.cache.request, self.tails.run, self.paces.of
        # `loops` are the running main loops, sorted: the clock (see `Sharing`) at the end, the
        # number of the main loop, and its outcome (which operands it finds in the L2 cache). `key`,
        # `all_asked` and `all_read` are sums over `loops`. `stale` is true if main loops have begun
        # or ended since the pace was computed.
        loops: list[tuple[float, int, int]] = []
        now, clock, pace, stale, key = self.setup.launch, 0.0, self.work.crowded, False, 0
        volume = rate = all_asked = all_read = 0.0
        while timers or loops:
            at = timers[0][0] if timers else inf
            if at > now:
                if stale and not (loops and loops[0][0] <= clock):
                    stale, rate = False, 0.0
                    if loops:
                        (pace,), rate = known.get(key) or self.paces.compute(
                            key, [len(loops)], [all_asked], [all_read]
                        )
                end = now + (loops[0][0] - clock) * pace if loops else inf
                if end < at:
                    volume += (end - now) * rate
                    clock, loop, outcome = loops.pop(0)
                    ended[loop] = now = end
                    key -= keys[outcome]
                    all_asked -= asked[outcome]
                    all_read -= read[outcome]
                    if not loops:
                        # No main loop is left, so the sums are 0; subtraction would leave rounding
                        # errors.
                        all_asked = all_read = 0.0
                    stale = True
                    if woken := run_tail(loop, now):
                        self.tails.wake(woken)
                    continue
                volume += (at - now) * rate
                clock += (at - now) / pace
                now = at
            _, event = timers.pop(0)
            loop = event >> 1
            slot = slots[workgroups[loop]]
            if event & 1:
                if len(slots) == len(firsts):
                    continue
                self.previous.append(workgroups[loop])
                loop = firsts[len(slots)]
                slots.append(slot)
            began[loop] = now
            outcomes[loop] = outcome = request(loop, slot, volume, all_read)
            insort(loops, (clock + counts[outcome], loop, outcome))
            key += keys[outcome]
            all_asked += asked[outcome]
            all_read += read[outcome]
            stale = True

    def _set_workgroups(self) -> None:
        """Set when each workgroup starts and ends, and its slot (SM or cluster of SMs).

        The method is called after all steps have been simulated.
        """
        times, steps, tails = self.times, self.tables.steps, self.tables.tails
        owners = steps.workgroup[self.tables.loops.steps[self.firsts]]
        left = np.frombuffer(times.end)[tails.stops[tails.last] - 1]
        drains = np.array([drain for _, _, drain, _, _ in tails.table])
        ended = left + drains[np.frombuffer(tails.kinds, np.uint8)[tails.last]]
        previous, setup, first = np.array(self.previous), self.setup, self.work.first
        started = np.where(previous == NONE, setup.launch, ended[previous])
        entered = started + np.where(previous == NONE, setup.first + first, setup.later + first)
        slot = np.full(steps.workgroups, NONE)
        slot[owners] = self.slot
        times.slot = slot.tolist()
        columns = (times.started, started), (times.entered, entered), (times.left, left)
        for column, values in (*columns, (times.ended, ended)):
            np.frombuffer(column)[owners] = values
