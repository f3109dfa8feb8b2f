"""Learn the correction of predicted times: `python -m passes.choosing.learn_correction FILE…`.

A file has measured times, as for `passes.choosing.calibrate`; files of several devices are learned
from together. The errors are those of times that are predicted with the constants of the file's
device, so the constants are fitted first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from passes.choosing.boosting import boosted
from passes.choosing.calibrate import Measurements
from passes.choosing.constants import constants_of
from passes.choosing.correction import FILE, Correction, correctable, features
from passes.choosing.model import Counts, cost, terms_of
from passes.choosing.plan_table import Column
from passes.choosing.times import device_of, read_json

__all__ = ["Errors", "losses"]

CLOSE = 0.08
"""A plan has the weight exp(-(t / best - 1) / CLOSE), where t is its measured time, and best is the
shortest measured time of any plan of the same problem: the choice is among the fastest plans."""
PARTS = 5
"""Number of parts into which the sizes are divided to judge what is learned: for each part, the
correction is learned from the other parts."""


@dataclass(frozen=True)
class Errors:
    """The errors of predicted times, with an entry for each measurement.

    Args:
        columns: the columns on which an error may depend; see `features`.
        errors: log(measured seconds / predicted seconds), minus the weighted mean of this logarithm
            over the plans of the same problem: an error that all plans of a problem have changes no
            choice.
        weights: the weight of each plan's squared error.
        predicted: the predicted seconds, without a correction.
        seconds: the measured seconds.
        problem: for each measurement, the index of its problem, from 0.
        size: for each measurement, the index of its problem's size (m, n, k), from 0.
    """

    columns: dict[str, Column]
    errors: Column
    weights: Column
    predicted: Column
    seconds: Column
    problem: NDArray[np.intp]
    size: NDArray[np.intp]

    @classmethod
    def of(cls, files: Iterable[Path]) -> Errors:
        """The errors of all measurements in files of measured times.

        Raises:
            OSError, ValueError, KeyError: a file cannot be read, or has another format.
        """
        parts = [cls._of_file(path) for path in files]
        problems = np.cumsum([0, *(int(part.problem.max()) + 1 for part in parts)])
        extents = np.concatenate([np.stack([part.columns[x] for x in "mnk"]) for part in parts], 1)
        _, size = np.unique(extents, axis=1, return_inverse=True)
        return cls(
            {
                name: np.concatenate([part.columns[name] for part in parts])
                for name in parts[0].columns
                if name not in "mnk"
            },
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("errors", "weights", "predicted", "seconds")
            ),
            np.concatenate([part.problem + first for part, first in zip(parts, problems)]),
            size.ravel(),
        )

    @classmethod
    def _of_file(cls, path: Path) -> Errors:
        """The errors in one file; `columns` also has `m`, `n` and `k`, and `size` is all 0."""
        device = constants_of(device_of([read_json(path)], None))
        data = Measurements.read([path], device)
        data = data.where(data.usable & correctable(data.table))
        counts = Counts(data.table, device)
        found = cost(counts, device, corrected=False)
        weights = np.exp(-(data.seconds / data.best(data.seconds)[data.problem] - 1) / CLOSE)
        errors = np.log(data.seconds / found.total)
        common = np.bincount(data.problem, weights * errors) / np.bincount(data.problem, weights)
        table = data.table
        columns = features(table, counts.shape, counts.work, terms_of(found), found.total)
        return cls(
            {**columns, "m": table.m, "n": table.n, "k": table.k},
            errors - common[data.problem],
            weights,
            found.total,
            data.seconds,
            data.problem,
            np.zeros(len(data.seconds), np.intp),
        )

    def learned(self, rows: NDArray[np.bool_]) -> tuple[str, ...]:
        """The trees that are learned from some of the measurements."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return boosted(columns, self.errors[rows], self.weights[rows])


def losses(errors: Errors, predicted: Column) -> Column:
    """For each problem, log(t(chosen plan) / t(fastest measured plan)).

    Args:
        errors: the measurements.
        predicted: the predicted seconds of each; the plan with the smallest one is chosen.
    """
    best = np.full(int(errors.problem.max()) + 1, np.inf)
    np.minimum.at(best, errors.problem, errors.seconds)
    order = np.lexsort((predicted, errors.problem))
    problem = errors.problem[order]
    first = order[np.r_[True, problem[1:] != problem[:-1]]]
    return np.log(errors.seconds[first] / best)


def judged(errors: Errors) -> Column:
    """The predicted seconds of each plan, with a correction learned from other sizes only."""
    part = np.random.default_rng(0).permutation(int(errors.size.max()) + 1)[errors.size] % PARTS
    found = errors.predicted.copy()
    for number in range(PARTS):
        rows = part == number
        correction = Correction.of(errors.learned(~rows))
        columns = {name: column[rows] for name, column in errors.columns.items()}
        found[rows] *= np.exp(correction.logarithms(columns))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Learn the correction; print how well corrected times choose plans; write the correction.

    Args:
        arguments: the command line without the program's name; None reads `sys.argv`.
    """
    parser = argparse.ArgumentParser(
        description="Learn the correction of predicted times from measured times, and print how "
        "well corrected times choose plans for sizes that were not learned from."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="measured times")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    asked = parser.parse_args(arguments)
    try:
        errors = Errors.of(asked.files)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"cannot read measured times: {error}")
    problems = int(errors.problem.max()) + 1
    print(f"{len(errors.seconds)} times, {problems} problems. Chosen plans take longer than the")
    print("fastest measured ones by (geometric mean):")
    for name, predicted in (("without", errors.predicted), ("with", judged(errors))):
        loss = np.expm1(losses(errors, predicted).mean())
        print(f"  {loss:.2%} {name} a correction learned from other sizes")
    trees = errors.learned(np.ones(len(errors.seconds), np.bool_))
    if asked.write:
        FILE.write_text("".join(f"{tree}\n" for tree in trees), "utf-8")
        print(f"written: {FILE}")


if __name__ == "__main__":
    main()
