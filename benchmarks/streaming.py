"""Is streaming worth it, and does the model know? Of plans that were measured. No GPU.

Of every problem, the best measured plan that streams tiles (all, or those of the last waves) and
the best one of whole tiles: the time of the latter over that of the former, as measured and as
predicted for the same two plans. Tiles of two shapes are neither. Means, and how far predictions
are from measurements, are for groups of problems, for all, and for those whose two plans are both
candidates: of others (a workgroup for each of more tiles than the device holds, narrow boxes of B,
kinds that are never chosen) the model need not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp, log, sqrt
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.table import Table as Lines

from benchmarks.record import key_of
from benchmarks.report import geometric_mean
from benchmarks.shapes import title
from passes.choosing import constants_of
from passes.choosing.calibrate import known_plans, problem_of
from passes.choosing.candidates import chooseable
from passes.choosing.model import cost
from passes.choosing.table import Table

__all__ = ["GOAL", "Compared", "Means", "compared", "lines_of", "means", "record_of"]

GOAL = 0.1
"""How far predicted ratios should be from measured ones at most."""


@dataclass(frozen=True)
class Compared:
    """A problem of which plans of both kinds were measured.

    Args:
        measured: seconds of the best plan of whole tiles over those of the best that streams; more
            than 1 where streaming is worth it.
        predicted: the same of the model, for these two plans.
        candidates: the model might choose either of them.
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
        return self.whole_seconds / self.streaming_seconds

    def wrong_by(self) -> float:
        """The logarithm of predicted over measured, without its sign."""
        return abs(log(self.predicted / self.measured))


@dataclass(frozen=True)
class Means:
    """Of a group of problems.

    Args:
        measured, predicted: geometric means of the ratios.
        bias: of predicted over measured; more than 1 where the model likes streaming too well.
        error: of the same, the root mean square of the logarithm, as a part of 1.
        near: the share of problems within `GOAL`.
    """

    problems: int
    measured: float
    predicted: float
    bias: float
    error: float
    near: float


def compared(rows: Sequence[dict[str, Any]], device: str) -> list[Compared]:
    """Every problem with measured plans of both kinds, in order."""
    plans, constants = known_plans(rows), constants_of(device)
    ours = [row for row in rows if row["plan"] in plans]
    if not ours:
        return []
    table = Table.of((problem_of(row), plans[row["plan"]]) for row in ours)
    predicted, seconds = cost(table, constants).total, np.array([row["t"] for row in ours])
    judged = chooseable(table, constants)
    streams, whole = table.streams, ~table.streams & ~table.divided
    problems: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(ours):
        problems.setdefault(key_of(row), []).append(place)
    found: list[Compared] = []
    for (m, n, k, layout), places in problems.items():
        kinds = [[place for place in places if kind[place]] for kind in (streams, whole)]
        if not all(kinds):
            continue
        one, other = (min(kind, key=seconds.__getitem__) for kind in kinds)
        found.append(
            Compared(
                ours[places[0]].get("group", ""),
                f"{m}x{n}x{k} {layout}",
                ours[one]["plan"],
                float(seconds[one]),
                ours[other]["plan"],
                float(seconds[other]),
                float(predicted[other] / predicted[one]),
                bool(judged[one] and judged[other]),
            )
        )
    return found


def means(found: Sequence[Compared]) -> dict[str, Means]:
    """Of each group, of `all`, and of the `candidates` among them."""
    groups = {
        name: [one for one in found if one.group == name]
        for name in sorted({one.group for one in found})
    }
    groups |= {"all": [*found], "candidates": [one for one in found if one.candidates]}
    return {name: _mean(some) for name, some in groups.items() if some}


def _mean(found: Sequence[Compared]) -> Means:
    squares = [one.wrong_by() ** 2 for one in found]
    return Means(
        len(found),
        geometric_mean([one.measured for one in found]),
        geometric_mean([one.predicted for one in found]),
        geometric_mean([one.predicted / one.measured for one in found]),
        exp(sqrt(sum(squares) / len(squares))) - 1,
        sum(one.wrong_by() <= log(1 + GOAL) for one in found) / len(found),
    )


def lines_of(found: Sequence[Compared], name: str) -> Lines:
    """A line for each group, and one for all."""
    heads = ("group", "problems", "measured", "predicted", "of measured", "off by", "within 10 %")
    lines = Lines(*heads, title=f"{name}: streamed tiles against whole ones", box=SIMPLE)
    for group, mean in means(found).items():
        numbers = [f"{value:.3f}" for value in (mean.measured, mean.predicted, mean.bias)]
        shares = [f"{mean.error:.1%}", f"{mean.near:.0%}"]
        lines.add_row(title(group), str(mean.problems), *numbers, *shares)
    return lines


def record_of(found: Sequence[Compared], source: str, device: str) -> dict[str, Any]:
    """For JSON: the means, and every problem as a row."""
    return {
        "kind": "streaming",
        "of": source,
        "device": device,
        "means": {name: asdict(mean) for name, mean in means(found).items()},
        "rows": [{**asdict(one), "measured": one.measured} for one in found],
    }
