"""`Similarity`: how alike plans are, as covariances of the cost model's errors on them.

If the cost model is too optimistic about a plan, it is usually too optimistic about plans with the
same tile, cluster, or schedule and grid too. The covariance of the errors (of the logarithm of
measured over predicted seconds) is a sum of terms, one for each of these properties, and one for
plans that agree in all of them. `python -m benchmarks tuning --fit` finds the constants with the
largest likelihood for a sweep.
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
    """Standard deviations of the parts of the cost model's error, and how fast they decorrelate.

    Errors are of the natural logarithm of a time: 0.05 is an error of 5 %.

    Attributes:
        problem: deviation of the part that all plans of a problem share.
        tile: of the part that plans with the same CTA tile share.
        cluster: of the part that plans with the same cluster share.
        schedule: of the part that plans with the same schedule and grid share.
        plan: of the part of a single plan, which plans that are alike in every property share.
        noise: of measurements.
        tile_length: distance of tiles, in doublings of their extents, at which the correlation is
            1/e. For the others: distances of clusters and of bands, in doublings, of grids, in
            doublings of the number of CTAs, and of pingpong from cooperative warpgroups (1).
    """

    problem: float = 0.1
    tile: float = 0.05
    cluster: float = 0.04
    schedule: float = 0.055
    plan: float = 0.04
    noise: float = 0.015
    tile_length: float = 1.6
    cluster_length: float = 1.0
    grid_length: float = 0.1
    band_length: float = 2.0
    turns_length: float = 0.8


FITTED = Scales()
"""The constants for the H200: near those that `--fit` finds for the sweeps of the cost model's fit.

The deviations are larger, since the model's errors are larger on problems that it was not fitted
to.
"""


class Similarity:
    """Covariances of the cost model's errors on the plans of a table."""

    def __init__(self, table: Table, device: Constants, scales: Scales = FITTED) -> None:
        """Compute the properties of plans.

        Args:
            table: plans of one problem.
            device: the constants of the device.
            scales: the constants of the covariance.
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
        """Covariances of the errors, without noise: one row for each of `rows`."""

        def apart(columns: list[Column], length: float) -> Matrix:
            """The correlation exp(-d / length), where d is the sum of the columns' distances."""
            far = sum(np.abs(x[rows][:, None] - x[others][None, :]) for x in columns)
            return np.exp(-np.asarray(far) / length)

        def same(column: Column) -> Matrix:
            return (column[rows][:, None] == column[others][None, :]).astype(np.float64)

        s = self.scales
        tile = apart(self._tile, s.tile_length) * apart([self._turns], s.turns_length)
        cluster = apart(self._cluster, s.cluster_length)
        # Half of a schedule's error is that of its kind of fix-up.
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
        """The variance of the error on any plan, without noise."""
        s = self.scales
        return s.problem**2 + s.tile**2 + s.cluster**2 + s.schedule**2 + s.plan**2
