"""Speedup of streamed over whole tiles, measured and predicted: `benchmarks chosen --streaming`.

A plan streams tiles if workgroups share them along k: all tiles, or those of the last waves. For
every problem of a sweep the ratio is the time of the fastest plan of whole tiles over that of the
fastest plan that streams, as measured, and as the model predicts it for the same two plans. Plans
with tiles of two shapes count as neither. The geometric means and the model's errors are listed for
each group of problems, for all, and for `candidates`: problems of which both plans are candidates
of the model. Its predictions for other plans (more workgroups than the device holds, narrow TMA
boxes of B, schedules that are never chosen) do not matter.
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
from passes.choosing.calibrate import known_plans, problem_of
from passes.choosing.candidates import chooseable
from passes.choosing.model import cost
from passes.choosing.plan_table import Table

__all__ = ["GOAL", "Compared", "Means", "compared", "means", "record_of", "table_of"]

GOAL = 0.1
"""The largest relative error that a predicted ratio should have."""


@dataclass(frozen=True)
class Compared:
    """One problem of which a plan that streams and one of whole tiles were measured.

    Args:
        group: the group of shapes.
        problem: m, n, k and the layout, as text.
        streaming_plan, streaming_seconds: the fastest plan that streams.
        whole_plan, whole_seconds: the fastest plan of whole tiles.
        predicted: `measured` by the model, for the same two plans.
        candidates: whether both plans are candidates of the model.
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
        """Seconds of whole tiles over those of streamed ones; more than 1 where streaming pays."""
        return self.whole_seconds / self.streaming_seconds

    def error(self) -> float:
        """The absolute logarithm of predicted over measured."""
        return abs(log(self.predicted / self.measured))


@dataclass(frozen=True)
class Means:
    """Means over a group of problems.

    Args:
        problems: how many.
        measured, predicted: geometric means of the ratios.
        bias: geometric mean of predicted over measured; more than 1 where the model is too
            favourable to streaming.
        error: relative error, from the root mean square of the logarithm of predicted over
            measured.
        near: the share of problems whose error is within `GOAL`.
    """

    problems: int
    measured: float
    predicted: float
    bias: float
    error: float
    near: float


def compared(rows: Sequence[dict[str, Any]], device: str) -> list[Compared]:
    """Every problem of which plans of both kinds were measured, in order."""
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
    """Means of each group, of `all` problems, and of the `candidates` among them."""
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
    """A line for each group, one for all problems, and one for the candidates."""
    heads = ("group", "problems", "measured", "predicted", "of measured", "off by", "within 10 %")
    lines = RichTable(*heads, title=f"{title}: streamed tiles against whole ones", box=SIMPLE)
    for group, mean in means(found).items():
        numbers = [f"{value:.3f}" for value in (mean.measured, mean.predicted, mean.bias)]
        shares = [f"{mean.error:.1%}", f"{mean.near:.0%}"]
        lines.add_row(group_title(group), str(mean.problems), *numbers, *shares)
    return lines


def record_of(found: Sequence[Compared], source: str, device: str) -> dict[str, Any]:
    """A record with the means, and every problem as a row."""
    return {
        "kind": "streaming",
        "of": source,
        "device": device,
        "means": {name: asdict(mean) for name, mean in means(found).items()},
        "rows": [{**asdict(one), "measured": one.measured} for one in found],
    }
