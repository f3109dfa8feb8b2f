"""Learn the correction of predicted times: `python -m passes.choosing.learn_correction FILE…`.

A file has measured times, as for `passes.choosing.calibrate`; files of several devices are learned
from together. The errors are those of times that are predicted with the library's constants of the
file's device. So `passes.choosing.calibrate --write` comes first, and after each new fit of
constants the correction must be learned again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from passes.choosing.boosting import boosted
from passes.choosing.constants import FOLDER, Constants, file_of
from passes.choosing.correction import FILE, Correction, Tree, correctable, features
from passes.choosing.measurements import Measurements, read_sweep
from passes.choosing.model import Counts, cost, shared_terms
from passes.choosing.plan_table import Column, Flag
from passes.choosing.times import device_of

__all__ = ["Errors", "losses", "main", "predicted_from_others"]

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
        residuals: log(measured seconds / predicted seconds), minus the weighted mean of this
            logarithm over the plans of the same problem: an error that all plans of a problem have
            changes no choice.
        weights: the weight of each plan's squared error.
        predicted: the predicted seconds, without a correction.
        seconds: the measured seconds.
        problem: for each measurement, the index of its problem, from 0.
        extents: m, n and k of each measurement's problem (3 rows).
    """

    columns: dict[str, Column]
    residuals: Column
    weights: Column
    predicted: Column
    seconds: Column
    problem: NDArray[np.intp]
    extents: Column

    @classmethod
    def of(cls, path: Path) -> Errors:
        """The errors of a file's measured times, without plans that `codegen.matmul` never chooses.

        Raises:
            OSError, ValueError: the file cannot be read, has another format, has no other plans, or
                is of a device of which the library has no constants.
        """
        record = read_sweep(path)
        file = file_of(device_of([record], None), FOLDER)
        if not file.exists():
            raise ValueError(
                f"{path} is of a device without the file {file.name}; write that file first, by "
                "python -m passes.choosing.calibrate"
            )
        # `constants_of` would prefer the user's own constants.
        device = Constants.from_json(file.read_text("utf-8"))
        data = Measurements.of([record], device)
        usable = data.usable & correctable(data.table)
        if not usable.any():
            raise ValueError(f"{path} has no times of plans that codegen.matmul may choose")
        data = data.where(usable)
        counts = Counts(data.table, device)
        found = cost(counts, device, corrected=False)
        weights = np.exp(-(data.seconds / data.best(data.seconds)[data.problem] - 1) / CLOSE)
        errors = np.log(data.seconds / found.total)
        common = np.bincount(data.problem, weights * errors) / np.bincount(data.problem, weights)
        table = data.table
        return cls(
            features(table, counts.shape, counts.work, shared_terms(found), found.total),
            errors - common[data.problem],
            weights,
            found.total,
            data.seconds,
            data.problem,
            np.stack([table.m, table.n, table.k]),
        )

    @classmethod
    def joined(cls, parts: Sequence[Errors]) -> Errors:
        """The errors of several files; problems of different files are different problems."""
        first = np.cumsum([0, *(int(part.problem.max()) + 1 for part in parts)])[:-1]
        problems = [part.problem + start for part, start in zip(parts, first, strict=True)]
        columns = {
            name: np.concatenate([part.columns[name] for part in parts])
            for name in parts[0].columns
        }
        return cls(
            columns,
            np.concatenate([part.residuals for part in parts]),
            np.concatenate([part.weights for part in parts]),
            np.concatenate([part.predicted for part in parts]),
            np.concatenate([part.seconds for part in parts]),
            np.concatenate(problems),
            np.concatenate([part.extents for part in parts], axis=1),
        )

    def learned(self, rows: Flag | slice = slice(None)) -> tuple[Tree, ...]:
        """The trees that are learned from some of the measurements."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return boosted(columns, self.residuals[rows], self.weights[rows])


def losses(errors: Errors, predicted: Column) -> Column:
    """For each problem, log(seconds of the chosen plan / seconds of the fastest measured plan).

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


def predicted_from_others(errors: Errors) -> Column:
    """The predicted seconds of each plan, with a correction learned from other sizes only."""
    _, size = np.unique(errors.extents, axis=1, return_inverse=True)
    size = size.ravel()
    part = np.random.default_rng(0).permutation(int(size.max()) + 1)[size] % PARTS
    found = errors.predicted.copy()
    for number in range(PARTS):
        rows = part == number
        trees = errors.learned(~rows)
        if trees and rows.any():
            columns = {name: column[rows] for name, column in errors.columns.items()}
            found[rows] *= np.exp(Correction.of(trees).logarithms(columns))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print how well corrected times choose plans; learn and write the correction if asked to.

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
        errors = Errors.joined([Errors.of(path) for path in asked.files])
    except (OSError, ValueError) as error:
        sys.exit(f"cannot learn from these files: {error}")
    problems = int(errors.problem.max()) + 1
    print(f"{len(errors.seconds)} times, {problems} problems. Chosen plans take longer than the")
    print("fastest measured ones by (geometric mean):")
    corrected = predicted_from_others(errors)
    for name, predicted in (("without", errors.predicted), ("with", corrected)):
        loss = np.expm1(losses(errors, predicted).mean())
        print(f"  {loss:.2%} {name} a correction learned from other sizes")
    if asked.write:
        FILE.write_text("".join(f"{tree}\n" for tree in errors.learned()), "utf-8")
        print(f"written: {FILE}")


if __name__ == "__main__":
    main()
