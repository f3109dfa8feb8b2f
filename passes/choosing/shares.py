"""Who does how much: what the busiest workgroup has of each kind of work, counted.

The borders of streamed shares are worked out for every workgroup, by the formula of the edge
`Share`; everything else follows from where they lie in their tiles. So the counts are those of the
graph, for every owner, reduction, `least` and `least_segment`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from passes.choosing.schedules import EACH, EVERY, FEWER, FULL, LAST, NONE, SCATTER
from passes.choosing.table import Column, Flag, Table

__all__ = ["Streamed", "Work"]


@dataclass(frozen=True)
class Streamed:
    """Shares of a streamed range; each number is that of the workgroup that has most of it.

    Attributes:
        share: iterations.
        ends: tiles that it finishes: it runs their epilogue, or its share of it.
        sends: partial sums that it leaves for others.
        peers: workgroups whose partial sums are added to a tile's.
        partials: sums that are sent by all.
        busy: workgroups that have iterations.
        together: 1 where shares are whole tiles, or equal parts of one: then workgroups are at no
            more than a few depths of their tiles.
    """

    share: Column
    ends: Column
    sends: Column
    peers: Column
    partials: Column
    busy: Column
    together: Column

    @classmethod
    def of(cls, t: Table, tiles: Column, depth: Column, grid: Column) -> Streamed:
        """Of so many tiles, each of `depth` iterations, streamed by `grid` workgroups.

        Rows that stream nothing are zeros.
        """
        found = {f.name: np.zeros(len(t)) for f in fields(cls)}
        some = np.flatnonzero(tiles > 0)
        if len(some):
            options = (t.owner, t.reduction, t.least, t.least_segment)
            alike = np.stack([column[some] for column in (tiles, depth, grid, *options)])
            first, number = _distinct(alike)
            one = _borders(*alike[:, first])
            for name, column in found.items():
                column[some] = getattr(one, name)[number]
        return cls(**found)


def _distinct(columns: Column) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """One place of each kind of column, and for every place the number of its kind."""
    # Equal columns come to lie side by side; where the sums of others are equal, no harm is done.
    order = np.argsort(np.sqrt(np.arange(2, len(columns) + 2)) @ columns, kind="stable")
    ordered = columns[:, order]
    new = np.concatenate([[True], (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)])
    number = np.empty(len(order), np.intp)
    number[order] = np.cumsum(new) - 1
    return order[new], number


def _borders(
    tiles: Column,
    depth: Column,
    grid: Column,
    owner: Column,
    reduction: Column,
    at_least: Column,
    segment: Column,
) -> Streamed:
    """Count by the borders of all shares. A row's workgroups lie side by side."""
    least = np.maximum(at_least, np.minimum(segment, depth))
    share = np.maximum(least, np.ceil(tiles * depth / grid))
    before = np.minimum(segment - 1, np.floor((depth - 1) / 2))
    behind = np.minimum(segment - 1, np.floor(depth / 2))
    number = np.arange(int(grid.max()) + 1, dtype=np.float64)
    deep, long = depth[:, None], share[:, None]
    border = np.minimum(number * long, (tiles * depth)[:, None])
    if (segment > 1).any():
        end = np.floor((border + before[:, None]) / deep) * deep
        border = np.where(border - end <= behind[:, None], end, border)
    tile = np.floor(border / deep)  # that the border lies in, or that begins there
    inside = border > tile * deep
    # So many borders inside a tile, this one and those before it: each has a piece in front of it.
    pieces = (number - np.floor((tile * deep + behind[:, None]) / long)) * inside
    scatter = reduction == SCATTER
    begun = tile + inside  # tiles that begin before the border
    first = (owner != LAST)[:, None]
    # Who has the last, or the first piece of a tile finishes it; with a scatter everybody.
    finished = np.where(first, begun, tile)
    upper = np.where(scatter[:, None], begun, finished)[:, 1:]
    lower = np.where(scatter[:, None], tile, finished)[:, :-1]
    left, right = inside[:, :-1], inside[:, 1:]
    one_piece = left & right & (tile[:, :-1] == tile[:, 1:])
    both = (left.astype(np.int8) + right - one_piece).max(axis=1)
    borders = inside.sum(axis=1)
    length = border[:, 1:] - border[:, :-1]
    return Streamed(
        share=length.max(axis=1),
        ends=(upper - lower).max(axis=1),
        sends=np.where(scatter, both, borders > 0).astype(np.float64),
        peers=pieces.max(axis=1),
        partials=borders + np.where(scatter, (pieces == 1).sum(axis=1), 0.0),
        busy=(length > 0).sum(axis=1).astype(np.float64),
        together=((borders == 0) | (depth % share == 0)).astype(np.float64),
    )


@dataclass(frozen=True)
class Work:
    """What workgroups do; of those that stream, the one that has most.

    Attributes:
        grid: workgroups.
        busy: those that have something to do.
        waves: whole macro tiles of a workgroup.
        rest: macro tiles that are divided into small ones.
        small: small tiles of a workgroup.
        streamed: what it streams besides.
        depth: iterations of a tile.
    """

    grid: Column
    busy: Column
    waves: Column
    rest: Column
    small: Column
    streamed: Streamed
    depth: Column

    @classmethod
    def of(cls, t: Table, tiles: Column, depth: Column, slots: Column) -> Work:
        """Of so many macro tiles a row, on a device that holds so many workgroups."""
        grid = np.where(t.workgroups > 0, t.workgroups, slots)
        fit, all_of = np.floor(tiles / grid), np.ceil(tiles / grid)
        fewer = np.where(tiles % grid == 0, fit, np.maximum(fit - 1, 0))
        waves = np.select(
            [t.whole == whole for whole in (EACH, EVERY, FULL, FEWER, NONE)],
            [all_of, all_of, fit, fewer, np.zeros_like(fit)],
        )
        left = np.maximum(tiles - waves * grid, 0)
        rest = np.where(t.divided, left, 0)
        pieces = _pieces(t)
        streamed = Streamed.of(t, left - rest, depth, grid)
        some = np.maximum(streamed.busy, np.minimum(grid, rest * pieces))
        busy = np.where(t.whole >= FULL, np.where(waves > 0, grid, some), np.minimum(tiles, grid))
        return cls(grid, busy, waves, rest, np.ceil(rest * pieces / grid), streamed, depth)

    @property
    def iterations(self) -> Column:
        """Of macro tiles."""
        return self.waves * self.depth + self.streamed.share

    @property
    def ends(self) -> Column:
        """Macro tiles that a workgroup finishes."""
        return self.waves + self.streamed.ends

    @property
    def apart(self) -> Flag:
        """Where workgroups are at different depths of their tiles."""
        return (self.streamed.share > 0) & (self.streamed.together == 0)

    def utilisation(self, t: Table, tiles: Column) -> Column:
        """All iterations, by what all could do in the time of the busiest.

        Those of a small tile take as long as the part of a macro tile that it is.
        """
        longest = self.iterations + self.small * self.depth / _pieces(t)
        return tiles * self.depth / (longest * self.grid)


def _pieces(t: Table) -> Column:
    """Small tiles of a macro tile; 1 where there are none."""
    small = np.where(t.divided, t.small_m * t.small_n, t.tile_m * t.tile_n)
    return t.tile_m * t.tile_n / small
