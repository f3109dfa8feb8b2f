"""Compare simulated times with measured ones, and with those of the cost model.

    python -m benchmarks simulated benchmarks/results/sweep-corpus-h200-2026-11-23.json.gz
    python -m benchmarks simulated FILE --plans 5 --all --json out.json
    python -m benchmarks simulated FILE --fit            # fits to one half, judges on the other

The sizes of a record of `benchmarks sweep` are divided into two halves at random, with a fixed
seed. The simulated H200 was fitted to times of the first half only (see
`passes.simulation.calibrate`), so it is judged on the second half. So is the cost model, with
constants that were fitted without the sizes of the second half, and, for comparison, with its
published constants, which were fitted to other measurements of the same sizes.

The first table is about the fastest plans of each size. The table has the median and the 90th
percentile of |log(predicted / measured)|; the loss, which is the time of the plan that is predicted
to be the fastest, divided by the time of the fastest plan, less 1 (geometric mean); and the share
of pairs of plans of one size, with times more than 1 % apart, whose order is predicted as measured.
Further tables have the same columns for groups of plans: by kind of schedule, time, k and tile
order.

No GPU is needed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as RichTable

from benchmarks.options import command_line
from benchmarks.reports.console import make_console
from benchmarks.reports.record import load, write
from passes.choosing import Plan, constants_of
from passes.choosing.measurements import is_plan, known_plans, problem_of
from passes.choosing.model import cost
from passes.choosing.plan_table import Table
from passes.simulation.calibrate import Measured, fit
from passes.simulation.launching import plan_launch
from passes.simulation.machine import Machine, fitted_constants, fitted_machine

__all__ = ["Accuracy", "accuracy", "halves", "main"]

Row = dict[str, Any]
Column = NDArray[np.float64]
APART = 0.01
"""The predicted order of two plans is not judged if their measured times differ by less than this
fraction, because the difference may be noise."""
LEAST = 12
"""Groups of fewer measured times than this number are left out of the printed tables."""
SIMULATION, MODEL, PUBLISHED = "simulation", "cost model", "cost model, all sizes"


@dataclass(frozen=True)
class Accuracy:
    """How well predicted times agree with measured ones.

    Args:
        rows: number of launches.
        problems: number of problems that the launches compute.
        median, most: median and 90th percentile of |log(predicted / measured)|.
        bias: median of log(predicted / measured).
        loss: the time of the plan that is predicted to be the fastest, divided by the time of the
            fastest plan, less 1; the geometric mean over problems with several plans.
        worst: the largest loss of one problem.
        ranked: fraction of pairs of plans of one problem that are predicted in the measured order.
        pairs: number of the pairs of plans from which `ranked` is computed.
    """

    rows: int
    problems: int
    median: float
    most: float
    bias: float
    loss: float
    worst: float
    ranked: float
    pairs: int


def size_of(row: Row) -> tuple[int, int, int]:
    """m, n and k of the launch that a row of results describes."""
    return row["m"], row["n"], row["k"]


def halves(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Divide result rows at random into two halves; all rows of one (m, n, k) are in one half."""
    sizes = sorted({size_of(row) for row in rows})
    order = np.random.default_rng(0).permutation(len(sizes))
    first = {sizes[i] for i in order[::2]}
    return [r for r in rows if size_of(r) in first], [r for r in rows if size_of(r) not in first]


def fastest(rows: Sequence[Row], plans: int) -> list[Row]:
    """The rows of the plans with the least measured times of each problem.

    The rows are sorted by the kernels of their plans, so that rows of one kernel are adjacent.

    Args:
        rows: rows of coordgraph's plans.
        plans: largest number of rows to return for each problem.
    """
    by_problem: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        by_problem.setdefault((*size_of(row), row["layout"]), []).append(row)
    found = [r for each in by_problem.values() for r in sorted(each, key=_seconds)[:plans]]
    return sorted(found, key=lambda row: Plan.parse(row["plan"]).kernel)


def _seconds(row: Row) -> float:
    return row["t"]


def accuracy(rows: Sequence[Row], predicted: Column) -> Accuracy:
    """Compare the predicted times of launches (seconds) with the measured times in their rows."""
    measured = np.array([row["t"] for row in rows])
    errors = np.log(predicted / measured)
    problems: dict[tuple[Any, ...], list[int]] = {}
    for i, row in enumerate(rows):
        problems.setdefault((*size_of(row), row["layout"]), []).append(i)
    losses, right = [0.0], list[bool]()
    for places in (p for p in problems.values() if len(p) > 1):
        chosen = min(places, key=lambda i: predicted[i])
        losses.append(float(np.log(measured[chosen] / min(measured[places]))))
        for i, j in combinations(places, 2):
            if abs(np.log(measured[i] / measured[j])) > APART:
                right.append(bool((predicted[i] < predicted[j]) == (measured[i] < measured[j])))
    several = max(len(losses) - 1, 1)
    return Accuracy(
        rows=len(rows),
        problems=len(problems),
        median=float(np.median(abs(errors))),
        most=float(np.quantile(abs(errors), 0.9)),
        bias=float(np.median(errors)),
        loss=float(np.exp(sum(losses) / several) - 1),
        worst=float(np.exp(max(losses)) - 1),
        ranked=sum(right) / max(len(right), 1),
        pairs=len(right),
    )


def modelled(rows: Sequence[Row], plans: dict[str, Plan], machine: Machine) -> dict[str, Column]:
    """Times in seconds that the cost model predicts for each row, by the name of its constants.

    `MODEL`: constants that were fitted to half of the sizes; `PUBLISHED`: fitted to all sizes.
    """
    table = Table.of((problem_of(row), plans[row["plan"]]) for row in rows)
    half = fitted_constants(machine.name)
    return {
        MODEL: cost(table, half).total,
        PUBLISHED: cost(table, constants_of(machine.name)).total,
    }


def simulated(
    rows: Sequence[Row], plans: dict[str, Plan], machine: Machine, console: Console
) -> Column:
    """The simulated time, in seconds, of the launch that each row of results describes."""
    found: list[float] = []
    with Progress(console=console, transient=True) as progress:
        for row in progress.track(rows, description="simulating"):
            launch = plan_launch(problem_of(row), plans[row["plan"]], machine)
            found.append(launch.run(machine).makespan)
    return np.array(found)


GROUPS: dict[str, Callable[[Row, Plan], str]] = {
    "schedule": lambda row, plan: plan.family,
    "cluster": lambda row, plan: "x".join(map(str, plan.cluster)),
    "consumers": lambda row, plan: plan.consumers,
    "time": lambda row, plan: f"up to {2 ** int(np.ceil(np.log2(1e6 * row['t'])))} µs",
    "k": lambda row, plan: f"up to {2 ** int(np.ceil(np.log2(row['k'])))}",
}
"""For each property that launches are grouped by, a function that returns its value as text."""


def by_group(
    rows: Sequence[Row], plans: dict[str, Plan], predicted: dict[str, Column]
) -> dict[str, dict[str, dict[str, Accuracy]]]:
    """The accuracy of predicted times for each group of launches with an equal property.

    The keys of the nested result are: the name of the property (a key of `GROUPS`), its value, and
    the way of predicting (a key of `predicted`). Groups of fewer than `LEAST` launches are
    left out.
    """
    found: dict[str, dict[str, dict[str, Accuracy]]] = {}
    for name, value in GROUPS.items():
        places: dict[str, list[int]] = {}
        for i, row in enumerate(rows):
            places.setdefault(value(row, plans[row["plan"]]), []).append(i)
        for key in sorted(places, key=_natural):
            if len(at := places[key]) >= LEAST:
                part = [rows[i] for i in at]
                found.setdefault(name, {})[key] = {
                    way: accuracy(part, times[at]) for way, times in predicted.items()
                }
    return found


def _natural(text: str) -> tuple[int, str]:
    """A sort key by the first number in a text, then by the text."""
    number = re.search(r"\d+", text)
    return (int(number[0]) if number else 0, text)


def table_of(title: str, found: dict[str, dict[str, Accuracy]], ways: Sequence[str]) -> RichTable:
    """A table of how well predicted times agree with measured ones.

    For each group of launches it has a line for each way of predicting (simulation, cost model).
    """
    made = RichTable(title=title, box=None, pad_edge=False)
    heads = ("", "by", "launches", "median", "90 %", "bias", "loss", "worst", "pairs ranked")
    for head in heads:
        made.add_column(head, justify="left" if head in ("", "by") else "right")
    for key, of_way in found.items():
        for place, way in enumerate(ways):
            a = of_way[way]
            made.add_row(
                key if place == 0 else "",
                way,
                str(a.rows) if place == 0 else "",
                f"{a.median:.1%}",
                f"{a.most:.1%}",
                f"{a.bias:+.1%}",
                f"{a.loss:.2%}",
                f"{a.worst:.1%}",
                f"{a.ranked:.1%} of {a.pairs}",
            )
    return made


def better(groups: dict[str, dict[str, dict[str, Accuracy]]]) -> list[str]:
    """Two sentences for the report, one for the simulation and one for the cost model.

    The sentence about the simulation lists the groups of launches for which the median error of the
    simulation is less than 0.9 times that of the cost model; the other sentence lists those for
    which the reverse is true. `groups` is the result of `by_group`.
    """
    found: list[str] = []
    for ways in ((SIMULATION, MODEL), (MODEL, SIMULATION)):
        where = [
            f"{name} {key} ({of[ways[0]].median:.1%} against {of[ways[1]].median:.1%})"
            for name, values in groups.items()
            for key, of in values.items()
            if of[ways[0]].median < 0.9 * of[ways[1]].median
        ]
        found.append(f"the {ways[0]} is better by a tenth: {'; '.join(where) or 'nowhere'}")
    return found


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks simulated`."""
    made = command_line("simulated", __doc__)
    made.add_argument("files", nargs="+", type=Path, metavar="FILE", help="records of sweeps")
    made.add_argument("--device", default="NVIDIA H200", help="the GPU of the records")
    made.add_argument(
        "--plans", type=int, default=3, metavar="N",
        help="judge on the N fastest plans of each problem; default 3",
    )  # fmt: skip
    made.add_argument("--all", action="store_true", help="judge on both halves of the sizes")
    made.add_argument(
        "--fit", action="store_true", help="fit the machine to the first half again (minutes)"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write a record")
    return made


def main() -> None:
    """Run `python -m benchmarks simulated`."""
    made = parser()
    options = made.parse_args()
    if options.plans < 1:
        made.error("--plans must be positive")
    rows: list[Row] = []
    for path in options.files:
        try:
            rows += [row for row in load(path)["rows"] if is_plan(row)]
        except (KeyError, OSError, ValueError) as error:
            sys.exit(f"{path} cannot be read as a record of a sweep: {error}")
    plans = known_plans(rows)
    rows = [row for row in rows if row["plan"] in plans]
    if not rows:
        sys.exit("no file has a row of a plan of coordgraph; give records of `benchmarks sweep`")
    console, machine = make_console(), fitted_machine(options.device)
    first, second = halves(rows)
    if options.fit:
        base = Machine.fitted(fitted_constants(options.device))
        machine = fit(Measured.of(first, base), base)
    judged = fastest(rows if options.all else second, options.plans)
    predicted = {SIMULATION: simulated(judged, plans, machine, console)}
    predicted |= modelled(judged, plans, machine)
    report(judged, plans, predicted, options, console)


def report(
    rows: Sequence[Row],
    plans: dict[str, Plan],
    predicted: dict[str, Column],
    options: argparse.Namespace,
    console: Console,
) -> None:
    """Print how accurate predicted times are; write the record if the option --json is given."""
    whole = {way: accuracy(rows, times) for way, times in predicted.items()}
    title = f"{options.plans} fastest plans of {whole[SIMULATION].problems} problems"
    console.print(table_of(title, {"all": whole}, [*whole]), "")
    groups = by_group(rows, plans, predicted)
    for name, found in groups.items():
        console.print(table_of(f"by {name}", found, [SIMULATION, MODEL]), "")
    for sentence in better(groups):
        console.print(sentence, highlight=False, soft_wrap=True)
    if options.json:
        record = {
            "kind": "simulated",
            "device": options.device,
            "of": [path.name for path in options.files],
            "all": {way: asdict(a) for way, a in whole.items()},
            "groups": {
                name: {key: {w: asdict(a) for w, a in of.items()} for key, of in values.items()}
                for name, values in groups.items()
            },
            "rows": [
                {**row, "predicted": {way: times[i] for way, times in predicted.items()}}
                for i, row in enumerate(rows)
            ],
        }
        write(options.json, record)
        console.print(f"written to {options.json}")


if __name__ == "__main__":
    main()
