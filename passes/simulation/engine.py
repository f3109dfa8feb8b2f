"""`Engine` simulates the steps of a schedule on a model of a GPU, event by event.

A workgroup starts when a slot (an SM or, if several workgroups run on one SM, a part of it) is
free, and executes its steps in order. Main loops share resources (`Sharing`); other steps take a
fixed time. A workgroup that receives a partial sum waits until the sum has been sent.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from coordgraph.errors import Deadlock
from coordgraph.interpreter.lockstep import StepKind, Steps
from passes.simulation.events import Activity, Events, Row
from passes.simulation.machine import Machine
from passes.simulation.memory import Traffic
from passes.simulation.sharing import Sharing
from passes.simulation.work import Kernel, Setup, TileWork

__all__ = ["Engine"]

MULTIPLY, SEND = int(StepKind.MULTIPLY), int(StepKind.SEND)
WAITS = (int(StepKind.RECEIVE), int(StepKind.AWAIT))
ACTIVITIES = {
    SEND: Activity.SEND,
    **dict.fromkeys((*WAITS, int(StepKind.ADD)), Activity.RECEIVE),
    **dict.fromkeys((int(StepKind.FINISH), int(StepKind.STORE)), Activity.FINISH),
}
NONE = -1
SHOWN = 4
"""Number of waiting workgroups that the message of a deadlock lists."""


class Engine:
    """Simulates one launch of a schedule.

    Args:
        steps: what every workgroup does.
        works: the cost of a tile of each tile shape.
        machine: the GPU.
        kernel: the cluster shape and the consumers with which the graph is compiled.
        setup: seconds from the launch and from the start of a workgroup until it multiplies.
        traffic: computes the bytes that main loops request from the L2 cache and read from DRAM.

    Attributes:
        slots: number of workgroups that run at the same time.
        rows: the events that have been simulated so far.
    """

    def __init__(
        self,
        steps: Steps,
        works: Sequence[TileWork],
        machine: Machine,
        kernel: Kernel,
        setup: Setup,
        traffic: Traffic,
    ) -> None:
        self.works, self.setup, self.traffic = works, setup, traffic
        self.turns = kernel.turns
        self.slots = machine.slots(prod(kernel.cluster), kernel.resident)
        self.count = count = steps.workgroups
        self.kinds: list[int] = steps.kind.tolist()
        self.tilings: list[int] = steps.tiling.tolist()
        self.firsts: list[int] = steps.first.tolist()
        self.counts: list[int] = steps.count.tolist()
        self.places: list[int] = steps.slot.tolist()
        self.readers: list[int] = steps.readers.tolist()
        self.steps = steps
        self.seconds: list[float] = fixed_seconds(steps, works).tolist()
        borders = np.searchsorted(steps.workgroup, np.arange(count + 1))
        self.borders: list[int] = borders.tolist()
        self.rows: list[Row] = []
        self.sharing = Sharing(machine, works, prod(kernel.cluster))
        self.now = setup.launch
        self.timers: list[tuple[float, int, int, int, int]] = []
        """Pending timers: time; a running number; workgroup; the step that the workgroup begins at
        this time (NONE: the workgroup ends); and the step whose partial sum is sent at this time
        (NONE: no partial sum)."""
        self.loops: list[list[tuple[float, int, int, int, float, float, float]]] = [
            [] for _ in works
        ]
        """For each tile shape, the running main loops: (clock at the loop's end, a running number,
        workgroup, step, begin, bytes requested from the L2 cache per k tile, bytes read from DRAM
        per k tile)."""
        self.number = 0
        self.dispatched, self.left = 0, count
        self.slot_of = [NONE] * count
        self.finished = [0.0] * count
        """For each workgroup with ping-pong consumers: the time at which one warpgroup ends its
        epilogue, while the other one executes a main loop; 0 before the first such epilogue."""
        self.sent: dict[tuple[int, int], int] = defaultdict(int)
        self.waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.blocked: dict[int, tuple[int, float]] = {}
        """For each waiting workgroup: the step that waits, and the time when its wait began."""

    def run(self) -> Events:
        """Run until all workgroups have ended.

        Raises:
            Deadlock: every workgroup that has started and not ended waits for a partial sum.
        """
        for slot in range(min(self.slots, self.count)):
            self._dispatch(slot, self.setup.first)
        timers, sharing, stale = self.timers, self.sharing, False
        while self.left:
            at, which = (timers[0][0], NONE) if timers else (inf, NONE)
            if stale and at > self.now:
                sharing.settle()
                stale = False
            for i, queue in enumerate(self.loops):
                if queue:
                    ahead = max(queue[0][0] - sharing.clocks[i], 0.0)
                    end = self.now + ahead * sharing.paces[i]
                    if end < at:
                        at, which = end, i
            if at == inf:
                raise self._deadlock()
            if at > self.now:
                sharing.advance(at - self.now)
                self.now = at
            if which == NONE:
                _, _, workgroup, step, sent = heapq.heappop(timers)
                if sent != NONE:
                    self._signal(sent)
                stale |= self._continue(workgroup, step)
            else:
                self._multiplied(which)
                stale = True
        return Events.of(self.rows)

    def _wake(self, time: float, workgroup: int, step: int, sent: int = NONE) -> None:
        self.number += 1
        heapq.heappush(self.timers, (time, self.number, workgroup, step, sent))

    def _dispatch(self, slot: int, seconds: float) -> None:
        """Start the next workgroup that has any steps, on `slot`.

        The workgroup begins to multiply after `seconds` plus the further time of a first iteration.
        """
        while self.dispatched < self.count:
            workgroup = self.dispatched
            self.dispatched += 1
            begin = self.borders[workgroup]
            if begin == self.borders[workgroup + 1]:
                self.left -= 1
                continue
            self.slot_of[workgroup] = slot
            until = self.now + seconds + self.works[self.tilings[begin]].first
            self._record(self.now, until, workgroup, Activity.START)
            self._wake(until, workgroup, begin)
            return

    def _record(
        self,
        begin: float,
        end: float,
        workgroup: int,
        activity: Activity,
        step: int = NONE,
        behind: int = 0,
    ) -> None:
        if end > begin:
            slot = self.slot_of[workgroup]
            self.rows.append((begin, end, workgroup, slot, activity, step, behind))

    def _continue(self, workgroup: int, step: int) -> bool:
        """Simulate a workgroup's steps from index `step` on, until it waits or begins a main loop.

        Returns True if a main loop begins at the current time.
        """
        if step == NONE:
            self.left -= 1
            self._dispatch(self.slot_of[workgroup], self.setup.later)
            return False
        stop, time = self.borders[workgroup + 1], self.now
        while step < stop:
            kind = self.kinds[step]
            if time > self.now and (kind == MULTIPLY or kind in WAITS):
                self._wake(time, workgroup, step)
                return False
            if kind == MULTIPLY:
                self._multiply(workgroup, step)
                return True
            if kind in WAITS and not self._received(workgroup, step):
                return False
            until = time + self.seconds[step]
            self._record(time, until, workgroup, ACTIVITIES[kind], step)
            time, step = until, step + 1
            if kind == SEND:
                self._wake(time, workgroup, step if step < stop else NONE, step - 1)
                return False
        self._leave(workgroup, time)
        return False

    def _leave(self, workgroup: int, time: float) -> None:
        """End a workgroup that has executed its steps, once its stores are done."""
        last = self.borders[workgroup + 1] - 1
        until = time
        if self.kinds[last] == StepKind.STORE:
            until += self.works[self.tilings[last]].drain
            self._record(time, until, workgroup, Activity.DRAIN)
        self._wake(until, workgroup, NONE)

    def _multiply(self, workgroup: int, step: int) -> None:
        """Begin to simulate the main loop that is the step number `step` of the launch."""
        tiling, sharing = self.tilings[step], self.sharing
        asked, read = self.traffic.request(
            step, self.slot_of[workgroup], sharing.volume, sharing.pace
        )
        sharing.begin(tiling, asked, read)
        self.number += 1
        end = sharing.clocks[tiling] + self.counts[step]
        loop = (end, self.number, workgroup, step, self.now, asked, read)
        heapq.heappush(self.loops[tiling], loop)

    def _multiplied(self, tiling: int) -> None:
        """End the main loop that ends first among those on tiles of shape number `tiling`."""
        _, _, workgroup, step, begin, asked, read = heapq.heappop(self.loops[tiling])
        self.sharing.end(tiling, asked, read)
        self._record(begin, self.now, workgroup, Activity.MULTIPLY, step)
        if self.turns > 1 and self._finishes(workgroup, step + 1):
            return
        self._continue(workgroup, step + 1)

    def _finishes(self, workgroup: int, step: int) -> bool:
        """Simulate ping-pong: a warpgroup finishes a tile while the other begins the next tile.

        The other warpgroup begins the next main loop after it has finished its previous tile.

        Returns:
            False if nothing was simulated, because the steps from number `step` to the next main
            loop do more than finish and store the tile.
        """
        following, stop = step, self.borders[workgroup + 1]
        while following < stop and self.kinds[following] != MULTIPLY:
            if ACTIVITIES[self.kinds[following]] is not Activity.FINISH:
                return False
            following += 1
        last = following == stop
        time = self.now
        for place in range(step, following):
            until = time + self.seconds[place]
            self._record(time, until, workgroup, Activity.FINISH, place, behind=not last)
            time = until
        if last:
            self._leave(workgroup, max(time, self.finished[workgroup]))
            return True
        begin = self.now + self.works[self.tilings[following]].handover
        begin = max(begin, self.finished[workgroup])
        self._record(self.now, begin, workgroup, Activity.TURN)
        self.finished[workgroup] = time
        self._wake(begin, workgroup, following)
        return True

    def _keys(self, step: int) -> list[tuple[int, int]]:
        """Keys that identify the partial sums which the step number `step` sends or receives.

        A key is (workspace slot, number of earlier sends to this slot).
        """
        place, first = self.places[step], self.firsts[step]
        return [(place, turn) for turn in range(first, first + self.counts[step])]

    def _signal(self, step: int) -> None:
        """Let the workgroups continue that wait for partial sums of the step number `step`."""
        for key in self._keys(step):
            self.sent[key] += self.readers[step]
            for workgroup in self.waiting.pop(key, ()):
                at, since = self.blocked.pop(workgroup)
                self._record(since, self.now, workgroup, Activity.WAIT, at)
                self._wake(self.now, workgroup, at)

    def _received(self, workgroup: int, step: int) -> bool:
        """Take the partial sums that a step receives; return False if the workgroup has to wait."""
        keys = self._keys(step)
        for key in keys:
            if not self.sent[key]:
                self.waiting[key].append(workgroup)
                self.blocked[workgroup] = step, self.now
                return False
        for key in keys:
            self.sent[key] -= 1
        return True

    def _deadlock(self) -> Deadlock:
        """Make the `Deadlock` error, whose message names waiting workgroups and output tiles."""
        s, found = self.steps, sorted((w, step) for w, (step, _) in self.blocked.items())
        named = [
            f"workgroup {w} waits for a partial sum of output tile "
            f"({f'{s.product[i]}, ' if len(s.tiles) > 3 else ''}{s.m[i]}, {s.n[i]}) in slot "
            f"{s.slot[i]}"
            for w, i in found[:SHOWN]
        ]
        more = f", and {len(found) - SHOWN} more wait" if len(found) > SHOWN else ""
        message = f"the schedule stops after {self.now:.3g} s: {'; '.join(named)}{more}"
        if self.dispatched < self.count:
            running = f"{self.slots} workgroup{'s run' if self.slots > 1 else ' runs'}"
            message += (
                f"; {running} at the same time, so "
                f"{self.dispatched}..{self.count - 1} cannot start; launch at most {self.slots}"
            )
        else:
            message += "; send every partial sum that is received, before its sender waits"
        return Deadlock(message, {w: int(s.slot[i]) for w, i in found})


def fixed_seconds(steps: Steps, works: Sequence[TileWork]) -> NDArray[np.float64]:
    """Seconds of each step that does not share resources; 0 for main loops and for waits."""
    kind, tiling = steps.kind, steps.tiling
    seconds = np.zeros(len(steps))

    def of(name: str) -> NDArray[np.float64]:
        return np.array([getattr(work, name) for work in works])[tiling]

    shares = np.maximum(steps.count, 1)
    seconds = np.where(kind == StepKind.SEND, of("send"), seconds)
    seconds = np.where(kind == StepKind.RECEIVE, of("receive"), seconds)
    after_wait = np.zeros(len(steps), bool)
    after_wait[1:] = kind[:-1] == StepKind.AWAIT
    adds = of("add") / shares + np.where(after_wait, of("shared"), 0)
    seconds = np.where(kind == StepKind.ADD, adds, seconds)
    return np.where(kind == StepKind.STORE, of("finish") / shares, seconds)
