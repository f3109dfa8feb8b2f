"""`TakenTiles`: output tiles that simulated workgroups take in the order of their numbers.

The steps of a launch assign tiles to workgroups as if all workgroups took them in turn. The
simulation assigns each tile to the workgroup that is free first.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from coordgraph.interpreter.lockstep import Steps
from passes.simulation.events import Events

__all__ = ["TakenTiles"]

OF_TILE = ("workgroup", "tiling", "product", "m", "n")
"""Columns of `Steps` that are equal for all steps of one output tile."""


class TakenTiles:
    """The steps of each output tile of a launch, and which workgroup has taken the tile.

    Args:
        steps: the steps of a launch whose workgroups take tiles in turn.

    Attributes:
        first_ends: for each workgroup, the end of the steps of its first tile.
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
        # In turn `t`, workgroup `w` takes tile `t * count + w`.
        order = np.lexsort((owners, turns))
        self.first_ends: list[int] = np.searchsorted(steps.workgroup, np.arange(count)).tolist()
        self._taken: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self._left: list[tuple[int, int]] = []
        for tile in order.tolist():
            place = int(begins[tile]), int(ends[tile])
            if turns[tile] == 0:
                owner = int(owners[tile])
                self.first_ends[owner] = place[1]
                self._taken[owner].append(place)
            else:
                self._left.append(place)
        self._left.reverse()

    def take(self, workgroup: int) -> tuple[int, int] | None:
        """(first step, end of the steps) of the next tile; None if all tiles are taken."""
        if not self._left:
            return None
        self._taken[workgroup].append(self._left.pop())
        return self._taken[workgroup][-1]

    @property
    def executed(self) -> Steps:
        """The steps, sorted by the workgroup that has executed them, in the order of execution."""
        order = self._order()
        columns = {
            f.name: getattr(self.steps, f.name)[order]
            for f in fields(self.steps)
            if isinstance(getattr(self.steps, f.name), np.ndarray)
        }
        counts = [sum(end - begin for begin, end in tiles) for tiles in self._taken]
        columns["workgroup"] = np.repeat(np.arange(len(counts)), counts)
        return replace(self.steps, **columns)

    def reassigned(self, events: Events, slot_of: NDArray[np.int64]) -> Events:
        """The events with the workgroups that executed them.

        Args:
            events: the events, whose `step` is an index in the steps before the assignment.
            slot_of: the slot of each workgroup.
        """
        order = self._order()
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        of_step = events.step >= 0
        step = events.step.copy()
        step[of_step] = place[events.step[of_step]]
        workgroup = events.workgroup.copy()
        workgroup[of_step] = self.executed.workgroup[step[of_step]]
        return replace(events, step=step, workgroup=workgroup, slot=slot_of[workgroup])

    def _order(self) -> NDArray[np.int64]:
        """The indices of all steps, sorted by the workgroup that has executed them."""
        ranges = [np.arange(*place) for tiles in self._taken for place in tiles]
        return np.concatenate([*ranges, np.empty(0, np.int64)])
