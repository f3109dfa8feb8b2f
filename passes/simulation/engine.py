"""`Engine` simulates the steps of a schedule on a model of a GPU, event by event.

A workgroup starts when a slot (an SM or, if several workgroups run on one SM, a part of it) is
free, and executes its steps in order. Main loops share resources (`Sharing`); other steps take a
fixed time. A workgroup that receives a partial sum waits until the sum has been sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from coordgraph.errors import Deadlock
from coordgraph.interpreter.lockstep import StepKind, Steps
from passes.simulation.events import NONE, Activity, Events, Recorder
from passes.simulation.machine import Machine
from passes.simulation.memory import Traffic
from passes.simulation.sharing import Sharing
from passes.simulation.taken_tiles import TakenTiles
from passes.simulation.work import Kernel, Setup, TileWork

__all__ = ["Engine"]

MULTIPLY, SEND, STORE = int(StepKind.MULTIPLY), int(StepKind.SEND), int(StepKind.STORE)
WAITS = (int(StepKind.RECEIVE), int(StepKind.AWAIT))
ENDS = (int(StepKind.FINISH), STORE)
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
        dynamic: whether workgroups take output tiles from a counter: the first one that has
            finished a tile takes the next one, whichever workgroup `steps` assigns it to.

    Attributes:
        slots: number of workgroups that run at the same time.
        recorder: the events that have been simulated so far.
        tiles: with `dynamic`, the steps of each output tile; else None.
        now: the simulated time, in seconds since the launch began.
    """

    def __init__(
        self,
        steps: Steps,
        works: Sequence[TileWork],
        machine: Machine,
        kernel: Kernel,
        setup: Setup,
        traffic: Traffic,
        *,
        dynamic: bool = False,
    ) -> None:
        self.works, self.setup, self.traffic = works, setup, traffic
        self.turns = kernel.turns
        self.slots = machine.slots(prod(kernel.cluster), kernel.resident)
        self.count = count = steps.workgroups
        self.kinds: list[int] = steps.kind.tolist()
        self.tilings: list[int] = steps.tiling.tolist()
        self.counts: list[int] = steps.count.tolist()
        turns = int((steps.first + steps.count).max(initial=0))
        self.keys: list[int] = (steps.slot * turns + steps.first).tolist()
        """For each step that sends or receives, the number of its first partial sum. Partial sums
        that are sent to one workspace slot one after another have consecutive numbers."""
        self.readers: list[int] = steps.readers.tolist()
        self.steps = steps
        self.seconds: list[float] = fixed_seconds(steps, works).tolist()
        borders = np.searchsorted(steps.workgroup, np.arange(count + 1))
        self.borders: list[int] = borders.tolist()
        self.ends = self.borders[1:]
        """For each workgroup, the end of the steps that it executes without taking a tile."""
        self.tiles = TakenTiles(steps) if dynamic else None
        if self.tiles is not None:
            self.ends = self.tiles.first_ends
        self.recorder = Recorder(steps)
        self.sharing = Sharing(machine, works, prod(kernel.cluster))
        self.now = setup.launch
        self.timers: list[tuple[float, int, int, int, int]] = []
        """Pending timers: time; a running number; workgroup; the step that the workgroup begins at
        this time (NONE: the workgroup ends); and the step whose partial sum is sent at this time
        (NONE: no partial sum)."""
        self.number = 0
        self.dispatched, self.left = 0, count
        self.slot_of = [NONE] * count
        self.finished = [0.0] * count
        """For each workgroup with ping-pong consumers: the time at which one warpgroup ends its
        epilogue, while the other one executes a main loop; 0 before the first such epilogue."""
        self.sent: dict[int, int] = {}
        """How often each partial sum that was sent can still be received, by its number."""
        self.waiting: dict[int, list[int]] = {}
        """The workgroups that wait for a partial sum, by the number of the partial sum."""
        self.blocked: dict[int, tuple[int, float]] = {}
        """For each waiting workgroup: the step that waits, and the time when its wait began."""

    def run(self) -> Events:
        """Run until all workgroups have ended.

        Raises:
            Deadlock: every workgroup that has started and not ended waits for a partial sum.
        """
        for slot in range(min(self.slots, self.count)):
            self._dispatch(slot, self.setup.first)
        timers, sharing = self.timers, self.sharing
        while self.left:
            at = timers[0][0] if timers else inf
            if at > self.now:
                if sharing.stale:
                    sharing.find_end(self.now)
                if sharing.end < at:
                    self.now = sharing.end
                    self._multiplied()
                    continue
                if at == inf:
                    raise self._deadlock()
                self.now = at
            _, _, workgroup, step, sent = heappop(timers)
            if sent != NONE:
                self._signal(sent)
            self._continue(workgroup, step)
        slot_of = np.array(self.slot_of, np.int64)
        events = self.recorder.events(slot_of)
        return events if self.tiles is None else self.tiles.reassigned(events, slot_of)

    @property
    def executed(self) -> Steps:
        """The steps of all workgroups, in the order in which the simulation executed them."""
        return self.steps if self.tiles is None else self.tiles.executed

    def _wake(self, time: float, workgroup: int, step: int, sent: int = NONE) -> None:
        self.number += 1
        heappush(self.timers, (time, self.number, workgroup, step, sent))

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
            self.recorder.of_workgroup(self.now, until, workgroup, Activity.START)
            self._wake(until, workgroup, begin)
            return

    def _continue(self, workgroup: int, step: int) -> None:
        """Simulate a workgroup from a step on, until it waits or begins a main loop."""
        if step == NONE:
            self.left -= 1
            self._dispatch(self.slot_of[workgroup], self.setup.later)
            return
        kinds, stop, time = self.kinds, self.ends[workgroup], self.now
        while step < stop:
            kind = kinds[step]
            if kind == MULTIPLY or kind in WAITS:
                if time > self.now:
                    self._wake(time, workgroup, step)
                    return
                if kind == MULTIPLY:
                    self._multiply(workgroup, step)
                    return
                if not self._received(workgroup, step):
                    return
            until = time + self.seconds[step]
            if until > time:
                self.recorder.of_step(time, until, step)
            time, step = until, step + 1
            if kind == SEND:
                self._wake(time, workgroup, step if step < stop else NONE, step - 1)
                return
        if self.tiles is not None:
            if time > self.now:
                self._wake(time, workgroup, stop)
                return
            if (following := self._take(workgroup)) != NONE:
                self._continue(workgroup, following)
                return
        self._leave(workgroup, time)

    def _take(self, workgroup: int) -> int:
        """The first step of the next output tile, which a workgroup takes; NONE if none is left."""
        found = self.tiles.take(workgroup) if self.tiles is not None else None
        if found is None:
            return NONE
        begin, self.ends[workgroup] = found
        return begin

    def _leave(self, workgroup: int, time: float) -> None:
        """End a workgroup that has executed its steps, once its stores are done."""
        last = self.ends[workgroup] - 1
        until = time
        if self.kinds[last] == STORE:
            until += self.works[self.tilings[last]].drain
            self.recorder.of_workgroup(time, until, workgroup, Activity.DRAIN)
        self._wake(until, workgroup, NONE)

    def _multiply(self, workgroup: int, step: int) -> None:
        """Begin to simulate the main loop that is the step number `step` of the launch."""
        sharing = self.sharing
        sharing.advance(self.now)
        asked, read = self.traffic.request(
            step, self.slot_of[workgroup], sharing.volume, sharing.pace
        )
        self.number += 1
        tiling = self.tilings[step]
        end = sharing.clocks[tiling] + self.counts[step]
        sharing.begin(tiling, (end, self.number, workgroup, step, self.now, asked, read))

    def _multiplied(self) -> None:
        """End the main loop that ends now."""
        _, _, workgroup, step, begin, _, _ = self.sharing.remove(self.now)
        self.recorder.of_step(begin, self.now, step)
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
        following, stop = step, self.ends[workgroup]
        while following < stop and self.kinds[following] != MULTIPLY:
            if self.kinds[following] not in ENDS:
                return False
            following += 1
        finished = range(step, following)
        if following == stop:
            following = self._take(workgroup)
        last = following == NONE
        time = self.now
        for place in finished:
            until = time + self.seconds[place]
            self.recorder.of_step(time, until, place, behind=not last)
            time = until
        if last:
            self._leave(workgroup, max(time, self.finished[workgroup]))
            return True
        begin = self.now + self.works[self.tilings[following]].handover
        begin = max(begin, self.finished[workgroup])
        self.recorder.of_workgroup(self.now, begin, workgroup, Activity.TURN)
        self.finished[workgroup] = time
        self._wake(begin, workgroup, following)
        return True

    def _signal(self, step: int) -> None:
        """Let the workgroups continue that wait for the partial sum of the step number `step`."""
        key = self.keys[step]
        self.sent[key] = self.sent.get(key, 0) + self.readers[step]
        for workgroup in self.waiting.pop(key, ()):
            at, since = self.blocked.pop(workgroup)
            self.recorder.of_step(since, self.now, at, waits=True)
            self._wake(self.now, workgroup, at)

    def _received(self, workgroup: int, step: int) -> bool:
        """Take the partial sums that a step receives; return False if the workgroup has to wait."""
        first, sent = self.keys[step], self.sent
        keys = range(first, first + self.counts[step])
        for key in keys:
            if not sent.get(key):
                self.waiting.setdefault(key, []).append(workgroup)
                self.blocked[workgroup] = step, self.now
                return False
        for key in keys:
            sent[key] -= 1
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
