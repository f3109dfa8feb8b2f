"""Fit a device's figures to measured times: `python -m passes.choosing.calibrate FILE…`.

A file is what `python -m benchmarks sweep` writes, perhaps compressed by gzip: a JSON object with
`rows` like `{"m": 4096, "n": 4096, "k": 4096, "layout": "nt", "plan": "256x256x64@c2x1
stream-k{owner=last} on 66", "t": 0.000221}`, a problem, a plan and seconds. Rows of other
contenders (`"plan": "cublas"`), and of schedules that the model does not know, are left out.

Logarithms of the figures are fitted by least squares to logarithms of times. Plans near the best of
their problem have the largest weight, since the choice is among them. Differences between the
errors of these plans are penalised too, since an error common to all changes no choice. Large
errors have a linear loss. A weak penalty keeps figures that the measurements do not determine near
their first guesses. The fit needs scipy (the extra `bench`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgraph import Gemm
from passes.choosing.candidates import chooseable
from passes.choosing.constants import FITTED, FOLDER, Constants, constants_of
from passes.choosing.model import Counts, cost
from passes.choosing.plan import Plan
from passes.choosing.plan_table import Column, Flag, Table, schedule_in
from passes.choosing.times import read_json

__all__ = [
    "Measurements",
    "Quality",
    "fit",
    "is_plan",
    "known_plans",
    "main",
    "problem_of",
    "quality",
]

NEAR, FAR_WEIGHT = 0.3, 0.2
"""A plan's squared error has the weight exp(-(t / best - 1) / NEAR) + FAR_WEIGHT."""
LARGE_ERROR = 0.1
"""Error of the logarithm of a time beyond which the loss is linear."""
PULL = 0.1
"""Weight of a figure's deviation from its first guess, in logarithms."""
CLOSE, DIFFERENCE = 0.1, 2.0
"""CLOSE: like NEAR, for plans whose differences decide the choice. DIFFERENCE: weight of the
differences of their errors."""
LEAST = {"sharpness": 1.0, "evenness": 1.0}
MOST = {"mixed_loss": 1.0, "merged": 1.0, "lone_rate": 66e9}
"""Bounds of fitted figures. The degrees of norms are at least 1, shares at most 1. The bound of
`lone_rate` is what each of 48 to 64 workgroups was measured to read from memory, in bytes per
second: times of launches that read little do not determine it."""
MOST_ROUNDS, STEP = 80, 1e-4


@dataclass(frozen=True)
class Measurements:
    """Measured times of plans, one per row.

    Args:
        table: the problem and the plan of each row.
        seconds: the measured seconds of each row.
        problem: the number of each row's problem, from 0.
        usable: whether a row takes part in the fit.
    """

    table: Table
    seconds: Column
    problem: NDArray[np.intp]
    usable: Flag

    @classmethod
    def read(cls, paths: Iterable[Path], device: Constants) -> Measurements:
        """Read files of measured times.

        Raises:
            OSError, ValueError, KeyError: a file cannot be read, or has another format.
        """
        files = [read_json(path)["rows"] for path in paths]
        plans = known_plans(row for rows in files for row in rows)
        found = [
            (run, problem_of(row), plans[row["plan"]], row["t"])
            for run, rows in enumerate(files)
            for row in rows
            if row["plan"] in plans
        ]
        table = Table.of((gemm, plan) for _, gemm, plan, _ in found)
        # Of one problem, only times of one run are compared: clocks differ between runs.
        numbers: dict[tuple[int, Gemm], int] = {}
        of = np.array([numbers.setdefault(row[:2], len(numbers)) for row in found], np.intp)
        seconds = np.array([t for *_, t in found], np.float64)
        # Only rows of plans that may be chosen are used for the fit.
        return cls(table, seconds, of, chooseable(table, device))

    def where(self, chosen: Flag) -> Measurements:
        """The rows for which `chosen` is true."""
        _, problem = np.unique(self.problem[chosen], return_inverse=True)
        table = self.table.where(chosen)
        return Measurements(table, self.seconds[chosen], problem, self.usable[chosen])

    @property
    def problems(self) -> int:
        """Number of problems."""
        return int(self.problem.max()) + 1

    def best(self, values: Column) -> Column:
        """The smallest of the rows' values for each problem."""
        found = np.full(self.problems, np.inf)
        np.minimum.at(found, self.problem, values)
        return found


@dataclass(frozen=True)
class Quality:
    """How good predictions are. A problem's loss is t(chosen plan) / t(best measured plan) - 1.

    Args:
        problems: number of problems.
        loss: mean loss (the geometric mean of the ratios, minus 1).
        largest: largest loss of a problem.
        over: number of problems with a loss of more than 5 %.
        error: root mean square of log(predicted seconds / measured seconds).
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
    """The quality of the choice among the measured plans by their predicted times."""
    # Problems with fewer than two plans that may be chosen say nothing.
    counts = np.bincount(measured.problem[measured.usable], minlength=measured.problems)
    measured = measured.where(counts[measured.problem] > 1)
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


def fit(measured: Measurements, first: Constants) -> Constants:
    """Fit the figures of a device to measured times, from the guesses `first`.

    Raises:
        ImportError: scipy is not installed.
    """
    from scipy.optimize import least_squares

    data = measured.where(measured.usable)
    relative = data.seconds / data.best(data.seconds)[data.problem]
    weight = np.sqrt(np.exp(-(relative - 1) / NEAR) + FAR_WEIGHT)
    close = np.exp(-(relative - 1) / CLOSE)
    closest = np.bincount(data.problem, close)
    counts = Counts(data.table, first)  # the fitted figures change nothing in them
    guess = np.log([getattr(first, name) for name in FITTED])

    def figures(logarithms: Column) -> Constants:
        return first.with_figures(dict(zip(FITTED, map(float, np.exp(logarithms)), strict=True)))

    def errors(logarithms: Column) -> Column:
        error = np.log(cost(counts, figures(logarithms)).total / data.seconds)
        common = np.bincount(data.problem, close * error) / closest
        between = DIFFERENCE * np.sqrt(close) * (error - common[data.problem])
        return np.concatenate([weight * error, between, PULL * (logarithms - guess)])

    bounds = [
        [np.log(of[name]) if name in of else nothing for name in FITTED]
        for of, nothing in ((LEAST, -np.inf), (MOST, np.inf))
    ]
    found = least_squares(
        errors,
        guess,
        bounds=bounds,
        loss="soft_l1",
        f_scale=LARGE_ERROR,
        diff_step=STEP,
        max_nfev=MOST_ROUNDS,
    )
    return figures(found.x)


def problem_of(row: dict[str, Any]) -> Gemm:
    """The problem of a measured row."""
    turned_a, turned_b = (side == "t" for side in row["layout"])
    m, n, k = (int(row[axis]) for axis in "mnk")
    return Gemm(row.get("dtype", "bf16"), m=m, n=n, k=k, transpose_a=turned_a, transpose_b=turned_b)


def known_plans(rows: Iterable[dict[str, Any]]) -> dict[str, Plan]:
    """The plans of rows by their text, except those with schedules that the model does not know."""
    found: dict[str, Plan] = {}
    for text in dict.fromkeys(row["plan"] for row in rows if is_plan(row)):
        plan = Plan.parse(text)
        if schedule_in(plan) is not None:
            found[text] = plan
    return found


def is_plan(row: dict[str, Any]) -> bool:
    """Whether a row is the time of a plan of this library, not of another library."""
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
    """Run the command: fit the figures, report their quality, write or print them."""
    parser = argparse.ArgumentParser(description="Fit a device's figures to measured times.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="measured times")
    parser.add_argument("--device", default="NVIDIA H200", help="its name, as the driver says it")
    parser.add_argument("--processors", type=int, help="its SMs, where there is no file of it yet")
    parser.add_argument("--write", action="store_true", help="write the device's file")
    asked = parser.parse_args(arguments)
    if find_spec("scipy") is None:
        sys.exit("scipy is missing; it comes with the extra bench: pip install 'coordgraph[bench]'")
    known = constants_of(asked.device, asked.processors)
    measured = Measurements.read(asked.files, known)
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
