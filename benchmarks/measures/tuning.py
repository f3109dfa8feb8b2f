"""Evaluate the plan search of `tune=True` on recorded times of a sweep; needs no GPU.

    python -m benchmarks tuning benchmarks/results/sweep-dense-*.json.gz
    python -m benchmarks tuning benchmarks/results/fit/dense-h200-*.json.gz --most 4 --least 10
    python -m benchmarks tuning benchmarks/results/fit/dense-h200-*.json.gz --fit

A file is a record of `benchmarks sweep`. On each problem the search may measure only the plans that
were recorded, and gets their recorded times. The table has the regret of three ways to choose a
plan: the time of the plan that they find, divided by that of the fastest recorded plan, less 1.
`model` measures nothing and takes the plan with the best predicted time. `first 12` measures the
first 12 recorded plans of the cost model's ranking, which lists only a few plans with the same tile
and cluster. `search` is `passes.choosing.search`. Means are geometric.

Problems with few recorded plans say little, because the search measures nearly all of them; they
are left out (--least). To record many plans of each problem, on a GPU:

    python -m benchmarks sweep --random 12 --likely 60 --families 1.6 --explore 40 --layouts nt

--fit prints the constants of `passes.choosing.similarity` with the largest likelihood: standard
deviations of the parts of the cost model's error that plans with the same tile, cluster or schedule
have in common.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.table import Table as RichTable

from benchmarks.options import add_device, command_line, require_positive
from benchmarks.reports.console import make_console
from benchmarks.reports.record import key_of, write
from benchmarks.reports.summary import geometric_mean
from passes.choosing import Plan, constants_of, rank
from passes.choosing.constants import Constants
from passes.choosing.exclusions import chooseable
from passes.choosing.measurements import known_plans, problem_of, read_sweep
from passes.choosing.model import cost
from passes.choosing.plan_table import Table
from passes.choosing.search import MOST_MEASURED, search
from passes.choosing.similarity import FITTED, Scales, Similarity
from passes.choosing.times import device_of

__all__ = ["Recorded", "Replay", "fit", "main", "record_of", "recorded", "replay", "table_of"]

LISTED, LEAST, MOST_RANKED = 12, 40, 400
"""LISTED: number of plans that the method `first 12` measures. LEAST: default of --least, the
smallest number of recorded plans of a problem. MOST_RANKED: length of the cost model's ranking from
which `first 12` takes the first plans that were recorded."""
ERRORS, LEAST_NOISE, FARTHEST = 1.5, 1e-3, 1e4
"""ERRORS: --fit leaves out plans that take more than this many times the fastest of their problem.
LEAST_NOISE: the least standard deviation of measurements in a fit.
FARTHEST: constants that differ from `FITTED` by more than this factor have the likelihood of those
that differ by this factor. Without this limit, a line search may try numbers whose squares
overflow."""


@dataclass(frozen=True)
class Recorded:
    """The recorded plans of a problem.

    Args:
        problem: m, n, k and the layout, as text.
        table: the plans as a table with one row per plan, which the cost model takes.
        plans: the same plans as objects, in the same order.
        seconds: the recorded seconds of each plan.
        listed: the recorded plans that the cost model ranks first, at most LISTED of them.
    """

    problem: str
    table: Table
    plans: tuple[Plan, ...]
    seconds: NDArray[np.float64]
    listed: tuple[Plan, ...]


@dataclass(frozen=True)
class Replay:
    """The plans that the cost model, its first ranked plans and the search find on one problem.

    Args:
        problem: m, n, k and the layout, as text.
        plans: number of recorded plans.
        measured: number of plans that the search measured.
        best_plan, found_plan: the fastest recorded plan, and the one that the search found.
        model, listed, search: the time of a plan, divided by that of the fastest recorded plan. The
            plan is the cost model's choice (`model`), the fastest of the first recorded plans of
            its ranking (`listed`), or the plan that the search found (`search`).
    """

    problem: str
    plans: int
    measured: int
    best_plan: str
    found_plan: str
    model: float
    listed: float
    search: float


WAYS = ("model", "listed", "search")


def recorded(rows: Iterable[dict[str, Any]], device: Constants, least: int) -> list[Recorded]:
    """The problems of a record with at least `least` plans whose times the cost model predicts."""
    problems: dict[Any, dict[str, dict[str, Any]]] = {}
    known = known_plans(rows := list(rows))
    for row in rows:
        if row["plan"] in known:
            problems.setdefault(key_of(row), {}).setdefault(row["plan"], row)
    found: list[Recorded] = []
    for (m, n, k, layout), by_plan in problems.items():
        if len(by_plan) < least:
            continue
        plans = tuple(known[text] for text in by_plan)
        gemm = problem_of(next(iter(by_plan.values())))
        table = Table.of((gemm, plan) for plan in plans)
        seconds = np.array([row["t"] for row in by_plan.values()], np.float64)
        # Rank more than LISTED plans: plans that became candidates after the times were recorded
        # have no times and are left out.
        best = [one.plan for one in rank(gemm, device, MOST_RANKED) if one.plan in plans]
        listed = tuple(best[:LISTED])
        found.append(Recorded(f"{m}x{n}x{k} {layout}", table, plans, seconds, listed))
    return found


def replay(one: Recorded, device: Constants, most: int) -> Replay:
    """Run the plan search of `tune=True` on one problem, with recorded times as measurements.

    The search measures at most `most` plans.
    """
    times = dict(zip(one.plans, map(float, one.seconds), strict=True))
    predicted = cost(one.table, device).total
    may = chooseable(one.table, device)
    chosen = one.plans[int(np.where(may | ~may.any(), predicted, np.inf).argmin())]
    found = search(
        one.table,
        predicted,
        device,
        lambda plans: [times[plan] for plan in plans],
        first=[chosen],
        most=most,
    )
    best, fastest = min(times, key=times.__getitem__), min(found, key=found.__getitem__)
    listed = min(times[plan] for plan in one.listed[:most] or (chosen,))
    return Replay(
        one.problem,
        len(times),
        len(found),
        str(best),
        str(fastest),
        times[chosen] / times[best],
        listed / times[best],
        found[fastest] / times[best],
    )


def summary(found: Sequence[Replay]) -> dict[str, dict[str, float]]:
    """Statistics, over all problems, of the regret of `model`, `first 12` and `search`.

    The regret is the time of the chosen plan relative to the fastest recorded plan, less 1. The
    statistics are the mean, the 90th percentile, the maximum, and the number of regrets of at most
    1 %.
    """
    ratios = {way: [cast(float, getattr(one, way)) for one in found] for way in WAYS}
    return {
        way: {
            "mean": geometric_mean(values) - 1,
            "percentile_90": float(np.percentile(values, 90)) - 1,
            "largest": max(values) - 1,
            "within_1_percent": sum(value <= 1.01 for value in values),
        }
        for way, values in ratios.items()
    }


def record_of(found: Sequence[Replay], sources: Sequence[str], most: int) -> dict[str, Any]:
    """A JSON record: regrets of `model`, `first 12` and `search`, and every problem as a row."""
    return {
        "kind": "tuning",
        "of": list(sources),
        "most": most,
        "regret": summary(found),
        "rows": [asdict(one) for one in found],
    }


def table_of(found: Sequence[Replay], most: int) -> RichTable:
    """A table of regrets with a line for each way to choose a plan: `model`, `first 12`, `search`.

    The regret of a way is the time of the plan that it chooses, divided by the time of the fastest
    recorded plan of the same problem, less 1.
    """
    problems = len(found)
    measured = sum(one.measured for one in found) / problems
    heads = ("way", "plans measured", "mean", "90th percentile", "largest", "within 1 %")
    lines = RichTable(*heads, title=f"regret on {problems} problems", box=SIMPLE)
    counts = {"model": "0", "listed": f"{min(LISTED, most)}", "search": f"{measured:.1f}"}
    titles = {"model": "model", "listed": f"first {min(LISTED, most)}", "search": "search"}
    for way, one in summary(found).items():
        shares = [f"{one[name]:.2%}" for name in ("mean", "percentile_90", "largest")]
        within = f"{one['within_1_percent']:.0f} of {problems}"
        lines.add_row(titles[way], counts[way], *shares, within)
    return lines


def fit(found: Sequence[Recorded], device: Constants) -> Scales:
    """The standard deviations and correlation lengths of the cost model's errors.

    These constants have the largest likelihood on recorded plans, with a weak prior around those
    that the search uses now (`FITTED`).
    """
    from scipy.optimize import minimize

    errors: list[tuple[Recorded, NDArray[np.float64], NDArray[np.intp]]] = []
    for one in found:
        near = (one.seconds <= ERRORS * one.seconds.min()).nonzero()[0]
        errors.append((one, np.log(one.seconds / cost(one.table, device).total)[near], near))
    similar = [Similarity(one.table, device) for one, _, _ in errors]
    start, farthest = np.log(astuple(FITTED)), np.log(FARTHEST)

    def loss(logarithms: NDArray[np.float64]) -> float:
        """The function to minimise: the negative log-likelihood of the cost model's errors.

        A weak penalty on the distance from `start`, the logarithms of `FITTED`, is added.

        Args:
            logarithms: the logarithms of the fields of `Scales`.
        """
        near_enough = np.clip(logarithms, start - farthest, start + farthest)
        scales, total = Scales(*map(float, np.exp(near_enough))), 0.0
        variance = max(scales.noise, LEAST_NOISE) ** 2
        for (_, error, near), each in zip(errors, similar, strict=True):
            each.scales = scales
            matrix = each.between(near, near) + variance * np.eye(len(near))
            factor = np.linalg.cholesky(matrix)
            whitened = np.linalg.solve(factor, error)
            total += float(whitened @ whitened) / 2 + float(np.log(np.diag(factor)).sum())
        return total + float(np.sum((logarithms - start) ** 2)) / 18

    best: Any = minimize(loss, start, method="L-BFGS-B", options={"maxiter": 30})
    return Scales(*map(float, np.exp(best.x)))


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks tuning`."""
    made = command_line("tuning", __doc__)
    made.add_argument("files", nargs="+", type=Path, metavar="FILE")
    add_device(made)
    made.add_argument(
        "--most", type=int, default=MOST_MEASURED, metavar="N",
        help=f"measure at most N plans; default {MOST_MEASURED}",
    )  # fmt: skip
    made.add_argument(
        "--least", type=int, default=LEAST, metavar="N",
        help=f"leave out problems with fewer than N recorded plans; default {LEAST}",
    )  # fmt: skip
    made.add_argument(
        "--worst", type=int, default=5, metavar="N", help="list the N problems of largest regret"
    )
    made.add_argument("--fit", action="store_true", help="fit the cost model's errors instead")
    made.add_argument("--json", type=Path, metavar="FILE", help="write a record")
    return made


def main() -> None:
    """Run `python -m benchmarks tuning`."""
    made = parser()
    options = made.parse_args()
    require_positive(made, options)
    known: list[Recorded] = []
    try:
        records = [read_sweep(path) for path in options.files]
        device = constants_of(device_of(records, options.device))
        for record in records:
            known += recorded(record["rows"], device, options.least)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot read measured times: {error}")
    if not known:
        sys.exit(
            f"no problem has {options.least} recorded plans; give records of `python -m benchmarks "
            "sweep --likely 60`, or a smaller --least"
        )
    console = make_console()
    if options.fit:
        for name, value in asdict(fit(known, device)).items():
            console.print(f"{name} = {value:.3g}  (now {getattr(FITTED, name):g})")
        return
    found = [replay(one, device, options.most) for one in known]
    console.print(table_of(found, options.most))
    for one in sorted(found, key=lambda one: -one.search)[: options.worst]:
        line = f"{one.problem}: {one.search - 1:.2%} after {one.measured} of {one.plans} plans; "
        line += f"found {one.found_plan}, best {one.best_plan}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if options.json:
        write(options.json, record_of(found, [path.name for path in options.files], options.most))
        console.print(f"written to {options.json}")


if __name__ == "__main__":
    main()
