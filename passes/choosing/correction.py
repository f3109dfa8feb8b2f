"""`Correction`: a factor for predicted times, learned from errors of the cost model.

The terms of the cost model do not explain measured times completely. What they leave over depends
on many circumstances at once: for example on how rows begin in cache lines, how long the launch is
and how wide its tiles are. Such dependences are learned from measured times as a sum of decision
trees (see `passes.choosing.boosting`). All conditions of a tree are checked for every
plan, one per level, so a tree of depth d is a table of 2^d values ("oblivious" trees, as in
Prokhorenkova et al., CatBoost, 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from passes.choosing.kernel_shape import Shape
from passes.choosing.plan_table import Column, Flag, Table
from passes.choosing.work import Work

__all__ = ["DEPTH", "MOST", "UNIT", "Correction", "Tree", "correctable", "features"]

FILE = Path(__file__).with_name("correction.txt")
"""The file with the trees that the library has learned: one tree a line, as the text of `Tree`."""
DEPTH = 6
"""Number of conditions of a tree that is learned."""
UNIT = 1e-4
"""The values of a tree are stored as integers, in multiples of UNIT."""
TOGETHER = 256
"""The trees are evaluated for this many plans at a time; the arrays then fit in CPU caches."""
MOST = 0.15
"""Largest absolute value of the natural logarithm of the factor by which a correction multiplies a
predicted time."""


def correctable(t: Table) -> Flag:
    """For each plan, whether its problem resembles those from which corrections are learned.

    These are single products of 16-bit matrices with a 16-bit result, whose epilogue reads no
    operand as large as D and reduces no rows.
    """
    single = (t.l == 1) & (t.ragged_m == 0) & (t.ragged_k == 0)
    return single & (t.in_bytes == 2) & (t.out_bytes == 2) & (t.c_bytes == 0) & (t.row_cycles == 0)


def features(
    t: Table, s: Shape, w: Work, terms: Mapping[str, Column], total: Column
) -> dict[str, Column]:
    """Columns on which the error of a predicted time may depend, by name.

    `padded` is the number of elements of all output tiles over that of D; `ctas` the number of CTAs
    with iterations; `iterations` how many a workgroup has; `read_bytes` the size of A and B;
    `partial_bytes` that of the partial sums if each CTA sends one. Other columns have the names of
    their fields in `Table`, `Shape` and `Work`.

    Args:
        t: a table with one problem and one plan in each row.
        s: how each plan's tiles are divided among warpgroups, pipeline stages and TMA boxes.
        w: the work counts of each plan.
        terms: the predicted seconds of the terms of the cost model, by name.
        total: the predicted seconds of each plan, without a correction.
    """
    return {
        **{f"{name}_share": column / total for name, column in terms.items()},
        "total": total,
        "tiles": s.tiles,
        "busy": w.busy,
        "tiles_each": s.tiles / w.busy,
        "depth": s.depth,
        "fixup_kind": t.fixup.astype(np.float64),
        "loops": t.loops.astype(np.float64),
        "adjacent": t.adjacent.astype(np.float64),
        "shares": s.shares,
        "straddling": s.straddling,
        "split": s.split,
        "filled": s.filled,
        "rows": s.rows,
        "columns": s.columns,
        "tile_k": t.tile_k,
        "cluster_m": t.cluster_m,
        "cluster_n": t.cluster_n,
        "turns": t.turns,
        "width": t.width,
        "turned_b": t.turned_b,
        "stages": s.stages,
        "blocks": s.blocks,
        "mma_columns": s.mma_columns,
        "stores": s.stores,
        "odd": s.odd,
        "m": t.m,
        "n": t.n,
        "k": t.k,
        "m_over_n": t.m / t.n,
        "read_bytes": t.l * (t.m + t.n) * t.k * t.in_bytes,
        "tiles_m": s.tiles_m,
        "tiles_n": s.tiles_n,
        "padded": s.tiles * t.tile_m * t.tile_n / (t.l * t.m * t.n),
        "outside": s.outside,
        "ctas": w.busy * s.workgroups,
        "waves": s.tiles / w.grid,
        "iterations": s.depth * s.tiles / w.busy,
        "left_b": s.left_b,
        "consumers": s.consumers,
        "operand_bytes": s.operand_bytes,
        "asked_bytes": s.asked_bytes,
        "merged": s.merged,
        "copies": s.copies,
        "narrow": s.narrow,
        "partial_bytes": s.partial_bytes * w.busy * s.workgroups,
    }


@dataclass(frozen=True)
class Tree:
    """A decision tree: d conditions, and a value for each of the 2^d combinations of outcomes.

    Its text is `names limits values`, three lists with commas; the first condition has the largest
    weight in the index of a value.

    Args:
        names: the names of the columns (see `features`) that the conditions compare.
        limits: a condition holds if the column's entry is greater than this limit.
        values: one integer for each combination of outcomes, in multiples of `UNIT`.
    """

    names: tuple[str, ...]
    limits: tuple[float, ...]
    values: tuple[int, ...]

    def __str__(self) -> str:
        limits = (f"{limit:.6g}" for limit in self.limits)
        return " ".join(map(",".join, (self.names, limits, map(str, self.values))))

    @classmethod
    def parse(cls, text: str) -> Tree:
        """The tree whose text is given.

        Raises:
            ValueError: the text has another form.
        """
        parts = [part.split(",") for part in text.split()]
        if len(parts) != 3:
            raise ValueError(
                f"{text[:40]!r} is not a tree: it does not have three lists (names, limits, values)"
            )
        names, limits, values = parts
        if len(names) != len(limits) or len(values) != 1 << len(names):
            raise ValueError(f"{text[:40]!r} is not a tree: d conditions need 2^d values")
        return cls(tuple(names), tuple(map(float, limits)), tuple(map(int, values)))


@dataclass(frozen=True)
class Correction:
    """A sum of trees, ready to be evaluated for many plans at once.

    Args:
        names: for each condition that occurs in a tree, the name of the column that it compares.
        limits: for each of these conditions, the limit.
        conditions: for each tree (rows), the indices of its conditions in `names`.
        values: for each tree, the value for each combination of outcomes, in multiples of `UNIT`.
    """

    names: tuple[str, ...]
    limits: Column
    conditions: NDArray[np.intp]
    values: NDArray[np.int16]

    @classmethod
    @cache
    def known(cls) -> Correction:
        """The correction that the library has learned, from the file `FILE`."""
        lines = FILE.read_text("utf-8").splitlines()
        return cls.of([Tree.parse(line) for line in lines if line.strip()])

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> Correction:
        """The sum of trees, which have equally many conditions; there is at least one tree."""
        pairs = [tuple(zip(tree.names, tree.limits, strict=True)) for tree in trees]
        number = {
            pair: i for i, pair in enumerate(dict.fromkeys(p for some in pairs for p in some))
        }
        return cls(
            tuple(name for name, _ in number),
            np.array([limit for _, limit in number]),
            np.array([[number[pair] for pair in some] for some in pairs]),
            np.array([tree.values for tree in trees], np.int16),
        )

    def logarithms(self, columns: Mapping[str, Column]) -> Column:
        """The natural logarithm of the factor for each plan, at most `MOST` in absolute value.

        Args:
            columns: the columns of `features`, by name.
        """
        places = {name: place for place, name in enumerate(dict.fromkeys(self.names))}
        entries = np.stack([columns[name] for name in places])
        holds = entries[[places[name] for name in self.names]] > self.limits[:, None]
        first = np.arange(len(self.values))[:, None] * self.values.shape[1]
        found = np.zeros(holds.shape[1])
        for begin in range(0, len(found), TOGETHER):
            some = holds[:, begin : begin + TOGETHER]
            index = np.zeros((len(self.conditions), some.shape[1]), np.intp)
            for numbers in self.conditions.T:
                index = 2 * index + some[numbers]
            values = self.values.ravel()[index + first]
            found[begin : begin + TOGETHER] = values.sum(axis=0, dtype=np.int64)
        return np.clip(UNIT * found, -MOST, MOST)
