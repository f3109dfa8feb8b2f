"""`TakenTiles`: which output tile a simulated workgroup takes next, and the steps of this tile.

The steps of a launch assign tiles to workgroups as if all workgroups took them in turn. The
simulation assigns each tile to the workgroup that is free first.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from coordgraph.interpreter.lockstep import Steps

__all__ = ["TakenTiles"]

OF_TILE = ("workgroup", "tiling", "product", "m", "n")
"""Columns of `Steps` that are equal for all steps of one output tile."""


class TakenTiles:
    """The steps of each output tile, and the workgroup that took the tile in a dynamic schedule.

    Args:
        steps: the steps of a launch whose workgroups take tiles in turn.

    Attributes:
        first_ends: for each workgroup, the index after the last step of its first tile.
        left: (index of the first step, index after the last step) of each tile that no workgroup
            has taken; the tile that is taken next is the last entry.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        count, total = steps.workgroups, len(steps)
        new = np.ones(total, bool)
        new[1:] = np.logical_or.reduce(
            [getattr(steps, name)[1:] != getattr(steps, name)[:-1] for name in OF_TILE]
        )
        begins = np.flatnonzero(new)
        ends = np.append(begins[1:], total)[: len(begins)]
        owners = steps.workgroup[begins]
        borders = np.searchsorted(owners, np.arange(count + 1))
        turns = np.arange(len(begins)) - borders[owners]
        # Of `count` workgroups, workgroup w takes tile w first, then tile w + count, and so on.
        order = np.lexsort((owners, turns))
        self.first_ends: list[int] = np.searchsorted(steps.workgroup, np.arange(count)).tolist()
        self._taken: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self.left: list[tuple[int, int]] = []
        for tile in order.tolist():
            place = int(begins[tile]), int(ends[tile])
            if turns[tile] == 0:
                owner = int(owners[tile])
                self.first_ends[owner] = place[1]
                self._taken[owner].append(place)
            else:
                self.left.append(place)
        self.left.reverse()

    def take(self, workgroup: int) -> tuple[int, int] | None:
        """(index of first step, index after last step) of the next tile; None if none is left."""
        if not self.left:
            return None
        self._taken[workgroup].append(self.left.pop())
        return self._taken[workgroup][-1]

    @property
    def executed(self) -> Steps:
        """The steps, sorted by the workgroup that has executed them, in the order of execution."""
        order = self.order()
        columns = {
            f.name: getattr(self.steps, f.name)[order]
            for f in fields(self.steps)
            if isinstance(getattr(self.steps, f.name), np.ndarray)
        }
        begins, ends, owners = self._places()
        columns["workgroup"] = np.repeat(owners, ends - begins)
        return replace(self.steps, **columns)

    def order(self) -> NDArray[np.int64]:
        """The indices of all steps, sorted by the workgroup that has executed them."""
        begins, ends, _ = self._places()
        counts = ends - begins
        # The steps of a tile have consecutive indices, and consecutive positions in the result.
        shift = begins - (np.cumsum(counts) - counts)
        return np.repeat(shift, counts) + np.arange(counts.sum())

    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """For each tile: index of first step, index after last step, and workgroup (ascending)."""
        places = np.array([place for tiles in self._taken for place in tiles], np.int64)
        begins, ends = places.reshape(-1, 2).T
        return begins, ends, np.repeat(np.arange(len(self._taken)), [*map(len, self._taken)])
