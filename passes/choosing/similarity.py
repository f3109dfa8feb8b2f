"""`Similarity` computes covariances of the cost model's errors: larger for more similar plans.

If the cost model is too optimistic about a plan, it is usually too optimistic about plans with the
same tile, cluster, or schedule and grid too. The covariance of the errors (an error is the
logarithm of measured / predicted seconds) is a sum of terms: one for each of these properties, and
one that is nonzero only for plans that agree in all of them. `python -m benchmarks tuning --fit`
finds the constants with the largest likelihood for a sweep.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from passes.choosing.constants import Constants
from passes.choosing.kernel_shape import Shape
from passes.choosing.model import Counts
from passes.choosing.plan_table import Column, Table

__all__ = ["FITTED", "Scales", "Similarity"]

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Scales:
    """Standard deviations and correlation lengths of the parts of the cost model's error.

    Errors are of the natural logarithm of a time: 0.05 is an error of 5 %.

    Attributes:
        problem: deviation of the part of the error that all plans of a problem share.
        tile: deviation of the part that plans with the same CTA tile share.
        cluster: deviation of the part that plans with the same cluster share.
        schedule: deviation of the part that plans with the same schedule and grid share.
        plan: deviation of the part that plans share only if they agree in every property.
        noise: deviation of repeated measurements of one plan.
        tile_length: distance of two tiles at which the correlation is 1/e, in doublings of their
            extents.
        cluster_length: distance of two clusters at which the correlation is 1/e, in doublings of
            their extents.
        grid_length: distance of two grids at which the correlation is 1/e, in doublings of the
            number of CTAs.
        band_length: distance of two band widths at which the correlation is 1/e, in doublings of
            the width.
        turns_length: distance at which the correlation is 1/e, if a plan with pingpong and a plan
            with cooperative warpgroups have distance 1.
    """

    problem: float = 0.1
    tile: float = 0.05
    cluster: float = 0.04
    schedule: float = 0.055
    plan: float = 0.04
    noise: float = 0.015
    tile_length: float = 1.6
    cluster_length: float = 1.0
    grid_length: float = 0.2
    band_length: float = 2.0
    turns_length: float = 0.8


FITTED = Scales()
"""Standard deviations and correlation lengths of the cost model's errors on the H200, near those
that `benchmarks tuning --fit` finds for recorded sweeps.

The standard deviations are larger than the fitted values, because the cost model's errors are
larger on problems to which the model was not fitted.
"""


class Similarity:
    """Covariances of the cost model's errors on the plans of a table."""

    def __init__(self, table: Table, device: Constants, scales: Scales = FITTED) -> None:
        """Compute the properties of plans (tile, cluster, schedule, …) on which covariances depend.

        Args:
            table: plans of one problem.
            device: the cost model's constants of the device.
            scales: standard deviations and correlation lengths of the cost model's errors.
        """
        self.scales = scales
        shape, work = Shape(table), Counts(table, device).work
        self._tile = [np.log2(each) for each in (shape.rows, shape.columns, shape.units)]
        clusters = (table.cluster_m, table.cluster_n, table.cluster_k)
        self._cluster = [np.log2(each) for each in clusters]
        self._turns = table.turns
        self._band = np.log2(table.width)
        self._grid = np.log2(work.grid * shape.workgroups)
        self._fixup = table.fixup + 16.0 * table.divided
        self._schedule = table.schedule

    def between(self, rows: NDArray[np.intp], others: NDArray[np.intp]) -> Matrix:
        """Covariances of the cost model's errors on the plans `rows` with those on `others`.

        Measurement noise is left out.
        """

        def apart(columns: list[Column], length: float) -> Matrix:
            """exp(-d / length) for each pair of plans; d sums the |differences| in `columns`."""
            far = sum(np.abs(x[rows][:, None] - x[others][None, :]) for x in columns)
            return np.exp(-np.asarray(far) / length)

        def same(column: Column) -> Matrix:
            return (column[rows][:, None] == column[others][None, :]).astype(np.float64)

        s = self.scales
        tile = apart(self._tile, s.tile_length) * apart([self._turns], s.turns_length)
        cluster = apart(self._cluster, s.cluster_length)
        # For two plans: 1 if schedule and kind of fix-up are equal, 1/2 if only one of them is.
        schedule = (same(self._schedule) + same(self._fixup)) / 2
        schedule = schedule * apart([self._grid], s.grid_length)
        alike = tile * cluster * schedule * apart([self._band], s.band_length)
        return (
            s.problem**2
            + s.tile**2 * tile
            + s.cluster**2 * cluster
            + s.schedule**2 * schedule
            + s.plan**2 * alike
        )

    @property
    def variance(self) -> float:
        """The variance of the cost model's error on a plan, without measurement noise."""
        s = self.scales
        return s.problem**2 + s.tile**2 + s.cluster**2 + s.schedule**2 + s.plan**2
