"""Arithmetic on the rows of a record: geometric means of ratios, and the slowest problems."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.peers.contender import COORDGRAPH, CUBLAS
from benchmarks.problems.shapes import UNGROUPED

__all__ = [
    "BEST",
    "Row",
    "by_group",
    "by_problem",
    "geometric_mean",
    "judged_contender",
    "mean_ratios",
    "names",
    "slower_than",
]

Row = dict[str, Any]
BEST = "best of ours"
"""Name in tables for the fastest of coordgraph's contenders on each problem, if it has several."""


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers; NaN if there are none.

    >>> round(geometric_mean([0.5, 2.0, 1.0]), 12)
    1.0
    """
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


def by_problem(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows grouped by problem and sampling regime (burst, sustained), in order of appearance."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = (row.get("group", UNGROUPED), row.get("regime"), row["layout"], row.get("shape"))
        found.setdefault((*key, row["m"], row["n"], row["k"]), []).append(row)
    return list(found.values())


def by_group(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of a record for each group of shapes, in the order of first appearance."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.get("group", UNGROUPED), []).append(row)
    return found


def names(rows: Iterable[Row]) -> list[str]:
    """The names of the contenders in rows of a record, in the order of first appearance."""
    return list(dict.fromkeys(row["name"] for row in rows))


def _ours(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.get("ours")]


def _ratios(rows: Sequence[Row]) -> dict[str, list[float]]:
    """For each contender, cuBLAS's time divided by the contender's, one number per problem.

    The entry `BEST` is for the fastest of coordgraph's contenders on each problem.
    """
    found: dict[str, list[float]] = {}
    for of_problem in by_problem(rows):
        ours: list[float] = []
        for row in of_problem:
            ratio = row.get("of_cublas")
            if ratio is None:
                continue
            if row["name"] != CUBLAS:
                found.setdefault(row["name"], []).append(ratio)
            if row.get("ours"):
                ours.append(ratio)
        if ours:
            found.setdefault(BEST, []).append(max(ours))
    if len(names(_ours(rows))) < 2:
        found.pop(BEST, None)
    return found


def mean_ratios(rows: Sequence[Row]) -> dict[str, tuple[float, int]]:
    """For each contender, (geometric mean of its speedups over cuBLAS, number of problems)."""
    return {name: (geometric_mean(values), len(values)) for name, values in _ratios(rows).items()}


def judged_contender(rows: Sequence[Row]) -> str | None:
    """The name of the contender whose slow problems are listed.

    The contender is `codegen.matmul` (named coordgraph) if the rows have it, else the only plan of
    coordgraph, or `BEST` if there are several plans; None if there is no plan.
    """
    ours = names(_ours(rows))
    if COORDGRAPH in ours or not ours:
        return COORDGRAPH if ours else None
    return BEST if len(ours) > 1 else ours[0]


def slower_than(rows: Sequence[Row], bound: float) -> list[tuple[float, Row]]:
    """Problems on which coordgraph has less than `bound` times cuBLAS's speed, slowest first.

    Each row comes with coordgraph's speed relative to cuBLAS: 0 if coordgraph was not timed.
    """
    judged = judged_contender(rows)
    found: list[tuple[float, Row]] = []
    for of_problem in by_problem(rows):
        ours = [row for row in _ours(of_problem) if judged in (BEST, row["name"])]
        if ours and any("of_cublas" in row for row in of_problem):
            best = max(ours, key=lambda row: row.get("of_cublas", 0.0))
            found.append((best.get("of_cublas", 0.0), best))
    below = [(ratio, row) for ratio, row in found if ratio < bound]
    return sorted(below, key=lambda pair: pair[0])
