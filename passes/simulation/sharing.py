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

__all__ = ["Sharing"]


Loop = tuple[float, int, int, int, float, float, float]
"""Type of a running main loop: its tile shape's clock at its end, a running number, workgroup,
step, begin, bytes requested from the L2 cache per k tile, bytes read from DRAM per k tile."""


class Sharing:
    """The running main loops of a simulated launch, and the pace at which they advance.

    Each tile shape has a clock: the number of iterations that a workgroup has done if it multiplies
    tiles of this shape without a pause. A main loop ends when the clock of its tile shape has
    advanced by the number of its iterations. So when another main loop begins or ends, only the
    pace of the clocks changes. Clocks advance when a main loop begins or ends; other events of the
    launch do not concern them.

    Args:
        machine: the GPU.
        works: the cost of a tile of each tile shape.
        ctas: number of CTAs of a workgroup (more than 1 if the workgroup is a cluster).

    Attributes:
        clocks: for each tile shape, the number of iterations that have passed.
        paces: for each tile shape, the current seconds per iteration.
        volume: bytes that have been read from DRAM.
        pace: bytes that are read from DRAM in one iteration of all running main loops.
        settled: how often the paces were computed.
    """

    def __init__(self, machine: Machine, works: Sequence[TileWork], ctas: int) -> None:
        self.machine, self.works, self.ctas = machine, works, ctas
        self.clocks = [0.0] * len(works)
        self.paces = [work.crowded for work in works]
        self.volume, self.pace, self.settled = 0.0, 0.0, 0
        self._loops: list[list[Loop]] = [[] for _ in works]
        """For each tile shape a heap of its running main loops."""
        self._asked = [0.0] * len(works)
        self._read = [0.0] * len(works)
        self._rate = self._since = 0.0
        self._next = inf, 0
        self._stale, self._running = False, 0

    def begin(self, tiling: int, loop: Loop) -> None:
        """Add a main loop on tiles of shape number `tiling`, at the time of the last `advance`."""
        _, _, _, _, _, asked, read = loop
        heappush(self._loops[tiling], loop)
        self._asked[tiling] += asked
        self._read[tiling] += read
        self.pace += read
        self._running += 1
        self._stale = True

    def end(self, tiling: int, now: float) -> Loop:
        """Remove and return the main loop of a tile shape that ends first, at the time `now`."""
        loop = heappop(self._loops[tiling])
        end, _, _, _, _, asked, read = loop
        self.advance(now)
        self.clocks[tiling] = end
        self._asked[tiling] -= asked
        self._read[tiling] -= read
        self.pace -= read
        self._running -= 1
        self._stale = True
        return loop

    def next_end(self, now: float) -> tuple[float, int]:
        """The time when the next main loop ends (inf: none runs), and its tile shape's number.

        Args:
            now: the current time. All main loops that begin at this time have been added.
        """
        if self._stale:
            # Main loops that end at the same time do so before the pace is computed again.
            for i, queue in enumerate(self._loops):
                if queue and queue[0][0] <= self.clocks[i]:
                    return now, i
            self.settle()
            self._stale, self._next = False, (inf, 0)
            for i, queue in enumerate(self._loops):
                if queue:
                    end = self._since + (queue[0][0] - self.clocks[i]) * self.paces[i]
                    if end < self._next[0]:
                        self._next = end, i
        return self._next

    def settle(self) -> None:
        """Recompute `paces`, the seconds of an iteration, after main loops have begun or ended."""
        self.settled += 1
        running = self._running
        if not running:
            self._rate = self.pace = 0.0
            return
        m, paces = self.machine, self.paces
        readers = running * self.ctas
        crowded = 2 * readers > m.processors
        asked = read = power = 0.0
        for i, queue in enumerate(self._loops):
            # Without a running main loop on tiles of this shape, these sums should be 0: set them
            # to 0, to drop rounding errors.
            if not queue:
                self._asked[i] = self._read[i] = 0.0
            work = self.works[i]
            paces[i] = step = work.crowded if crowded else work.free
            asked += self._asked[i] / step
            read += self._read[i] / step
            power += len(queue) * work.power / step
        power += asked / m.power_l2 + read / m.power_dram
        each = m.reader_rate if crowded else m.lone_rate
        memory = max(read, 0.0) / min(m.dram_rate, each * readers)
        # The power limit lowers the clock rate of the tensor cores, so it bounds the time of
        # multiplying. Loads overlap with multiplying at the lowered clock rate.
        q, p = m.power_sharpness, m.sharpness
        multiplying = (1 + power**q) ** (p / q)
        stretch = (multiplying + (max(asked, 0.0) / m.l2_rate) ** p + memory**p) ** (1 / p)
        for i, pace in enumerate(paces):
            paces[i] = pace * stretch
        self._rate = read / stretch

    def advance(self, now: float) -> None:
        """Advance `clocks` and `volume` (bytes read from DRAM) to the time `now`."""
        if (seconds := now - self._since) > 0:
            self._since = now
            self.volume += seconds * self._rate
            for i, pace in enumerate(self.paces):
                self.clocks[i] += seconds / pace
