"""Fit the constants of a device's cost model: `python -m passes.choosing.calibrate FILE…`.

A file is the output of `python -m benchmarks sweep`, optionally compressed by gzip: a JSON object
with `rows`, each with a problem, a plan and its measured seconds, such as `{"m": 4096, "n": 4096,
"k": 4096, "layout": "nt", "plan": "256x256x64@c2x1 stream-k{owner=last} on 66", "t": 0.000221}`.
Rows of other libraries (`"plan": "cublas"`), and of schedules that the cost model does not know,
are left out.

Logarithms of the constants are fitted by least squares to logarithms of times. Plans near the
fastest of their problem have the largest weight, since the choice is among them. Differences
between the errors of these plans are penalised too, since an error that all plans of a problem have
changes no choice. Large errors have a linear loss. A weak penalty keeps a constant that the
measurements do not determine near its first guess. The fit needs scipy (the extra `bench`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from passes.choosing.constants import FITTED, FOLDER, Constants, constants_of, file_of
from passes.choosing.measurements import Measurements, read_sweep
from passes.choosing.model import Counts, cost
from passes.choosing.plan_table import Column, Flag, Table
from passes.choosing.times import device_of

__all__ = [
    "Calibration",
    "Quality",
    "calibrated",
    "fit",
    "main",
    "quality",
]

NEAR, FAR_WEIGHT = 0.3, 0.2
"""A plan's squared error has the weight exp(-(t / best - 1) / NEAR) + FAR_WEIGHT, where t is its
measured time, and best is the shortest measured time of any plan of the same problem."""
LARGE_ERROR = 0.1
"""Error of the logarithm of a predicted time beyond which the loss of the fit is linear."""
PULL = 0.1
"""Weight of the penalty that keeps a fitted constant near its first guess: it multiplies the
difference of their logarithms."""
CLOSE, DIFFERENCE = 0.1, 2.0
"""CLOSE: a plan has the weight exp(-(t / best - 1) / CLOSE) in the penalty on differences between
errors of one problem's plans. DIFFERENCE: factor of that penalty."""
HELD_OUT = 4
"""Number of parts into which the measured sizes are divided. One part is held out: constants are
fitted to the other parts, and their choices of plans are judged on the held-out part."""
FACTORS = ("tall", "short", "split", "paired", "beside", "split_store", "odd_store")
LEAST: dict[str, float] = dict.fromkeys(FACTORS, 1.0)
"""Lower bounds of fitted constants, by name. Each is a factor by which a slow case, such as few
pipeline stages, multiplies a time, so it is at least 1."""
MOST: dict[str, float] = {"merged": 1.0}
"""Upper bounds of fitted constants, by name. `merged`, a share of requests to the L2 cache, is at
most 1."""
HOST_SECONDS = 0.5e-6
"""First guess of the seconds by which a kernel takes longer if the host launches it than if a CUDA
graph does. The fit determines them too, but they are no constant of the device."""
MOST_ROUNDS, STEP = 80, 1e-4
"""MOST_ROUNDS: largest number of evaluations of the residuals in the least-squares fit. STEP:
relative step of its numerical derivatives."""


@dataclass(frozen=True)
class Quality:
    """How well the cost model chooses among measured plans.

    The loss of a problem is t(chosen plan) / t(fastest measured plan) - 1.

    Args:
        problems: number of problems.
        loss: mean loss of a problem (the geometric mean of the ratios, minus 1).
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


def quality(measured: Measurements, constants: Constants, *, corrected: bool = False) -> Quality:
    """Compare the plan with the best predicted time to the fastest measured plan of each problem.

    Problems with only one plan that may be chosen are left out.

    Args:
        measured: the measured times.
        constants: the constants to judge.
        corrected: whether predicted times have the library's correction, which may have been
            learned from the same times (`passes.choosing.learn_correction`).
    """
    # Problems with only one plan that may be chosen are left out: there is nothing to choose.
    counts = np.bincount(measured.problem[measured.usable], minlength=measured.problems)
    measured = measured.where(counts[measured.problem] > 1)
    data = measured.where(measured.usable)
    predicted = cost(data.table, constants, corrected=corrected).total
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
    """The index of the smallest predicted time among the entries for which `mask` is true."""
    rows = np.flatnonzero(mask)
    return int(rows[np.argmin(predicted[rows])])


def fit(measured: Measurements, first: Constants) -> Constants:
    """Fit the constants of a device to measured times.

    Args:
        measured: the measured times of plans.
        first: the cost model's constants of the device: known values of properties such as the
            number of SMs, and first guesses of the constants to fit.

    Raises:
        ImportError: scipy is not installed.
    """
    from scipy.optimize import least_squares

    data = measured.where(measured.usable)
    mixed = bool(data.by_host.any() and not data.by_host.all())
    later = data.by_host * float(mixed)
    relative = data.seconds / data.best(data.seconds)[data.problem]
    weight = np.sqrt(np.exp(-(relative - 1) / NEAR) + FAR_WEIGHT)
    close = np.exp(-(relative - 1) / CLOSE)
    closest = np.bincount(data.problem, close)
    counts = Counts(data.table, first)  # computed once: work does not depend on fitted constants
    guess = np.log([getattr(first, name) for name in FITTED])

    def figures(logarithms: Column) -> Constants:
        """The constants of the cost model, from the natural logarithms of the fitted constants."""
        return first.with_figures(dict(zip(FITTED, map(float, np.exp(logarithms)), strict=True)))

    def errors(unknown: Column) -> Column:
        """The weighted residuals whose squares the fit minimises.

        Args:
            unknown: the logarithms of the fitted constants; then the logarithm of the seconds by
                which the time of a kernel is longer if the host launches it than if a graph does.
        """
        logarithms, more = unknown[:-1], np.exp(unknown[-1])
        predicted = cost(counts, figures(logarithms), corrected=False)
        seconds = predicted.total + later * more
        error = np.log(seconds / data.seconds)
        common = np.bincount(data.problem, close * error) / closest
        between = DIFFERENCE * np.sqrt(close) * (error - common[data.problem])
        pull = PULL * (unknown - start)
        return np.concatenate([weight * error, between, pull])

    bounds = [
        [*(np.log(of[name]) if name in of else nothing for name in FITTED), nothing]
        for of, nothing in ((LEAST, -np.inf), (MOST, np.inf))
    ]
    start = np.append(guess, np.log(HOST_SECONDS))
    found = least_squares(
        errors,
        start,
        bounds=bounds,
        loss="soft_l1",
        f_scale=LARGE_ERROR,
        diff_step=STEP,
        max_nfev=MOST_ROUNDS,
    )
    return figures(found.x[:-1])


@dataclass(frozen=True)
class Calibration:
    """The constants of a device, fitted to measured times, and how well they choose plans.

    Args:
        constants: the constants, fitted to all measurements.
        held_out: how well constants that were fitted to three quarters of the sizes choose plans
            for the other quarter of the sizes.
        corrected: the same with the library's correction of predicted times, as `codegen.matmul`
            chooses.
        before: how well the constants that were used before this calibration choose plans for that
            quarter, without the correction.
    """

    constants: Constants
    held_out: Quality
    corrected: Quality
    before: Quality

    def __str__(self) -> str:
        return (
            f"sizes that were not fitted to: {self.held_out}\n"
            f"the same with the library's correction: {self.corrected}\n"
            f"the same with the constants used before: {self.before}"
        )


def calibrated(measured: Measurements, first: Constants, before: Constants) -> Calibration:
    """Fit the constants of a device, and judge the fit on sizes that were held out.

    Args:
        measured: the measured times of plans.
        first: constants of the device; values of constants named in `FITTED` are ignored, since the
            fit starts from the defaults of these constants.
        before: the constants that were used before this calibration, for comparison.
    """
    first = with_guesses(first)
    rest = held_out(measured.table, HELD_OUT)
    found = fit(measured.where(~rest), first)
    judged = measured.where(rest)
    final = rounded(fit(measured, first))
    corrected = quality(judged, found, corrected=True)
    return Calibration(final, quality(judged, found), corrected, quality(judged, before))


def with_guesses(constants: Constants) -> Constants:
    """A copy of a device's constants in which each constant of `FITTED` has its default value.

    The defaults are the first guesses from which a fit starts.
    """
    return constants.with_figures(
        {name: float(Constants.__dataclass_fields__[name].default) for name in FITTED}
    )


def rounded(constants: Constants) -> Constants:
    """A copy of constants whose fitted constants are rounded to four digits."""
    return constants.with_figures({n: float(f"{getattr(constants, n):.4g}") for n in FITTED})


def held_out(table: Table, parts: int) -> Flag:
    """For each row of `table`, whether its size is used to judge a fit (held out), not to fit.

    A random 1/`parts` of the different sizes (m, n, k) is held out, with all rows of these sizes.
    """
    _, size = np.unique(np.stack([table.m, table.n, table.k]), axis=1, return_inverse=True)
    numbers = np.random.default_rng(0).permutation(int(size.max()) + 1)
    return np.isin(size, numbers[::parts])


def _report(measured: Measurements, constants: Constants, first: Constants) -> None:
    """Print how well fitted constants choose plans.

    The constants are fitted to all measurements. Then they are fitted to each half of the problem
    sizes, and judged on the other half.
    """
    print("fitted on all:", quality(measured, constants))
    first_half = held_out(measured.table, 2)
    for seen in (first_half, ~first_half):
        found = fit(measured.where(seen), first)
        print("fitted on one half, on the other:", quality(measured.where(~seen), found))


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit a device's cost-model constants; print how well they choose plans; write the constants.

    Args:
        arguments: the command line without the program's name; None reads `sys.argv`.
    """
    parser = argparse.ArgumentParser(
        description="Fit the cost model's constants of a device to measured times, and print how "
        "well they choose plans."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="measured times")
    parser.add_argument(
        "--device", metavar="NAME",
        help="name of the device, as the driver reports it; default: the one that the files name",
    )  # fmt: skip
    parser.add_argument("--processors", type=int, help="number of SMs, for a device without a file")
    parser.add_argument("--write", action="store_true", help="write the device's file")
    asked = parser.parse_args(arguments)
    if find_spec("scipy") is None:
        sys.exit("scipy is missing; it comes with the extra bench: pip install 'coordgraph[bench]'")
    try:
        records = [read_sweep(path) for path in asked.files]
        device = device_of(records, asked.device)
        known = constants_of(device, asked.processors)
        measured = Measurements.of(records, known)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot read measured times: {error}")
    command = f"python -m passes.choosing.calibrate {' '.join(p.name for p in asked.files)}"
    sizes = np.stack([measured.table.m, measured.table.n, measured.table.k])
    if np.unique(sizes, axis=1).shape[1] < HELD_OUT:
        sys.exit(f"the files have fewer than {HELD_OUT} sizes (m, n, k); measure more of them")
    times = int(measured.usable.sum())
    source = f"{command}: {times} times, {date.today().isoformat()}"
    first = replace(with_guesses(known), estimated=False, source=source)
    found = rounded(fit(measured, first))
    _report(measured, found, first)
    if asked.write:
        path = file_of(device, FOLDER)
        path.write_text(found.to_json(), "utf-8")
        print(f"written: {path}")
    else:
        print(found.to_json(), end="")


if __name__ == "__main__":
    main()
