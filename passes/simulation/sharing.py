"""`Sharing` computes how main loops that run at the same time slow each other down.

Main loops share the rates of the L2 cache and of DRAM, and the power limit.

Processor sharing: if the main loops that run demand more than a resource delivers, all of them
advance more slowly, by the same factor. A main loop uses data in the L2 cache that other main loops
have read, so no main loop can run ahead of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from passes.simulation.machine import Machine
from passes.simulation.work import TileWork

__all__ = ["Paces", "Sharing"]


NO_SHAPE = -1
"""Stands for the number of a main loop's tile shape if there is no such main loop."""
MOST_PACES = 10_000
"""Largest number of sets of running main loops whose paces (seconds per iteration) are cached; the
paces of further sets are computed each time."""

Loop = tuple[float, int, int, float, float, int]
"""Type of a running main loop: the value of its tile shape's iteration counter (`Sharing._clocks`)
at which the main loop ends, workgroup, step, bytes requested from the L2 cache per k tile, bytes
read from DRAM per k tile, and the integer that it adds to the sum `Sharing._key`. Main loops that
end at the same time do so in the order of their workgroups."""


class Paces:
    """The pace of main loops that run at the same time: the seconds that an iteration takes.

    Args:
        machine: the GPU.
        works: for each tile shape, the seconds and bytes of work on one tile.
        ctas: number of CTAs of a workgroup (more than 1 if the workgroup is a cluster).

    Attributes:
        of: results of `compute` (seconds of an iteration, DRAM bytes per second), by its argument
            `key`. Few sets of main loops occur in a launch.
    """

    def __init__(self, machine: Machine, works: Sequence[TileWork], ctas: int) -> None:
        self.machine, self.works, self.ctas = machine, works, ctas
        self.of: dict[int, tuple[tuple[float, ...], float]] = {}

    def compute(
        self, key: int, running: Sequence[int], asked: Sequence[float], read: Sequence[float]
    ) -> tuple[tuple[float, ...], float]:
        """(seconds of an iteration for each tile shape, DRAM bytes per second) of main loops.

        The main loops run at the same time, and share the rates of the L2 cache and of DRAM.

        Args:
            key: the sum of `hash((tile shape, asked, read))` of the main loops, with the number of
                the tile shape, and bytes per iteration.
            running: for each tile shape, the number of main loops.
            asked, read: for each tile shape, bytes per iteration that its main loops request from
                the L2 cache and read from DRAM.
        """
        found = self._compute(running, asked, read)
        if len(self.of) < MOST_PACES:
            self.of[key] = found
        return found

    def _compute(
        self, running: Sequence[int], asked_of: Sequence[float], read_of: Sequence[float]
    ) -> tuple[tuple[float, ...], float]:
        """(seconds of an iteration for each tile shape, DRAM bytes per second) of main loops.

        Args:
            running: for each tile shape, the number of main loops that run at the same time.
            asked_of, read_of: for each tile shape, bytes per iteration that its main loops request
                from the L2 cache and read from DRAM.
        """
        m, steps = self.machine, list[float]()
        readers = sum(running) * self.ctas
        crowded = 2 * readers > m.processors
        asked = read = power = 0.0
        for i, work in enumerate(self.works):
            step = work.crowded if crowded else work.free
            steps.append(step)
            asked += asked_of[i] / step
            read += read_of[i] / step
            power += running[i] * work.power / step
        power += asked / m.power_l2 + read / m.power_dram
        each = m.reader_rate if crowded else m.lone_rate
        memory = max(read, 0.0) / min(m.dram_rate, each * readers)
        # The power limit lowers the clock rate of the tensor cores, so it bounds the time of
        # multiplying. Loads overlap with multiplying at the lowered clock rate.
        q, p = m.power_sharpness, m.sharpness
        multiplying = (1 + power**q) ** (p / q)
        stretch = (multiplying + (max(asked, 0.0) / m.l2_rate) ** p + memory**p) ** (1 / p)
        return tuple(step * stretch for step in steps), read / stretch


class Sharing:
    """The running main loops of a simulated launch, and the pace at which they advance.

    Each tile shape has a clock: the number of iterations that a workgroup has done if it multiplies
    tiles of this shape without a pause. A main loop ends when the clock of its tile shape has
    advanced by the number of its iterations. So when another main loop begins or ends, only the
    pace of the clocks changes. Clocks advance when a main loop begins or ends; other events of the
    launch do not concern them.

    Args:
        machine: the GPU.
        works: for each tile shape, the seconds and bytes of work on one tile.
        ctas: number of CTAs of a workgroup (more than 1 if the workgroup is a cluster).

    Attributes:
        now: the time to which the clocks have advanced, in seconds since the launch began.
        volume: bytes that have been read from DRAM.
        pace: bytes that are read from DRAM in one iteration of all running main loops.
    """

    def __init__(self, machine: Machine, works: Sequence[TileWork], ctas: int) -> None:
        self.known = Paces(machine, works, ctas)
        self.now = self.volume = self.pace = 0.0
        self._clocks = [0.0] * len(works)
        """For each tile shape: the number of iterations that a main loop would have executed if it
        had run since the launch began. All main loops of one shape advance at the same pace."""
        self._paces = tuple(work.crowded for work in works)
        """For each tile shape, the seconds per iteration; valid if not `_stale`, that is, if no
        main loop has begun or ended since `settle` was called."""
        self._stale = False
        self._loops: list[list[Loop]] = [[] for _ in works]
        """For each tile shape a heap of its running main loops."""
        self._tied = NO_SHAPE
        """The tile shape whose next main loop ends at the same time as the main loop that ended
        last, so that it must end before the pace changes; NO_SHAPE if there is none."""
        self._asked = [0.0] * len(works)
        self._read = [0.0] * len(works)
        self._rate = 0.0
        self._running = self._key = 0
        """_running: number of running main loops. _key: the sum of hashes that identifies the set
        of running main loops: the argument `key` of `Paces.compute`."""

    def begin(
        self, tiling: int, count: int, workgroup: int, step: int, asked: float, read: float
    ) -> None:
        """Begin a main loop at the time `now`.

        Args:
            tiling: the number of the main loop's tile shape.
            count: number of iterations of the main loop.
            workgroup, step: the numbers of the workgroup and of its step that is the main loop;
                `advance` returns both when the main loop ends.
            asked, read: bytes per iteration that the main loop requests from the L2 cache and reads
                from DRAM.
        """
        key = hash((tiling, asked, read))
        end = self._clocks[tiling] + count
        heappush(self._loops[tiling], (end, workgroup, step, asked, read, key))
        self._asked[tiling] += asked
        self._read[tiling] += read
        self.pace += read
        self._running += 1
        self._key += key
        self._stale = True

    def advance(self, until: float) -> tuple[int, int] | None:
        """Advance to a time, or to the end of a main loop if one ends before that time.

        Args:
            until: seconds since the launch began, more than `now`; inf if no main loop will begin
                before one ends. If it is inf and no main loop runs, nothing changes.

        Returns:
            The workgroup and the step of the main loop that ends; None if none ends before `until`.
        """
        if self._tied != NO_SHAPE:
            return self._end(self._tied)
        if self._stale:
            self.settle()
        now, clocks, paces, ending = self.now, self._clocks, self._paces, NO_SHAPE
        for i, queue in enumerate(self._loops):
            if queue:
                end = now + (queue[0][0] - clocks[i]) * paces[i]
                if end < until:
                    ending, until = i, end
        if until == inf:
            return None
        seconds = until - now
        self.now = until
        self.volume += seconds * self._rate
        for i, pace in enumerate(paces):
            clocks[i] += seconds / pace
        return self._end(ending) if ending != NO_SHAPE else None

    def _end(self, tiling: int) -> tuple[int, int]:
        """End the first main loop of a tile shape that ends now; return its workgroup and step."""
        queue = self._loops[tiling]
        end, workgroup, step, asked, read, key = heappop(queue)
        self._clocks[tiling] = end
        self._tied = tiling if queue and queue[0][0] <= end else NO_SHAPE
        if queue:
            self._asked[tiling] -= asked
            self._read[tiling] -= read
        else:
            # No main loop is left, so the sums are 0; subtraction would leave rounding errors.
            self._asked[tiling] = self._read[tiling] = 0.0
        self.pace -= read
        self._running -= 1
        self._key -= key
        self._stale = True
        return workgroup, step

    def settle(self) -> None:
        """Set the seconds that an iteration of each main loop takes, after some began or ended."""
        self._stale = False
        if not self._running:
            self._rate = self.pace = 0.0
            return
        found = self.known.of.get(self._key)
        if found is None:
            running = [len(queue) for queue in self._loops]
            found = self.known.compute(self._key, running, self._asked, self._read)
        self._paces, self._rate = found
