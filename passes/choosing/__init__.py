"""Rank the plans (tile, cluster, schedule, grid) for a problem by a model of their run time."""

from passes.choosing.constants import Constants, constants_of
from passes.choosing.explaining import Explanation, explain
from passes.choosing.plan import Plan
from passes.choosing.plan_table import sizes
from passes.choosing.ranking import Choice, choices, rank, ranked

__all__ = [
    "Choice",
    "Constants",
    "Explanation",
    "Plan",
    "choices",
    "constants_of",
    "explain",
    "rank",
    "ranked",
    "sizes",
]
