"""Speedups of Stream-K over data-parallel, summarised as in the Stream-K paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.problems.log_uniform import log_uniform_shapes
from benchmarks.problems.paper import WAYS, output_tiles
from benchmarks.reports.tables import aligned

__all__ = ["Speedups", "speedups", "summaries", "table"]

CLASSES = {
    "all": (0.0, np.inf),
    "T < W": (0.0, 1.0),
    "W <= T < 2W": (1.0, 2.0),
    "2W <= T < 8W": (2.0, 8.0),
    "8W <= T": (8.0, np.inf),
}
"""Ranges of the number of waves T/W, for T output tiles and W SMs, as (low, high): low <= T/W <
high."""
Column = NDArray[np.float64]


@dataclass(frozen=True)
class Speedups:
    """Statistics of speedups over data-parallel; 2 means half of the time of data-parallel.

    Args:
        sizes: the number of problems.
        average: the arithmetic mean, as in the paper.
        deviation: the standard deviation.
        least, peak: minimum and maximum.
        geometric: the geometric mean.
        faster: the share of problems with a speedup above 1.
    """

    sizes: int
    average: float
    deviation: float
    least: float
    peak: float
    geometric: float
    faster: float

    @classmethod
    def of(cls, values: Column) -> Speedups:
        """Summarise a non-empty column of speedups."""
        return cls(
            len(values),
            float(values.mean()),
            float(values.std()),
            float(values.min()),
            float(values.max()),
            float(np.exp(np.log(values).mean())),
            float((values > 1).mean()),
        )


def speedups(record: Mapping[str, Any]) -> tuple[Column, Column]:
    """Numbers of waves and speedups over data-parallel, from a record of `benchmarks paper`.

    Returns:
        The number of waves (output tiles divided by SMs) of each problem for which all plans have
        times; and a row of speedups for each of these problems, with a column for each schedule in
        `WAYS` after the first, `data-parallel`.
    """
    tile, processors = tuple(record["tile"]), record["processors"]
    shapes = log_uniform_shapes(len(record["rows"]), record["seed"])
    pairs = zip(shapes, (row["us"] for row in record["rows"]), strict=True)
    timed = [(output_tiles(s, tile) / processors, us) for s, us in pairs if None not in us]
    times = np.array([us for _, us in timed]).reshape(-1, len(WAYS))
    return np.array([waves for waves, _ in timed]), times[:, :1] / times[:, 1:]


def summaries(record: Mapping[str, Any]) -> dict[str, dict[str, Speedups]]:
    """Statistics of speedups over data-parallel, by range of waves and then by schedule.

    The ranges are those of `CLASSES` that have problems; the schedules are those of `WAYS` after
    `data-parallel`, by their text.
    """
    waves, values = speedups(record)
    found: dict[str, dict[str, Speedups]] = {}
    for name, (low, high) in CLASSES.items():
        inside = (waves >= low) & (waves < high)
        if inside.any():
            found[name] = {
                str(way): Speedups.of(values[inside, column]) for column, way in enumerate(WAYS[1:])
            }
    return found


def table(record: Mapping[str, Any]) -> str:
    """A table of the speedups over data-parallel for each range of waves (`CLASSES`)."""
    heads = ("sizes", "average", "std dev", "least", "peak", "geometric", "faster")
    lines = [["T output tiles, W SMs", "schedule", *heads]]
    for name, ways in summaries(record).items():
        for place, (way, one) in enumerate(ways.items()):
            numbers = (one.average, one.deviation, one.least, one.peak, one.geometric)
            first = (name, str(one.sizes)) if place == 0 else ("", "")
            cells = [f"{number:.2f}" for number in numbers]
            lines.append([first[0], way, first[1], *cells, f"{one.faster:.0%}"])
    return aligned(lines, left=2)
