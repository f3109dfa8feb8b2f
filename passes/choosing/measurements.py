"""`Measurements`: measured times of plans, read from records of `python -m benchmarks sweep`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgraph import Gemm
from passes.choosing.constants import Constants
from passes.choosing.exclusions import chooseable
from passes.choosing.plan import Plan
from passes.choosing.plan_table import Column, Flag, Table, schedule_in
from passes.choosing.times import read_json

__all__ = ["BY_HOST", "Measurements", "is_plan", "known_plans", "problem_of", "read_sweep"]

BY_HOST = "host"
"""Value of the entry `launches` of a file of measured times whose kernels were launched by the
host, not by a CUDA graph."""


@dataclass(frozen=True)
class Measurements:
    """Measured times of plans: columns with one entry for each measurement.

    Args:
        table: the problem and the plan of each measurement.
        seconds: the measured seconds.
        problem: for each measurement, the index of its problem, from 0.
        usable: whether the measurement is used for the fit.
        by_host: whether the host launched the kernel again and again, one launch after another;
            else a CUDA graph did.
    """

    table: Table
    seconds: Column
    problem: NDArray[np.intp]
    usable: Flag
    by_host: Flag

    @classmethod
    def read(cls, paths: Sequence[Path], device: Constants) -> Measurements:
        """Read files of measured times, and check them as `of` does.

        Raises:
            OSError, ValueError: a file cannot be read, or has another format, or no file has times
                of known plans.
        """
        return cls.of([read_sweep(path) for path in paths], device)

    @classmethod
    def of(cls, files: Sequence[dict[str, Any]], device: Constants) -> Measurements:
        """The times in records of `python -m benchmarks sweep`.

        Args:
            files: the records, as `read_sweep` returns them.
            device: the cost model's constants of the device on which the times were measured.

        Raises:
            ValueError: no record has times of known plans.
        """
        plans = known_plans(row for file in files for row in file["rows"])
        found = [
            (run, problem_of(row), plans[row["plan"]], row["t"])
            for run, file in enumerate(files)
            for row in file["rows"]
            if row["plan"] in plans
        ]
        if not found:
            raise ValueError("there are no times of plans that the cost model knows")
        table = Table.of((gemm, plan) for _, gemm, plan, _ in found)
        host = [files[run].get("launches") == BY_HOST for run, *_ in found]
        # Clock rates differ between runs, so times of a problem are compared only within one run
        # (one file): a problem has a different id in every run.
        numbers: dict[tuple[int, Gemm], int] = {}
        of = np.array([numbers.setdefault(row[:2], len(numbers)) for row in found], np.intp)
        seconds = np.array([t for *_, t in found], np.float64)
        # Only plans that `codegen.matmul` may choose are used for the fit.
        return cls(table, seconds, of, chooseable(table, device), np.array(host, np.bool_))

    def where(self, chosen: Flag) -> Measurements:
        """The measurements for which `chosen` is true, with their problems renumbered from 0."""
        _, problem = np.unique(self.problem[chosen], return_inverse=True)
        table = self.table.where(chosen)
        usable, by_host = self.usable[chosen], self.by_host[chosen]
        return Measurements(table, self.seconds[chosen], problem, usable, by_host)

    @property
    def problems(self) -> int:
        """Number of problems; a problem that is measured in several files counts once per file."""
        return int(self.problem.max()) + 1

    def best(self, values: Column) -> Column:
        """For each problem, the smallest entry of `values` that belongs to it."""
        found = np.full(self.problems, np.inf)
        np.minimum.at(found, self.problem, values)
        return found


def read_sweep(path: Path) -> dict[str, Any]:
    """The JSON object in a file of measured times, whose rows are checked.

    Raises:
        OSError, ValueError: the file cannot be read, or has another format.
    """
    found = read_json(path)
    rows = found.get("rows") if isinstance(found, dict) else None
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise ValueError(
            f"{path} has no rows with m, n, k, layout, plan and t; give a file that "
            "python -m benchmarks sweep wrote"
        )
    return found


def _is_row(row: Any) -> bool:
    """Whether a value is a row of measured times: a problem, a plan and seconds above 0."""
    names = {"m", "n", "k", "layout", "plan", "t"}
    return (
        isinstance(row, dict)
        and row.keys() >= names
        and isinstance(row["t"], int | float)
        and row["t"] > 0
    )


def problem_of(row: dict[str, Any]) -> Gemm:
    """The problem of a row in a file of measured times.

    Args:
        row: a dict with `m`, `n`, `k`, `layout` (such as `nt`: B is given as its transpose) and
            optionally `dtype` (default `bf16`).
    """
    turned_a, turned_b = (side == "t" for side in row["layout"])
    m, n, k = (int(row[axis]) for axis in "mnk")
    return Gemm(row.get("dtype", "bf16"), m=m, n=n, k=k, transpose_a=turned_a, transpose_b=turned_b)


def known_plans(rows: Iterable[dict[str, Any]]) -> dict[str, Plan]:
    """The measured plans of which the cost model can predict the time, by the text of the plan.

    Args:
        rows: rows of measured times. The entry `plan` of a row is the text of a plan, or the name
            of another library; rows of other libraries are left out.
    """
    found: dict[str, Plan] = {}
    for text in dict.fromkeys(row["plan"] for row in rows if is_plan(row)):
        plan = Plan.parse(text)
        if schedule_in(plan) is not None:
            found[text] = plan
    return found


def is_plan(row: dict[str, Any]) -> bool:
    """Whether the row's entry `plan` is a plan of this library, not the name of another library."""
    return " " in row["plan"]
