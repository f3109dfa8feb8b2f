"""`Work`: the most iterations, stores and partial sums of one workgroup, for each kernel plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from passes.choosing.counting import QUANTITIES, Column, Counts
from passes.choosing.plan_table import Flag, Table

__all__ = ["Work"]


@dataclass(frozen=True)
class Work:
    """The work of the workgroups of each plan.

    Every attribute and property is a column with an entry for each plan.

    If a launch has more workgroups than are resident, further workgroups run when earlier ones have
    ended. The model assumes that workgroups run in rounds, in each of which as many run as are
    resident, and adds up the work of all rounds.

    Attributes:
        grid: number of resident workgroups.
        depth: number of iterations of an output tile.
        busy: number of resident workgroups that have iterations.
        rounds: number of rounds.
        rest: number of macro tiles that are divided into small tiles.
        counts: the largest amounts of work that any workgroup has in one round (see `Counts`).
    """

    grid: Column
    depth: Column
    busy: Column
    rounds: Column
    rest: Column
    counts: Counts

    @classmethod
    def of(cls, t: Table, tiles: Column, depth: Column, slots: Column) -> Work:
        """Count the work of every plan.

        Args:
            t: a problem and a plan per row; a plan without a grid has as many workgroups as are
                resident.
            tiles: number of output tiles of all products of a batch together.
            depth: number of iterations of an output tile.
            slots: number of workgroups that can be resident at the same time.
        """
        # `t.distinct` lists sets of plans that differ only in the order of tiles. All plans of a
        # set have equal work, so it is counted for the first plan of each set only.
        if t.distinct is not None:
            first, number = t.distinct
            found = cls.of(t.where(first), tiles[first], depth[first], slots[first])
            counts = Counts(*(column[number] for column in vars(found.counts).values()))
            others = (found.grid, found.depth, found.busy, found.rounds, found.rest)
            return cls(*(column[number] for column in others), counts=counts)
        grid = np.where(t.workgroups > 0, t.workgroups, slots)
        counts = _counted(t, tiles, depth, grid)
        chosen = t.of_schedule([counter.chosen_grid for counter in t.counters])
        rounds = np.where(chosen, 1, np.ceil(counts.grid / grid))
        rest = np.where(t.divided, tiles - counts.all_ends, 0)
        return cls(grid, depth, np.minimum(counts.busy, grid), rounds, rest, counts)

    @property
    def iterations(self) -> Column:
        """Largest number of main loop iterations on macro tiles that one workgroup has."""
        return self.rounds * self.counts.iterations

    @property
    def ends(self) -> Column:
        """Largest number of macro tiles that one workgroup stores, whole or in part."""
        return self.rounds * self.counts.ends

    @property
    def small(self) -> Column:
        """Largest number of small tiles (parts of a macro tile) that one workgroup stores."""
        return self.rounds * self.counts.small_ends

    @property
    def streamed(self) -> Column:
        """Most iterations of one workgroup in loops that may compute only a part of a tile's."""
        return self.rounds * self.counts.streamed

    @property
    def apart(self) -> Flag:
        """For each plan, whether workgroups are at different k of their tiles at the same time.

        All workgroups are at the same k if no tile is divided along k, or if each workgroup
        computes one segment of a tile and the lengths of all segments differ by at most one
        iteration.
        """
        counts = self.counts
        together = (counts.shortest == 0) | (counts.shortest >= counts.streamed - 1)
        return (counts.streamed > 0) & ~together

    @property
    def divides(self) -> Flag:
        """For each plan, whether a tile is divided along k among workgroups."""
        return self.counts.shortest > 0

    def utilisation(self, t: Table, tiles: Column) -> Column:
        """The share of the workgroups' time that is used: 1 if all have equally much work.

        The share is the number of all iterations, divided by the number that all workgroups could
        do in the time of the workgroup with most work. An iteration on a small tile counts as the
        fraction (area of the small tile / area of the macro tile) of an iteration.

        Args:
            t: a table with one problem and one plan in each row.
            tiles: number of output tiles of all products of a batch together.
        """
        pieces = np.where(t.divided, t.tile_m * t.tile_n / np.maximum(t.small_m * t.small_n, 1), 1)
        longest = self.iterations + self.small * self.depth / pieces
        return tiles * self.depth / (longest * self.grid)


def _counted(t: Table, tiles: Column, depth: Column, grid: Column) -> Counts:
    """The work counts of every plan, counted once for plans with equal schedule and sizes.

    Args:
        t: a table with one problem and one plan in each row.
        tiles: number of output tiles of all products of a batch together.
        depth: number of iterations of an output tile.
        grid: number of workgroups.
    """
    found = np.zeros((QUANTITIES, len(t)))
    tiles_n = np.ceil(t.n / t.tile_n)
    columns = {"tiles": tiles, "depth": depth, "workgroups": grid, "tiles_n": tiles_n}
    columns["tiles_m"] = np.ceil(tiles / tiles_n)
    distinct: dict[tuple[str, ...], tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
    for place, counter in enumerate(t.counters):
        (rows,) = (t.schedule == place).nonzero()
        if not len(rows):
            continue
        inputs = counter.inputs
        if inputs not in distinct:
            distinct[inputs] = _distinct(np.stack([columns[name] for name in inputs]))
        first, number = distinct[inputs]
        # `first` has one plan for each set of plans with equal inputs of the work counter (numbers
        # of tiles, k tiles and workgroups). `wanted` masks the sets with a plan of this schedule;
        # the work is counted once for each such set.
        wanted = np.zeros(len(first), bool)
        wanted[number[rows]] = True
        counts = counter.columns(*(columns[name][first[wanted]] for name in inputs))
        found[:, rows] = counts[:, (np.cumsum(wanted) - 1)[number[rows]]]
    return Counts(*found)


def _distinct(columns: Column) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Find equal columns of an array.

    Columns that are equal form a set. Returns the index of one column of each set, and for every
    column the id of its set.
    """
    # Sort by a weighted sum of each column, so that equal columns become adjacent. Another column
    # with the same sum may come between equal ones; equal columns then form two sets, and their
    # work is counted twice, which changes no result.
    order = np.argsort(np.sqrt(np.arange(2, len(columns) + 2)) @ columns, kind="stable")
    ordered = columns[:, order]
    new = np.concatenate([[True], (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)])
    number = np.empty(len(order), np.intp)
    number[order] = np.cumsum(new) - 1
    return order[new], number
