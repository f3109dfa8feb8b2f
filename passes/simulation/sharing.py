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


MOST_PACES = 10_000
"""Number of sets of running main loops whose paces are kept."""

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
        stale: whether main loops have begun or ended since `find_end`.
        end: the time when the next main loop ends; inf if none runs. Valid if not `stale`.
        ending: the number of the tile shape of that main loop.
    """

    def __init__(self, machine: Machine, works: Sequence[TileWork], ctas: int) -> None:
        self.machine, self.works, self.ctas = machine, works, ctas
        self.clocks = [0.0] * len(works)
        self.paces = tuple(work.crowded for work in works)
        self.volume, self.pace = 0.0, 0.0
        self._loops: list[list[Loop]] = [[] for _ in works]
        """For each tile shape a heap of its running main loops."""
        self._asked = [0.0] * len(works)
        self._read = [0.0] * len(works)
        self._rate = self._since = 0.0
        self._running = self._key = 0
        """_key: the sum of a hash of each running main loop, of its tile shape and bytes. The paces
        depend on the set of these alone, and few sets occur in a launch."""
        self._known: dict[int, tuple[tuple[float, ...], float]] = {}
        """For each `_key`, the paces and the bytes that are read from DRAM per second."""
        self.stale, self.end, self.ending = False, inf, 0

    def begin(self, tiling: int, loop: Loop) -> None:
        """Add a main loop on tiles of shape number `tiling`, at the time of the last `advance`."""
        _, _, _, _, _, asked, read = loop
        heappush(self._loops[tiling], loop)
        self._asked[tiling] += asked
        self._read[tiling] += read
        self.pace += read
        self._running += 1
        self._key += hash((tiling, asked, read))
        self.stale = True

    def remove(self, now: float) -> Loop:
        """Remove and return the main loop that ends at the time `now`, which is `end`."""
        tiling = self.ending
        loop = heappop(self._loops[tiling])
        end, _, _, _, _, asked, read = loop
        self.advance(now)
        self.clocks[tiling] = end
        if self._loops[tiling]:
            self._asked[tiling] -= asked
            self._read[tiling] -= read
        else:
            self._asked[tiling] = self._read[tiling] = 0.0  # without rounding errors
        self.pace -= read
        self._running -= 1
        self._key -= hash((tiling, asked, read))
        self.stale = True
        return loop

    def find_end(self, now: float) -> None:
        """Find the main loop that ends next, after main loops have begun or ended.

        Args:
            now: the current time. All main loops that begin at this time have been added.
        """
        # Main loops that end at the same time do so before the pace changes.
        for i, queue in enumerate(self._loops):
            if queue and queue[0][0] <= self.clocks[i]:
                self.end, self.ending = now, i
                return
        self.settle()
        self.stale, self.end = False, inf
        for i, queue in enumerate(self._loops):
            if queue:
                end = self._since + (queue[0][0] - self.clocks[i]) * self.paces[i]
                if end < self.end:
                    self.end, self.ending = end, i

    def settle(self) -> None:
        """Set `paces`, the seconds of an iteration, after main loops have begun or ended."""
        if not self._running:
            self._rate = self.pace = 0.0
            return
        found = self._known.get(self._key)
        if found is None:
            found = self.compute()
            if len(self._known) < MOST_PACES:
                self._known[self._key] = found
        self.paces, self._rate = found

    def compute(self) -> tuple[tuple[float, ...], float]:
        """Compute the paces, and the bytes that are read from DRAM per second."""
        m, steps = self.machine, list[float]()
        readers = self._running * self.ctas
        crowded = 2 * readers > m.processors
        asked = read = power = 0.0
        for i, queue in enumerate(self._loops):
            work = self.works[i]
            step = work.crowded if crowded else work.free
            steps.append(step)
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
        return tuple(step * stretch for step in steps), read / stretch

    def advance(self, now: float) -> None:
        """Advance `clocks` and `volume` (bytes read from DRAM) to the time `now`."""
        if (seconds := now - self._since) > 0:
            self._since = now
            self.volume += seconds * self._rate
            if len(self.paces) == 1:
                self.clocks[0] += seconds / self.paces[0]
                return
            for i, pace in enumerate(self.paces):
                self.clocks[i] += seconds / pace
