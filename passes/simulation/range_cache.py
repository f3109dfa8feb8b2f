"""`RangeCache`: a model of the L2 cache that looks up A and B of a main loop in one call.

`RangeCache` computes the same as `passes.simulation.memory.Pieces`, but is faster: the ranges of k
tiles that main loops read are numbered before the simulation, so lists replace dictionaries.
"""

from __future__ import annotations

from math import inf

from passes.simulation.main_loops import Ranges

__all__ = ["RangeCache"]


class RangeCache:
    """Model of the L2 cache for launches in which ranges of k of a panel are equal or disjoint.

    A panel is the part of A that one row of output tiles reads, or the part of B that one column of
    output tiles reads. A main loop reads one range of k tiles of a panel of A, and one of B.

    A range is evicted after as many bytes as the cache holds have been read from DRAM since its
    last use (see `passes.simulation.memory`).

    Args:
        ranges: the ranges of k tiles that each main loop requests.
        base: for each main loop, the number (outcome) that `request` returns if the cache holds the
            k tiles of A and of B.
        capacity: number of bytes of A and B that the cache holds.
        near: number of neighbouring slots (SMs) whose requests may be merged.
    """

    def __init__(self, ranges: Ranges, base: bytes, capacity: float, near: int = 16) -> None:
        self.of_a: list[int] = ranges.of_a.tolist()
        self.of_b: list[int] = ranges.of_b.tolist()
        self.base, self.capacity, self.near = base, capacity, near
        self.panels: list[int] = ranges.panels.tolist()
        self.volumes = [-inf] * len(self.panels)
        """For each range of k tiles of A or B that main loops read: how many bytes the launch had
        read from DRAM when a workgroup last read the range."""
        self.slots = [0] * len(self.panels)
        """For each range of k tiles of A or B: the slot (SM) of the workgroup that read the range
        last."""
        self.latest = [0] * (max(self.panels) + 1)
        """For each panel (the part of A or B that a row or column of output tiles reads): the
        number of the range of k tiles that was read last."""

    def request(self, loop: int, slot: int, volume: float, pace: float) -> int:
        """Request the k tiles of a main loop, and remember that they were read.

        Args:
            loop: the number of the main loop.
            slot: the slot (SM) on which the workgroup runs.
            volume: bytes that have been read from DRAM until now.
            pace: bytes that are read from DRAM during one iteration of all running workgroups.

        Returns:
            The outcome: a number that says which k tiles, of A and of B, the cache holds; see
            `passes.simulation.uniform_tables.Outcomes`.
        """
        volumes, slots, latest, panels = self.volumes, self.slots, self.latest, self.panels
        # A and B are requested in the same way; the code is repeated because calls take longer.
        outcome, piece = self.base[loop], self.of_a[loop]
        panel, lag = panels[piece], volume - volumes[piece]
        if lag >= self.capacity:
            outcome += 1
        elif lag <= 2 * pace and latest[panel] == piece:
            outcome += 2 * (-self.near < slot - slots[piece] < self.near)
        volumes[piece], slots[piece], latest[panel] = volume, slot, piece
        piece = self.of_b[loop]
        panel, lag = panels[piece], volume - volumes[piece]
        if lag >= self.capacity:
            outcome += 3
        elif lag <= 2 * pace and latest[panel] == piece:
            outcome += 6 * (-self.near < slot - slots[piece] < self.near)
        volumes[piece], slots[piece], latest[panel] = volume, slot, piece
        return outcome
