"""`boosted`: learn a correction of predicted times, as a sum of decision trees.

This is gradient boosting (Friedman, "Greedy function approximation", 2001): each tree is fitted to
the errors that the earlier trees leave over, and added with a small factor. Each tree compares only
a random half of the columns (Chen and Guestrin, "XGBoost", 2016, section 2.3). The correction is
the mean of two such sums, with other random columns: the mean errs less on sizes that were not
learned (Breiman, "Bagging predictors", 1996).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import numpy as np
from numpy.typing import NDArray

from passes.choosing.correction import DEPTH, UNIT, Tree
from passes.choosing.plan_table import Column

__all__ = ["boosted"]

SUMS, TREES, RATE, COLUMNS = 2, 600, 0.3, 0.5
"""SUMS: number of sums of trees, of which the correction is the mean. TREES: number of trees of
each sum. RATE: factor with which the values of each tree are multiplied. COLUMNS: the share of the
columns that the conditions of one tree may compare."""
LIMITS = 31
"""Largest number of limits with which the entries of a column are compared."""
SHRINK = 5.0
"""Weight that is added to the sum of the weights of a leaf, which reduces the leaf's value. A plan
that is as fast as the fastest one of its problem has weight 1."""


def boosted(columns: Mapping[str, Column], errors: Column, weights: Column) -> tuple[Tree, ...]:
    """Trees whose values add up to an approximation of errors.

    The result is the same for equal arguments, and () if no column has two different entries.

    Args:
        columns: for each name, the entry of every plan; see `passes.choosing.correction.features`.
        errors: the values to approximate.
        weights: the weight of each plan's squared error.
    """
    found = {name: np.asarray(column, np.float64) for name, column in columns.items()}
    limits = {name: _limits(column) for name, column in found.items()}
    names = [name for name in found if len(limits[name])]
    if not names:
        return ()
    # bins[i, j]: the number of limits of column j that are less than the entry of plan i.
    bins = np.stack([np.searchsorted(limits[name], found[name], "left") for name in names], 1)
    counts = np.array([len(limits[name]) for name in names])
    random = Random(0)
    trees: list[Tree] = []
    for _ in range(SUMS):
        residual = errors.copy()
        for _ in range(TREES):
            seen = sorted(random.sample(range(len(names)), max(1, round(COLUMNS * len(names)))))
            leaf, conditions = _grown(bins[:, seen], counts[seen], residual, weights)
            sums = np.bincount(leaf, weights * residual, 1 << DEPTH)
            total = np.bincount(leaf, weights, 1 << DEPTH)
            # `Correction` adds up the values of all trees. With values divided by SUMS, the result
            # is the mean of the sums.
            values = np.rint(RATE * sums / (total + SHRINK) / UNIT / SUMS).astype(int)
            residual = residual - SUMS * UNIT * values[leaf]
            compared = [names[seen[column]] for column, _ in conditions]
            reached = [float(limits[n][i]) for n, (_, i) in zip(compared, conditions, strict=True)]
            trees.append(Tree(tuple(compared), tuple(reached), tuple(map(int, values))))
    return tuple(trees)


def _limits(column: Column) -> Column:
    """The limits with which a column's entries may be compared, in ascending order.

    There is a limit between each two adjacent entries or, if these are more than `LIMITS`, at each
    quantile. Limits are rounded as in the text of a `Tree`.
    """
    found = np.unique(column)
    if len(found) - 1 > LIMITS:
        found = np.quantile(column, np.linspace(0, 1, LIMITS + 2)[1:-1])
    else:
        found = (found[1:] + found[:-1]) / 2
    return np.unique([float(f"{limit:.6g}") for limit in found])


def _grown(
    bins: NDArray[np.intp], counts: NDArray[np.intp], residual: Column, weights: Column
) -> tuple[NDArray[np.intp], list[tuple[int, int]]]:
    """Grow one tree, level by level: each level takes the condition that reduces the error most.

    Args:
        bins: for each plan (rows) and column, the number of limits that are less than the entry.
        counts: number of limits of each column.
        residual: the errors that the earlier trees leave over.
        weights: the weight of each plan's squared error.

    Returns:
        For each plan the index of its leaf; and the conditions, as (column, index of the limit).
    """
    plans, columns = bins.shape
    width = LIMITS + 1
    places = bins + np.arange(columns) * width
    repeated = np.repeat(weights * residual, columns), np.repeat(weights, columns)
    impossible = np.arange(width - 1) >= counts[:, None]
    leaf = np.zeros(plans, np.intp)
    conditions: list[tuple[int, int]] = []
    for level in range(DEPTH):
        leaves = 1 << level
        place = (leaf[:, None] * (columns * width) + places).ravel()
        shape = leaves, columns, width
        sums, total = (
            np.cumsum(np.bincount(place, of, leaves * columns * width).reshape(shape), axis=2)
            for of in repeated
        )
        # A condition divides each leaf in two parts. If a part is predicted by its mean, the
        # squared error falls by (sum of the residuals)² / weight. The condition with the largest
        # total over all leaves is taken.
        below, above = sums, sums[:, :, -1:] - sums
        weight_below, weight_above = total + SHRINK, total[:, :, -1:] - total + SHRINK
        gain = (below**2 / weight_below + above**2 / weight_above).sum(axis=0)[:, :-1]
        best = int(np.where(impossible, -1, gain).argmax())
        column, limit = divmod(best, width - 1)
        conditions.append((column, limit))
        leaf = 2 * leaf + (bins[:, column] > limit)
    return leaf, conditions
