"""`Engine` simulates the steps of a schedule on a model of a GPU, event by event.

A workgroup starts when a slot (an SM or, if several workgroups run on one SM, a part of it) is
free, and executes its steps in order. Main loops share resources (`Sharing`); other steps take a
fixed time. A workgroup that receives a partial sum waits until the sum has been sent.

Only four kinds of events change what other workgroups do: a main loop begins, a main loop ends, a
slot gets its next workgroup, and a workgroup of a dynamic tile scheduler takes its next output
tile. Only these events are simulated in the order of time. When the main loop of a workgroup ends,
the times of its next steps up to its next main loop (or up to the end of a tile that it has taken)
follow at once, since these steps take fixed times. If one of these steps waits for a partial sum,
the times of the steps after the wait follow once the time at which the sum is sent is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf, prod

import numpy as np

from coordgraph.errors import Deadlock
from coordgraph.interpreter.lockstep import StepKind, Steps
from passes.simulation.events import NONE, Events, Times
from passes.simulation.machine import Machine
from passes.simulation.memory import Traffic
from passes.simulation.partial_sums import PartialSums, Wait
from passes.simulation.sharing import Sharing
from passes.simulation.taken_tiles import TakenTiles
from passes.simulation.work import Kernel, Setup, TileWork, fixed_seconds

__all__ = ["Engine"]

MULTIPLY, SEND, STORE = int(StepKind.MULTIPLY), int(StepKind.SEND), int(StepKind.STORE)
WAITS = (int(StepKind.RECEIVE), int(StepKind.AWAIT))
ENDS = (int(StepKind.FINISH), STORE)
TAKE = NONE - 1
"""Stands for the step's index in an event in which a workgroup takes its next output tile."""
SHOWN = 4
"""Number of waiting workgroups that the message of a deadlock lists."""


class Engine:
    """Simulates one launch of a schedule.

    Args:
        steps: the steps of every workgroup, such as main loops, sends and stores.
        works: for each tile shape, the seconds and bytes of work on one tile.
        machine: the GPU.
        kernel: the cluster shape, and whether the consumers are cooperative or ping-pong.
        setup: seconds from the launch until workgroups start, and from then until they multiply.
        traffic: computes the bytes that main loops request from the L2 cache and read from DRAM.
        dynamic: whether workgroups take output tiles from a counter: the first one that has
            finished a tile takes the next one, whichever workgroup `steps` assigns it to.

    Attributes:
        slots: number of workgroups that run at the same time.
        times: when steps and workgroups begin and end, as far as this has been simulated.
        tiles: with `dynamic`, the steps of each output tile; else None.
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
        self.works, self.traffic = works, traffic
        self.turns = kernel.turns
        least = min(work.first for work in works)
        self.extra = [work.first - least for work in works]
        """For each tile shape: the seconds by which a workgroup's first iteration takes longer than
        with the tile shape whose first iteration is the fastest."""
        self.first, self.later = setup.first + least, setup.later + least
        """Seconds from the start of a workgroup until it comes to its first step, for the tile
        shape with the fastest first iteration. `first` is for the first workgroup on a slot,
        `later` for all others. The engine decides at this time which workgroup follows on a slot:
        workgroups start in the order in which slots become free, and these times have the same
        order."""
        self.slots = machine.slots(prod(kernel.cluster), kernel.resident)
        self.count = count = steps.workgroups
        self.kinds = steps.kind.astype(np.uint8).tobytes()
        self.tilings: list[int] = steps.tiling.tolist()
        self.steps = steps
        self.seconds: list[float] = fixed_seconds(steps, works).tolist()
        borders = np.searchsorted(steps.workgroup, np.arange(count + 1))
        self.borders: list[int] = borders.tolist()
        self.tiles = TakenTiles(steps) if dynamic else None
        self.ends = self.borders[1:] if self.tiles is None else self.tiles.first_ends
        """For each workgroup: the index after the last step that the workgroup executes before it
        takes another output tile or ends."""
        self.times = Times(steps)
        self.sharing = Sharing(machine, works, prod(kernel.cluster))
        self.sharing.now = setup.launch
        self.sums = PartialSums(steps)
        self.timers: list[tuple[float, int, int]] = []
        """Events in the future: time; workgroup; and the main loop that the workgroup begins at
        this time. If the main loop is NONE, the slot of the workgroup, which has ended, gets its
        next workgroup; if it is TAKE, the workgroup takes an output tile. Events at the same time
        happen in the order of their workgroups."""
        self.dispatched, self.left = 0, count
        self.finished = [0.0] * count
        """For each workgroup with ping-pong consumers: the time at which one warpgroup ends its
        epilogue, while the other one executes a main loop; 0 before the first such epilogue."""
        self.woken = deque[Wait]()
        """Waits for partial sums of which the time of sending has become known."""

    def run(self) -> Events:
        """Run until all workgroups have ended.

        Raises:
            Deadlock: every workgroup that has started and not ended waits for a partial sum.
        """
        for slot in range(min(self.slots, self.count)):
            self._start(slot, self.now, self.now + self.first)
        timers, sharing = self.timers, self.sharing
        while self.left:
            at = timers[0][0] if timers else inf
            if at > sharing.now:
                ended = sharing.advance(at)
                if ended is not None:
                    self._multiplied(*ended)
                    continue
                if at == inf:
                    raise self._deadlock()
            _, workgroup, step = heappop(timers)
            if step == NONE:
                self._start(self.times.slot[workgroup], self.times.ended[workgroup], at)
            elif step == TAKE:
                self._next_tile(workgroup)
            else:
                self._multiply(workgroup, step)
        if self.tiles is not None:
            self.times.sort(self.tiles.order(), self.tiles.executed)
        return self.times.events()

    @property
    def executed(self) -> Steps:
        """The steps of all workgroups, in the order in which the simulation executed them."""
        return self.times.steps

    @property
    def now(self) -> float:
        """The time of the event that is simulated, in seconds since the launch began."""
        return self.sharing.now

    def _start(self, slot: int, free: float, time: float) -> None:
        """Start the next workgroup that has any steps, on a free SM (or part of an SM).

        Args:
            slot: the number of the SM, part of an SM or cluster of SMs that runs the workgroup.
            free: when the slot became free, in seconds since the launch began.
            time: when the workgroup comes to its first step, if the first iteration of its tile
                shape takes no longer than that of any other shape.
        """
        while self.dispatched < self.count:
            workgroup = self.dispatched
            self.dispatched += 1
            begin = self.borders[workgroup]
            if begin == self.borders[workgroup + 1]:
                self.left -= 1
                continue
            time += self.extra[self.tilings[begin]]
            times = self.times
            times.slot[workgroup] = slot
            times.started[workgroup], times.entered[workgroup] = free, time
            if self.kinds[begin] == MULTIPLY and time == self.now:
                self._multiply(workgroup, begin)
            else:
                self._continue(workgroup, begin, time)
            return

    def _continue(self, workgroup: int, step: int, time: float) -> None:
        """Simulate a workgroup from `step` on, then workgroups that waited for its partial sums."""
        self._execute(workgroup, step, time)
        while self.woken:
            wait = self.woken.popleft()
            self._execute(wait.workgroup, wait.step, wait.since)

    def _execute(self, workgroup: int, step: int, time: float) -> None:
        """Simulate steps of a workgroup until it begins a main loop, is blocked, or has none left.

        Args:
            workgroup: the number of the workgroup.
            step: the index of the first step to simulate.
            time: when this step begins, now or in the future.
        """
        kinds, seconds, times = self.kinds, self.seconds, self.times
        for at in range(step, self.ends[workgroup]):
            kind = kinds[at]
            if kind == MULTIPLY:
                heappush(self.timers, (time, workgroup, at))
                return
            if kind in WAITS:
                sent = self.sums.receive(at, time, workgroup)
                if sent is None:
                    return
                times.begin[at] = time = sent
            times.end[at] = time = time + seconds[at]
            if kind == SEND:
                self.woken += self.sums.send(at, time)
        if self.tiles is not None and self.tiles.left:
            heappush(self.timers, (time, workgroup, TAKE))
        else:
            self._leave(workgroup, time)

    def _take(self, workgroup: int) -> int:
        """The first step of the next output tile, which a workgroup takes; NONE if none is left."""
        found = self.tiles.take(workgroup) if self.tiles is not None else None
        if found is None:
            return NONE
        begin, self.ends[workgroup] = found
        return begin

    def _next_tile(self, workgroup: int) -> None:
        """Let a workgroup take the next output tile now; it ends if none is left."""
        step = self._take(workgroup)
        if step == NONE:
            self._leave(workgroup, self.now)
        elif self.kinds[step] == MULTIPLY:
            self._multiply(workgroup, step)
        else:
            self._continue(workgroup, step, self.now)

    def _leave(self, workgroup: int, time: float) -> None:
        """End a workgroup that has executed its steps, once its stores are done."""
        last = self.ends[workgroup] - 1
        until = time
        if self.kinds[last] == STORE:
            until += self.works[self.tilings[last]].drain
        self.times.left[workgroup], self.times.ended[workgroup] = time, until
        self.left -= 1
        if self.dispatched < self.count:
            heappush(self.timers, (until + self.later, workgroup, NONE))

    def _multiply(self, workgroup: int, step: int) -> None:
        """Begin to simulate the main loop that is the step number `step` of the launch."""
        sharing = self.sharing
        count, asked, read = self.traffic.request(
            step, self.times.slot[workgroup], sharing.volume, sharing.pace
        )
        self.times.begin[step] = sharing.now
        sharing.begin(self.tilings[step], count, workgroup, step, asked, read)

    def _multiplied(self, workgroup: int, step: int) -> None:
        """End the main loop that is the step number `step`, and that ends now."""
        self.times.end[step] = now = self.sharing.now
        if self.turns == 1 or not self._finishes(workgroup, step + 1):
            self._continue(workgroup, step + 1, now)

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
        finished, time = range(step, following), self.now
        for place in finished:
            self.times.end[place] = time = time + self.seconds[place]
        if following == stop and (following := self._take(workgroup)) == NONE:
            self._leave(workgroup, max(time, self.finished[workgroup]))
            return True
        self.times.behind += finished
        begin = self.now + self.works[self.tilings[following]].handover
        begin = max(begin, self.finished[workgroup])
        self.finished[workgroup] = time
        heappush(self.timers, (begin, workgroup, following))
        return True

    def _deadlock(self) -> Deadlock:
        """Make the `Deadlock` error, whose message names waiting workgroups and output tiles."""
        s, found = self.steps, sorted((w, wait.step) for w, wait in self.sums.blocked.items())
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
                f"workgroups {self.dispatched}..{self.count - 1} cannot start; launch at most "
                f"{self.slots}"
            )
        else:
            message += "; send every partial sum that is received, before its sender waits"
        return Deadlock(message, {w: int(s.slot[i]) for w, i in found})
