"""`Rounds` times plans repeatedly and returns medians; clearly slower plans are repeated less.

Clock rates drift while plans are measured. So the plans of a group are sampled in turn, together
with the fastest plan of earlier groups. The times of the group are multiplied by that plan's
earlier time divided by its new time, so that they can be compared with the times of earlier groups.
While the kernels of a group are compiled, the GPU rests and its clock rate rises. Under load, when
the power limit lowers the clock rate, another plan may be the fastest. So the GPU is put under load
before each group.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from math import inf, isfinite

from passes.choosing import Plan

__all__ = ["HEAT_SECONDS", "Rounds"]

SCREENED, REPEATS, CLOSE = 2, 6, 1.08
"""Every plan of a group is sampled SCREENED times; plans whose median is at most CLOSE times the
shortest median are sampled REPEATS more times."""
FINALISTS, FINAL_REPEATS, FINAL_CLOSE = 4, 12, 1.05
"""At the end the fastest plan is sampled FINAL_REPEATS times, in turn with up to FINALISTS - 1
other plans that take at most FINAL_CLOSE times as long, and with the plan that was measured first:
the one that is used without tuning, if it can be built."""
HEAT_SECONDS = 0.15
"""Number of seconds for which tuning launches the plans of a group before it samples them, so that
the GPU has its clock rate under load."""
WARMING = 3
"""Number of first samples of each finalist that are dropped, until the GPU has its clock rate under
load."""


class Rounds:
    """Measures groups of plans, and finally the fastest plans again.

    Args:
        sample: the function that returns the seconds of one launch of a plan.
        final_sample: a function like `sample` with more launches, for the fastest plans at the end.
        heat_seconds: number of seconds for which the plans of a group are launched, by
            `final_sample`, before they are sampled.
        clock: a function that returns the time in seconds.
    """

    def __init__(
        self,
        sample: Callable[[Plan], float],
        final_sample: Callable[[Plan], float] | None = None,
        *,
        heat_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sample = sample
        self.final_sample = final_sample or sample
        self.heat_seconds, self.clock = heat_seconds, clock
        self.seconds: dict[Plan, float] = {}
        """The seconds of each measured plan, corrected for the drift of clock rates."""

    def measure(self, plans: Sequence[Plan]) -> list[float]:
        """The median seconds of some plans, corrected for clock-rate drift between calls."""
        if not plans:
            return []
        fastest = min(self.seconds, key=self.seconds.__getitem__) if self.seconds else None
        together = [*plans, *([fastest] if fastest and fastest not in plans else [])]
        until = self.clock() + self.heat_seconds
        for plan in cycle(together):
            if self.clock() >= until:
                break
            self.final_sample(plan)
        medians = _medians(self.sample, together, SCREENED)
        medians |= _medians(self.sample, _close(medians, CLOSE), REPEATS)
        drift = 1.0 if fastest is None else self.seconds[fastest] / medians[fastest]
        found = [medians[plan] * drift for plan in plans]
        self.seconds.update(zip(plans, found, strict=True))
        return found

    def final(self) -> dict[Plan, float]:
        """Sample the fastest plans again, more often; return the seconds of every plan."""
        close = _close(self.seconds, FINAL_CLOSE)[:FINALISTS]
        close += [plan for plan in [*self.seconds][:1] if plan not in close]
        if len(close) < 2:
            return dict(self.seconds)
        _medians(self.final_sample, close, WARMING)
        medians = _medians(self.final_sample, close, FINAL_REPEATS)
        drift = statistics.median(medians[plan] / self.seconds[plan] for plan in close)
        best = min(medians.values())
        # A plan that was not sampled again must not become the fastest by the correction for drift.
        others = {plan: max(taken * drift, best) for plan, taken in self.seconds.items()}
        return {**medians, **{plan: t for plan, t in others.items() if plan not in medians}}


def _medians(
    sample: Callable[[Plan], float], plans: Sequence[Plan], repeats: int
) -> dict[Plan, float]:
    """The median of `repeats` samples of each plan; every round samples each plan once."""
    samples: dict[Plan, list[float]] = {plan: [] for plan in plans}
    for turn in range(repeats):
        for place in range(len(plans)):
            plan = plans[(place + turn) % len(plans)]
            samples[plan].append(sample(plan))
    return {plan: statistics.median(taken) for plan, taken in samples.items()}


def _close(seconds: dict[Plan, float], factor: float) -> list[Plan]:
    """The plans that take at most `factor` times the shortest of `seconds`, the fastest first."""
    best = min(seconds.values(), default=inf)
    found = [plan for plan, taken in seconds.items() if isfinite(taken) and taken <= factor * best]
    return sorted(found, key=seconds.__getitem__)
