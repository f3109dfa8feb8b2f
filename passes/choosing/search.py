"""`search`: find the fastest plan of a problem with few measurements.

The search is Bayesian optimisation. The cost model's predictions are the prior mean of a Gaussian
process over the logarithms of times, and the measured time of a plan corrects the predictions for
similar plans (`passes.choosing.similarity`). The first measured plans are therefore plans with
short predicted times that differ from one another in tile, cluster, schedule or grid. After that,
the plan with the largest expected improvement over the fastest measured plan is measured next. The
search ends if no expected improvement is worth a measurement.

The search knows no GPU: `measure` is a function, so recorded times can replay a search
(`python -m benchmarks tuning`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erf, inf, isfinite, log

import numpy as np
from numpy.typing import NDArray

from passes.choosing.constants import Constants
from passes.choosing.plan import Plan
from passes.choosing.plan_table import Column, Table
from passes.choosing.similarity import FITTED, Scales, Similarity

__all__ = ["MOST_MEASURED", "Measure", "search"]

MOST_MEASURED = 20
"""The largest number of plans that are measured for a problem."""
FIRST_BATCH, BATCH = 8, 6
"""Numbers of plans that are compiled in parallel and then measured. FIRST_BATCH: at the start of a
search. BATCH: in each later step."""
FAR = 2.5
"""Plans whose predicted time is more than FAR times the shortest predicted time are not
measured."""
WORTH = 1e-5
"""The search ends if the expected improvement of every plan is less than this fraction of the
shortest measured time."""
LEADERS, CLUSTERS, NEAR = 5, 3, 1.2
"""The first measured plans include up to LEADERS plans that differ in schedule or reduction, and up
to CLUSTERS plans with further cluster shapes. Each is predicted to take at most NEAR times the
shortest predicted time: the model may be wrong about a schedule or a cluster as a whole."""
CLIP = 0.3
"""Largest difference of an error, log(measured / predicted time), from the median error. The search
corrects predictions by the errors of similar plans, after it has clipped larger differences.

A plan that is far slower than predicted, for example because its registers spill, says little
about other plans.
"""

Measure = Callable[[Sequence[Plan]], Sequence[float]]
"""Type: a function that measures plans, and returns the seconds of one launch of each plan, or
`inf` for a plan that cannot be built or launched."""


def search(
    table: Table,
    predicted: Column,
    device: Constants,
    measure: Measure,
    *,
    first: Sequence[Plan] = (),
    most: int = MOST_MEASURED,
    scales: Scales = FITTED,
) -> dict[Plan, float]:
    """Measure up to `most` plans of a problem, chosen by predicted times and earlier measurements.

    Args:
        table: the candidates: plans of one problem.
        predicted: the seconds of each plan that the cost model predicts.
        device: the cost model's constants of the device for which the seconds were predicted.
        measure: the function that measures plans; it is called with a few plans at a time.
        first: plans of the table to measure before all others, unless they are predicted to take
            more than FAR times the shortest predicted time; at most the first FIRST_BATCH of them.
        most: largest number of plans to measure; plans that cannot be built are not counted.
        scales: standard deviations and correlation lengths of the cost model's errors.

    Returns:
        The measured seconds of each plan that could be built, in the order of measurement.
    """
    near = (predicted <= FAR * predicted.min()).nonzero()[0]
    state = _Search(table.where(near), predicted[near], device, scales)
    chosen = state.leaders(
        [row for plan in first for row in state.rows_of(plan)], min(LEADERS, most // 4)
    )
    found: dict[Plan, float] = {}
    failures = 0
    while len(found) < most and failures < most:
        size = FIRST_BATCH if not state.tried else BATCH
        chosen = state.next(min(size, most - len(found)), chosen)
        if not chosen:
            break
        plans = [state.table.plan(row) for row in chosen]
        for row, plan, seconds in zip(chosen, plans, measure(plans), strict=True):
            state.add(row, seconds)
            if isfinite(seconds):
                found[plan] = seconds
            else:
                failures += 1
        chosen = []
    return found


class _Search:
    """The candidate plans of a search, with their predicted and measured times."""

    def __init__(self, table: Table, predicted: Column, device: Constants, scales: Scales) -> None:
        self.table = table
        self.prior = np.log(predicted)
        self.similarity = Similarity(table, device, scales)
        self.every = np.arange(len(table))
        names = ("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "cluster_k", "turns")
        tilings = np.stack([getattr(table, name) for name in names], axis=1)
        _, self.tiling = np.unique(tilings, axis=0, return_inverse=True)
        """For each plan (row of the table), a number that is equal for plans with equal macro tile,
        cluster and `turns` (2 with ping-pong, else 1)."""
        self.tried: list[int] = []
        self.rows: list[int] = []
        """Row numbers in `table` of the measured plans; `errors` has the model's errors on them."""
        self.errors: list[float] = []
        self.best = inf
        """Natural logarithm of the shortest measured time in seconds; `inf` before the
        first measurement."""

    def rows_of(self, plan: Plan) -> list[int]:
        """The row of a plan in the table, as a list; [] if the plan is no candidate."""
        t = self.table
        same = np.ones(len(t), np.bool_)
        for axis, extent, count in zip("mnk", plan.tile, plan.cluster, strict=True):
            same &= (getattr(t, f"tile_{axis}") == extent) & (
                getattr(t, f"cluster_{axis}") == count
            )
        same &= t.workgroups == (plan.workgroups or 0)
        return [int(row) for row in same.nonzero()[0] if t.plan(int(row)) == plan][:1]

    def leaders(self, given: Sequence[int], count: int) -> list[int]:
        """Rows of the first plans to measure: `given`, then plans with other schedules or clusters.

        First, for each further pair of schedule and reduction, the plan with the shortest predicted
        time is added, until there are `count` rows; then, for each further cluster shape, the plan
        with the shortest predicted time, until there are `count + CLUSTERS` rows. Plans that are
        predicted to take more than NEAR times the shortest time are not added.
        """
        t = self.table
        names = [schedule.name for schedule in t.schedules]

        def kind(row: int) -> tuple[str, int]:
            return names[int(t.schedule[row])], int(t.fixup[row])

        def cluster(row: int) -> tuple[int, int, int]:
            return int(t.cluster_m[row]), int(t.cluster_n[row]), int(t.cluster_k[row])

        found = list(given)
        near = (self.prior <= self.prior.min() + log(NEAR)).nonzero()[0]
        ordered = [int(row) for row in near[np.argsort(self.prior[near], kind="stable")]]
        for property_of, most in ((kind, count), (cluster, count + CLUSTERS)):
            known = {property_of(row) for row in found}
            for row in ordered:
                if property_of(row) not in known and len(found) < most:
                    known.add(property_of(row))
                    found.append(row)
        return found

    def add(self, row: int, seconds: float) -> None:
        """Record the measured seconds of the plan in row `row`; `inf` if it cannot be built."""
        self.tried.append(row)
        if isfinite(seconds):
            self.rows.append(row)
            self.errors.append(log(seconds) - float(self.prior[row]))
            self.best = min(self.best, log(seconds))

    def next(self, count: int, given: Sequence[int] = ()) -> list[int]:
        """Rows of the next plans to measure: `given`, then rows with a large expected improvement.

        Each plan is chosen as if the plans chosen before this plan had been measured and took their
        expected times. The chosen plans differ in tile or cluster, because plans with equal tile
        and cluster often have nearly equal times.
        """
        chosen = list(given)[:count]
        while len(chosen) < count:
            mean, deviation = self._posterior(chosen)
            best = min(self.best, *(mean[row] for row in chosen)) if chosen else self.best
            if best == inf:
                chosen.append(int(np.argmin(mean)))
                continue
            gain = _expected_improvement(best - mean, deviation)
            gain[[*self.tried, *chosen]] = -inf
            gain[np.isin(self.tiling, self.tiling[chosen])] = -inf
            row = int(np.argmax(gain))
            if not gain[row] >= WORTH:
                break
            chosen.append(row)
        return chosen

    def _posterior(self, believed: Sequence[int]) -> tuple[Column, Column]:
        """Mean and standard deviation of the logarithm of every plan's time.

        Args:
            believed: rows of plans that are treated as if they had their expected times.
        """
        rows = np.array([*self.rows, *believed], np.intp)
        if not len(rows):
            return self.prior.copy(), np.full(len(self.prior), self.similarity.variance**0.5)
        known = len(self.rows)
        across = self.similarity.between(self.every, rows)
        within = across[rows] + self.similarity.scales.noise**2 * np.eye(len(rows))
        mean = self.prior.copy()
        if known:
            errors = np.array(self.errors)
            middle = float(np.median(errors))
            errors = np.clip(errors, middle - CLIP, middle + CLIP)
            mean += across[:, :known] @ np.linalg.solve(within[:known, :known], errors)
        explained = (across * np.linalg.solve(within, across.T).T).sum(axis=1)
        left = np.maximum(self.similarity.variance - explained, 1e-12)
        return mean, np.sqrt(left)


def _expected_improvement(gain: Column, deviation: Column) -> NDArray[np.float64]:
    """The mean of max(g, 0) for a normal variable g with mean `gain` and standard `deviation`."""
    z = gain / deviation
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    below = np.array([(1 + erf(each / 2**0.5)) / 2 for each in z])
    return gain * below + deviation * density
