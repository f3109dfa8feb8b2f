"""Fit a device's figures to measured times: `python -m passes.choosing.calibrate FILE…`.

A file is what `python -m benchmarks sweep` writes: a JSON object with `rows` like `{"m": 4096, "n":
4096, "k": 4096, "layout": "nt", "plan": "256x256x64@c2x1 stream-k{owner=last} on 66", "t":
0.000221}`, a problem, a plan and seconds. Rows of other contenders (`"plan": "cublas"`) are left
out.

What matters is that the plan with the best prediction is a good one, less that predictions are
exact. So the loss has, besides the error of the predicted times (where plans near the best count
most), what is lost by the plans that the predictions would choose; and a weak pull towards the
first guesses, for figures that the measurements say nothing about. It is made smaller by changing
one figure after another.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgraph import Gemm
from passes.choosing.candidates import slow
from passes.choosing.constants import FITTED, FOLDER, Constants, constants_of
from passes.choosing.model import cost
from passes.choosing.plan import Plan
from passes.choosing.table import Column, Flag, Table

__all__ = ["Measurements", "Quality", "fit", "is_plan", "main", "problem_of", "quality"]

NEAR, FAR_WEIGHT = 0.15, 0.05
"""How fast the weight of slower plans falls, and what is left of it."""
LARGEST_ERROR = 0.5
SOFTNESS = 0.01
"""Predictions that differ by as much, relatively, are nearly a tie."""
PULL = 3e-4
ROUNDS, FIRST_STEP, LARGEST_STEP, SMALLEST_STEP = 40, 0.3, 0.7, 0.002
STARTS, SPREAD = 16, 0.4
WORST = 0.1
"""What the worst choice counts beside the mean."""


@dataclass(frozen=True)
class Measurements:
    """Measured plans.

    Args:
        table: problems and plans, and `seconds` of each.
        problem: a number of each row's problem, from 0.
        usable: rows that take part in the fit.
    """

    table: Table
    seconds: Column
    problem: NDArray[np.intp]
    usable: Flag

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Measurements:
        """Raises OSError, ValueError or KeyError where a file holds something else."""
        rows = [row for path in paths for row in json.loads(path.read_text("utf-8"))["rows"]]
        found = [
            (problem_of(row), Plan.parse(row["plan"]), row["t"]) for row in rows if is_plan(row)
        ]
        table = Table.of((gemm, plan) for gemm, plan, _ in found)
        numbers: dict[Gemm, int] = {}
        of = np.array([numbers.setdefault(gemm, len(numbers)) for gemm, _, _ in found], np.intp)
        seconds = np.array([t for _, _, t in found], np.float64)
        return cls(table, seconds, of, ~slow(table))  # the model need not know what is no candidate

    def where(self, chosen: Flag) -> Measurements:
        """Some of the rows."""
        _, problem = np.unique(self.problem[chosen], return_inverse=True)
        table = self.table.where(chosen)
        return Measurements(table, self.seconds[chosen], problem, self.usable[chosen])

    @property
    def problems(self) -> int:
        """How many there are."""
        return int(self.problem.max()) + 1

    def best(self, values: Column) -> Column:
        """The smallest value of each problem."""
        found = np.full(self.problems, np.inf)
        np.minimum.at(found, self.problem, values)
        return found


@dataclass(frozen=True)
class Quality:
    """How good predictions are.

    Args:
        problems: how many.
        loss: of the chosen plan's time over that of the best measured one, the geometric mean,
            less 1; `largest` of all problems.
        over: problems on which it is more than 5 %.
        error: of predicted times, root mean square of the logarithm.
    """

    problems: int
    loss: float
    largest: float
    over: int
    error: float

    def __str__(self) -> str:
        return (
            f"{self.problems} problems: the chosen plans take {self.loss:.1%} longer than the best "
            f"measured (geometric mean), at most {self.largest:.1%}, over 5 % on {self.over}; "
            f"predicted times are off by {self.error:.1%} (root mean square)"
        )


def quality(measured: Measurements, constants: Constants) -> Quality:
    """What the predictions would choose among the measured plans."""
    data = measured.where(measured.usable)
    predicted = cost(data.table, constants).total
    best = measured.best(measured.seconds)
    first = np.array([_first(data.problem == p, predicted) for p in range(data.problems)])
    ratio = data.seconds[first] / best
    error = np.log(predicted / data.seconds)
    return Quality(
        data.problems,
        float(np.exp(np.log(ratio).mean()) - 1),
        float(ratio.max() - 1),
        int((ratio > 1.05).sum()),
        float(np.sqrt((error**2).mean())),
    )


def _first(mask: Flag, predicted: Column) -> int:
    rows = np.flatnonzero(mask)
    return int(rows[np.argmin(predicted[rows])])


def fit(
    measured: Measurements,
    first: Constants,
    *,
    rounds: int = ROUNDS,
    starts: int = STARTS,
    seed: int = 0,
) -> Constants:
    """Of several descents, each to where the loss is least, the one that chooses best."""
    loss = _loss(measured.where(measured.usable), first)
    random = np.random.default_rng(seed)
    found: list[tuple[float, int, Constants]] = []
    for start in range(starts):
        spread = random.normal(size=len(FITTED)) * (SPREAD if start else 0)
        scales = dict(zip(FITTED, np.exp(spread), strict=True))
        begin = first.with_figures({n: float(getattr(first, n) * s) for n, s in scales.items()})
        found.append(_descend(loss, begin, rounds, random, start))

    def chooses(constants: Constants) -> float:
        seen = quality(measured, constants)
        return seen.loss + WORST * seen.largest

    return min((chooses(constants), loss, start, constants) for loss, start, constants in found)[3]


def _descend(
    loss: Callable[[Constants], float],
    constants: Constants,
    rounds: int,
    random: np.random.Generator,
    start: int,
) -> tuple[float, int, Constants]:
    """Change one figure after another, by less and less where that does not help."""
    least, steps = loss(constants), dict.fromkeys(FITTED, FIRST_STEP)
    for _ in range(rounds):
        for name in map(str, random.permutation(FITTED)):
            for factor in np.exp(steps[name]), np.exp(-steps[name]):
                tried = constants.with_figures({name: float(getattr(constants, name) * factor)})
                if (found := loss(tried)) < least:
                    least, constants = found, tried
                    steps[name] = min(steps[name] * 1.5, LARGEST_STEP)
                    break
            else:
                steps[name] = max(steps[name] / 2, SMALLEST_STEP)
    return least, start, constants


def _loss(data: Measurements, first: Constants) -> Callable[[Constants], float]:
    relative = data.seconds / data.best(data.seconds)[data.problem]
    weight = np.exp(-(relative - 1) / NEAR) + FAR_WEIGHT
    weight /= weight.sum()
    logarithm = np.log(data.seconds)

    def loss(constants: Constants) -> float:
        predicted = cost(data.table, constants).total
        error = np.minimum((np.log(predicted) - logarithm) ** 2, LARGEST_ERROR**2)
        above = predicted / data.best(predicted)[data.problem] - 1
        chance = np.exp(-above / SOFTNESS)
        lost = np.bincount(data.problem, chance * (relative - 1)) / np.bincount(
            data.problem, chance
        )
        away = sum(np.log(getattr(constants, n) / getattr(first, n)) ** 2 for n in FITTED)
        chosen = np.minimum(lost, LARGEST_ERROR).mean() + 3 * (lost**2).mean()
        return float((weight * error).sum() + chosen + PULL * away)

    return loss


def problem_of(row: dict[str, Any]) -> Gemm:
    """The problem of a measured row."""
    turned_a, turned_b = (side == "t" for side in row["layout"])
    m, n, k = (int(row[axis]) for axis in "mnk")
    return Gemm(row.get("dtype", "bf16"), m=m, n=n, k=k, transpose_a=turned_a, transpose_b=turned_b)


def is_plan(row: dict[str, Any]) -> bool:
    """Whether a row is of a plan of ours, not of another contender."""
    return " " in row["plan"]


def _report(measured: Measurements, constants: Constants, first: Constants) -> None:
    print("fitted on all:", quality(measured, constants))
    table = measured.table
    _, size = np.unique(np.stack([table.m, table.n, table.k]), axis=1, return_inverse=True)
    numbers = np.random.default_rng(0).permutation(int(size.max()) + 1)
    first_half = np.isin(size, numbers[::2])  # a size is in one half, whatever its layout
    for seen in (first_half, ~first_half):
        found = fit(measured.where(seen), first)
        print("fitted on one half, on the other:", quality(measured.where(~seen), found))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Fit a device's figures to measured times.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="measured times")
    parser.add_argument("--device", default="NVIDIA H200", help="its name, as the driver says it")
    parser.add_argument("--processors", type=int, help="its SMs, where there is no file of it yet")
    parser.add_argument("--write", action="store_true", help="write the device's file")
    asked = parser.parse_args(arguments)
    measured = Measurements.read(asked.files)
    known = constants_of(asked.device, asked.processors)
    guesses = {n: float(Constants.__dataclass_fields__[n].default) for n in FITTED}
    command = f"python -m passes.choosing.calibrate {' '.join(p.name for p in asked.files)}"
    source = f"{command}: {len(measured.seconds)} times, {date.today().isoformat()}"
    first = replace(known.with_figures(guesses), estimated=False, source=source)
    found = fit(measured, first)
    found = found.with_figures({n: float(f"{getattr(found, n):.4g}") for n in FITTED})
    _report(measured, found, first)
    if asked.write:
        path = FOLDER / f"{asked.device.lower().replace(' ', '-')}.json"
        path.write_text(found.to_json(), "utf-8")
        print(f"written: {path}")
    else:
        print(found.to_json(), end="")


if __name__ == "__main__":
    main()
