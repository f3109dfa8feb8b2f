"""`Sharing` computes how main loops that run at the same time slow each other down.

Main loops share the rates of the L2 cache and of DRAM, and the power limit.

Processor sharing: if the main loops that run demand more than a resource delivers, all of them
advance more slowly, by the same factor. A main loop uses data in the L2 cache that other main loops
have read, so no main loop can run ahead of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from passes.simulation.machine import Machine
from passes.simulation.work import TileWork

__all__ = ["Sharing"]


class Sharing:
    """The running main loops of a simulated launch, and the pace at which they advance.

    Each tile shape has a clock: the number of iterations that a workgroup has done if it multiplies
    tiles of this shape without a pause. A main loop ends when the clock of its tile shape has
    advanced by the number of its iterations. So when another main loop begins or ends, only the
    pace of the clocks changes.

    Args:
        machine: the GPU.
        works: the cost of a tile of each tile shape.
        ctas: number of CTAs of a workgroup (more than 1 if the workgroup is a cluster).

    Attributes:
        clocks: for each tile shape, the number of iterations that have passed.
        paces: for each tile shape, the current seconds per iteration.
        volume: bytes that have been read from DRAM.
        pace: bytes that are read from DRAM in one iteration of all running main loops.
    """

    def __init__(self, machine: Machine, works: Sequence[TileWork], ctas: int) -> None:
        self.machine, self.works, self.ctas = machine, works, ctas
        self.clocks = [0.0] * len(works)
        self.paces = [work.crowded for work in works]
        self.volume, self.pace = 0.0, 0.0
        self._active = [0] * len(works)
        self._asked = [0.0] * len(works)
        self._read = [0.0] * len(works)
        self._rate = 0.0

    def begin(self, tiling: int, asked: float, read: float) -> None:
        """Add a running main loop; `asked` and `read` are its bytes per k tile from L2 and DRAM."""
        self._active[tiling] += 1
        self._asked[tiling] += asked
        self._read[tiling] += read
        self.pace += read

    def end(self, tiling: int, asked: float, read: float) -> None:
        """Remove a main loop; the arguments are those with which `begin` added it."""
        self._active[tiling] -= 1
        self._asked[tiling] -= asked
        self._read[tiling] -= read
        self.pace -= read

    def settle(self) -> None:
        """Recompute `paces`, the seconds of an iteration, after main loops have begun or ended."""
        m, running = self.machine, sum(self._active)
        if not running:
            self._rate = self.pace = 0.0
            return
        readers = running * self.ctas
        crowded = 2 * readers > m.processors
        asked = read = power = 0.0
        for i, (work, active) in enumerate(zip(self.works, self._active, strict=True)):
            # Without a running main loop on tiles of this shape, these sums are 0: drop their
            # rounding errors.
            if not active:
                self._asked[i] = self._read[i] = 0.0
            self.paces[i] = step = work.crowded if crowded else work.free
            asked += self._asked[i] / step
            read += self._read[i] / step
            power += active * work.power / step
        power += asked / m.power_l2 + read / m.power_dram
        each = m.reader_rate if crowded else m.lone_rate
        memory = max(read, 0.0) / min(m.dram_rate, each * readers)
        # The power limit lowers the clock rate of the tensor cores, so it bounds multiplying; loads
        # overlap with multiplying at that clock rate.
        q, p = m.power_sharpness, m.sharpness
        multiplying = (1 + power**q) ** (p / q)
        stretch = (multiplying + (max(asked, 0.0) / m.l2_rate) ** p + memory**p) ** (1 / p)
        self.paces = [pace * stretch for pace in self.paces]
        self._rate = read / stretch

    def advance(self, seconds: float) -> None:
        """Advance `clocks` and `volume` (bytes read from DRAM) by an interval of time."""
        self.volume += seconds * self._rate
        for i, pace in enumerate(self.paces):
            self.clocks[i] += seconds / pace
