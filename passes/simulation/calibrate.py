"""Fit the simulation to measurements: `python -m passes.simulation.calibrate FILE… --write PATH`.

A file is the output of `python -m benchmarks sweep`: measured times of plans. The constants of the
cost model, fitted to the same measurements by `passes.choosing.calibrate`, are the first guesses.
Then the constants that the simulation uses in another way than the cost model are fitted again,
together with the constants that only the simulation has. The logarithms of times are fitted by
least squares, with a linear loss for large errors. As in the cost model's fit, differences between
the errors of one problem's plans are penalised too, and a weak penalty keeps constants near their
first guesses. The fit needs scipy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgraph import Gemm
from passes.choosing.calibrate import CLOSE, DIFFERENCE, LARGE_ERROR, PULL
from passes.choosing.constants import DETAILS, constants_of
from passes.choosing.measurements import known_plans, problem_of
from passes.choosing.times import read_json
from passes.simulation.launching import Launch, plan_launch
from passes.simulation.machine import OF_MACHINE, Machine, with_figures

__all__ = ["FIGURES", "Measured", "figures_of", "fit"]

Column = NDArray[np.float64]
OF_CONSTANTS = (
    *("clock", "step_seconds", "reach_seconds", "turn_seconds", "copy_seconds"),
    *("ingest_rate", "ask_rate", "paired", "beside", "l2_rate", "merged", "dram_rate"),
    *("pull_rate", "l2_bytes", "launch_seconds", "cluster_seconds", "fill_seconds"),
    *("tile_seconds", "slot_rate", "store_rate", "handover_seconds"),
    *("send_seconds", "send_rate", "receive_rate", "scatter_seconds", "scatter_rate"),
    *("sum_seconds", "power_flops", "sharpness"),
)
"""Constants of the cost model that are fitted again, because the simulation uses them in another
way than the cost model does."""
FIGURES = (*OF_CONSTANTS, *OF_MACHINE)
STEP, MOST_ROUNDS = 0.01, 6
"""STEP: relative step of the fit's numerical derivatives; simulated times change in jumps, so
smaller steps are less reliable. MOST_ROUNDS: largest number of steps of the fit."""


@dataclass(frozen=True)
class Measured:
    """Measured launches, to which the constants of a `Machine` (model of a GPU) are fitted.

    Args:
        launches: the launches that were measured.
        seconds: the measured seconds of each launch.
        problem: for each launch the number of its problem, from 0; plans of one problem are
            compared.
    """

    launches: tuple[Launch, ...]
    seconds: Column
    problem: NDArray[np.intp]

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]], machine: Machine) -> Measured:
        """The launches in rows of a results file, except rows with plans of other libraries."""
        plans = known_plans(rows)
        rows = [row for row in rows if row["plan"] in plans]
        # Launches of one kernel follow each other, so that its graph is compiled once.
        rows = sorted(rows, key=lambda row: plans[row["plan"]].kernel)
        numbers: dict[Gemm, int] = {}
        problems = [problem_of(row) for row in rows]
        return cls(
            tuple(
                plan_launch(gemm, plans[row["plan"]], machine)
                for gemm, row in zip(problems, rows, strict=True)
            ),
            np.array([row["t"] for row in rows], np.float64),
            np.array([numbers.setdefault(gemm, len(numbers)) for gemm in problems], np.intp),
        )

    def predicted(self, machine: Machine) -> Column:
        """The simulated seconds of each launch."""
        return np.array([launch.run(machine).makespan for launch in self.launches])


def figures_of(machine: Machine) -> dict[str, float]:
    """The values of a machine's constants that `fit` changes, by name, in the order of `FIGURES`.

    Raises:
        ValueError: the machine has no constants of the cost model.
    """
    if machine.constants is None:
        raise ValueError(
            f"{machine.name} has no constants of the cost model to fit; give a machine whose field "
            "`constants` is set"
        )
    of_constants = {name: getattr(machine.constants, name) for name in OF_CONSTANTS}
    return {**of_constants, **{name: getattr(machine, name) for name in OF_MACHINE}}


def fit(measured: Measured, first: Machine, rounds: int = MOST_ROUNDS) -> Machine:
    """Fit the constants of a simulated Hopper GPU to measured launches.

    Args:
        measured: the launches and their measured times.
        first: the machine with first guesses of the constants.
        rounds: largest number of steps; each simulates every launch once for each constant.

    Raises:
        ImportError: scipy is not installed.
        ValueError: the machine has no constants of the cost model.
    """
    from scipy.optimize import least_squares

    guess = np.log([*figures_of(first).values()])
    base = first.constants
    assert base is not None
    best = np.full(int(measured.problem.max()) + 1, np.inf)
    np.minimum.at(best, measured.problem, measured.seconds)
    close = np.exp(-(measured.seconds / best[measured.problem] - 1) / CLOSE)
    closest = np.bincount(measured.problem, close)

    def machine(logarithms: Column) -> Machine:
        values = map(float, np.exp(logarithms))
        return with_figures(base, dict(zip(FIGURES, values, strict=True)))

    def errors(logarithms: Column) -> Column:
        error = np.log(measured.predicted(machine(logarithms)) / measured.seconds)
        common = np.bincount(measured.problem, close * error) / closest
        between = DIFFERENCE * np.sqrt(close) * (error - common[measured.problem])
        return np.concatenate([error, between, PULL * (logarithms - guess)])

    found = least_squares(
        errors, guess, loss="soft_l1", f_scale=LARGE_ERROR, diff_step=STEP, max_nfev=rounds
    )
    return machine(found.x)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the constants of a simulated GPU to result files; write or print them as JSON.

    Args:
        arguments: the command line without the program's name; None reads `sys.argv`.
    """
    parser = argparse.ArgumentParser(description="Fit a simulated machine to measured times.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="records of sweeps")
    parser.add_argument("--device", default="NVIDIA H200", help="name that the driver reports")
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the figures to a file")
    asked = parser.parse_args(arguments)
    first = Machine.fitted(constants_of(asked.device).with_figures(DETAILS))
    rows = [row for path in asked.files for row in read_json(path)["rows"]]
    found = figures_of(fit(Measured.of(rows, first), first))
    text = json.dumps({name: float(f"{value:.4g}") for name, value in found.items()}, indent=1)
    if asked.write:
        asked.write.write_text(text + "\n", "utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
