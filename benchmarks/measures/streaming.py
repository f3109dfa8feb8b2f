"""Compare schedules that split tiles with those that do not: `benchmarks chosen --streaming`.

A plan streams tiles if workgroups share them along k: all tiles, or those of the last waves. For
every problem of a sweep, the speedup is the time of the fastest plan of whole tiles divided by that
of the fastest plan that streams tiles, as measured, and as the cost model predicts it for the same
two plans. Plans with tiles of two shapes are left out. Geometric means and the model's errors are
listed for each group of problems, for all problems, and for `candidates`: problems on which both
plans are candidates of the model. Predictions for other plans (more workgroups than the GPU holds,
narrow TMA boxes of B, schedules that are never chosen) do not influence the model's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp, log, sqrt
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.table import Table as RichTable

from benchmarks.problems.shapes import group_title
from benchmarks.reports.record import key_of
from benchmarks.reports.summary import geometric_mean
from passes.choosing import constants_of
from passes.choosing.exclusions import chooseable
from passes.choosing.measurements import known_plans, problem_of
from passes.choosing.model import cost
from passes.choosing.plan_table import Table

__all__ = ["GOAL", "Compared", "Means", "compared", "means", "record_of", "table_of"]

GOAL = 0.1
"""The relative error up to which a predicted speedup counts as accurate."""


@dataclass(frozen=True)
class Compared:
    """One problem on which plans that split tiles along k, and plans of whole tiles, were measured.

    Args:
        group: the group of shapes that the problem belongs to.
        problem: m, n, k and the layout, as text.
        streaming_plan, streaming_seconds: the fastest plan that splits tiles, and its time.
        whole_plan, whole_seconds: the fastest plan of whole tiles, and its time.
        predicted: the time of `whole_plan` divided by that of `streaming_plan`, by the cost model.
        candidates: True if both plans are candidates of the cost model.
    """

    group: str
    problem: str
    streaming_plan: str
    streaming_seconds: float
    whole_plan: str
    whole_seconds: float
    predicted: float
    candidates: bool

    @property
    def measured(self) -> float:
        """The time of whole tiles divided by that of split tiles: above 1, splitting is faster."""
        return self.whole_seconds / self.streaming_seconds

    def error(self) -> float:
        """|log(predicted / measured speedup)| of splitting tiles along k over whole tiles."""
        return abs(log(self.predicted / self.measured))


@dataclass(frozen=True)
class Means:
    """Means of the speedup of tiles split along k over whole tiles, over a group of problems.

    Args:
        problems: the number of problems.
        measured, predicted: geometric means of the measured and the predicted speedup.
        bias: the geometric mean of predicted over measured speedup; above 1, the model
            overestimates the speed of split tiles.
        error: relative error of predicted speedups: exp(r) - 1, where r is the root mean square
            of log(predicted / measured).
        near: the share of problems whose error is within `GOAL`.
    """

    problems: int
    measured: float
    predicted: float
    bias: float
    error: float
    near: float


def compared(rows: Sequence[dict[str, Any]], device: str) -> list[Compared]:
    """Every problem on which a plan that splits tiles and a plan of whole tiles were measured."""
    plans, constants = known_plans(rows), constants_of(device)
    ours = [row for row in rows if row["plan"] in plans]
    if not ours:
        return []
    table = Table.of((problem_of(row), plans[row["plan"]]) for row in ours)
    predicted, seconds = cost(table, constants).total, np.array([row["t"] for row in ours])
    candidates = chooseable(table, constants)
    streams, whole = table.streams, ~table.streams & ~table.divided
    problems: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(ours):
        problems.setdefault(key_of(row), []).append(index)
    found: list[Compared] = []
    for (m, n, k, layout), indices in problems.items():
        kinds = [[i for i in indices if kind[i]] for kind in (streams, whole)]
        if not all(kinds):
            continue
        one, other = (min(kind, key=seconds.__getitem__) for kind in kinds)
        found.append(
            Compared(
                ours[indices[0]].get("group", ""),
                f"{m}x{n}x{k} {layout}",
                ours[one]["plan"],
                float(seconds[one]),
                ours[other]["plan"],
                float(seconds[other]),
                float(predicted[other] / predicted[one]),
                bool(candidates[one] and candidates[other]),
            )
        )
    return found


def means(found: Sequence[Compared]) -> dict[str, Means]:
    """Mean speedups of tiles split along k over whole tiles, by group of problems.

    The groups are the groups of shapes, `all` problems, and `candidates`: the problems on which
    both compared plans are candidates of the cost model.
    """
    groups = {
        name: [one for one in found if one.group == name]
        for name in sorted({one.group for one in found})
    }
    groups |= {"all": [*found], "candidates": [one for one in found if one.candidates]}
    return {name: _mean(some) for name, some in groups.items() if some}


def _mean(found: Sequence[Compared]) -> Means:
    squares = [one.error() ** 2 for one in found]
    return Means(
        len(found),
        geometric_mean([one.measured for one in found]),
        geometric_mean([one.predicted for one in found]),
        geometric_mean([one.predicted / one.measured for one in found]),
        exp(sqrt(sum(squares) / len(squares))) - 1,
        sum(one.error() <= log(1 + GOAL) for one in found) / len(found),
    )


def table_of(found: Sequence[Compared], title: str) -> RichTable:
    """A table of mean speedups of split over whole tiles, with a line per group of problems."""
    heads = ("group", "problems", "measured", "predicted", "of measured", "off by", "within 10 %")
    lines = RichTable(*heads, title=f"{title}: streamed tiles against whole ones", box=SIMPLE)
    for group, mean in means(found).items():
        numbers = [f"{value:.3f}" for value in (mean.measured, mean.predicted, mean.bias)]
        shares = [f"{mean.error:.1%}", f"{mean.near:.0%}"]
        lines.add_row(group_title(group), str(mean.problems), *numbers, *shares)
    return lines


def record_of(found: Sequence[Compared], source: str, device: str) -> dict[str, Any]:
    """A JSON record: mean speedups of split over whole tiles by group, every problem as a row."""
    return {
        "kind": "streaming",
        "of": source,
        "device": device,
        "means": {name: asdict(mean) for name, mean in means(found).items()},
        "rows": [{**asdict(one), "measured": one.measured} for one in found],
    }
