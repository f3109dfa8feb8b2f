"""What the cost model misses: measured over predicted times, by what plans have in common.

    python -m benchmarks residuals benchmarks/results/sweep-*.json
    python -m benchmarks residuals benchmarks/results/sweep-*.json --by part stages --from 60

A column of plans that take a few percent longer than predicted, on many problems, tells of a cost
that the model does not count. Sizes and clocks differ from problem to problem, so the mean of a
problem's plans is taken out of each of its times first (geometric means, all of them), and plans
much slower than a problem's best are left out: nobody would choose them.

No GPU is needed; files are those of `benchmarks sweep`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table as Sheet

from benchmarks.options import command_line
from benchmarks.report import console_here
from passes.choosing import constants_of
from passes.choosing.calibrate import Measurements
from passes.choosing.constants import Constants
from passes.choosing.model import Counts, cost
from passes.choosing.shape import Shape
from passes.choosing.table import Table

__all__ = ["KEYS", "Residual", "main", "residuals"]

MICRO = 1e-6
FEWEST = 3
"""Plans of a problem, for whose mean there is a point in taking it out."""
Key = Callable[[Table, Shape, int], str]


def _x(*counts: Any) -> str:
    return "x".join(str(int(count)) for count in counts)


def _part(t: Table, s: Shape, i: int) -> str:
    turns = " in turns" if t.turns[i] > 1 else ""
    return f"{_x(s.rows[i], s.columns[i])}{turns}"


def _schedule(t: Table, s: Shape, i: int) -> str:
    return t.plan(i).family


KEYS: dict[str, Key] = {
    "part": _part,
    "cluster": lambda t, s, i: _x(t.cluster_m[i], t.cluster_n[i], t.cluster_k[i]),
    "schedule": _schedule,
    "stages": lambda t, s, i: _x(s.stages[i]),
    "boxes": lambda t, s, i: f"{_x(s.stores[i])}{' unswizzled' if s.odd[i] else ''}",
    "band": lambda t, s, i: _x(t.width[i]),
    "layout": lambda t, s, i: "nt"[int(t.turned_a[i])] + "nt"[int(t.turned_b[i])],
    "depth": lambda t, s, i: f"up to {1 << int(np.ceil(np.log2(s.depth[i])))}",
}
"""What plans may have in common: the part of a tile that a workgroup has, the cluster, the family
of schedules, stages of the ring, boxes in which a warpgroup stores D, rows of a band, the layout,
and iterations of a tile."""


@dataclass(frozen=True)
class Residual:
    """Of plans with something in common.

    Args:
        name: what that is.
        mean: measured over predicted, beside that of other plans of the same problems, less 1.
        plans, problems: how many there are.
    """

    name: str
    mean: float
    plans: int
    problems: int


def residuals(
    measured: Measurements, device: Constants, key: str, *, near: float = 1.2, least: int = 10
) -> list[Residual]:
    """The plans that may be chosen, by one of `KEYS`; the quickest beside the model first.

    Args:
        measured: times of plans.
        device: whose model predicts them.
        key: one of `KEYS`.
        near: plans that take no more than so many times the best of their problem.
        least: plans of a kind, fewer of which are not listed.
    """
    data = measured.where(measured.usable)
    data = data.where(data.seconds <= near * data.best(data.seconds)[data.problem])
    counts = Counts(data.table, device)
    errors = np.log(data.seconds / cost(counts, device).total)
    number = np.bincount(data.problem)
    errors -= (np.bincount(data.problem, errors) / number)[data.problem]
    kinds: dict[str, list[int]] = {}
    for i in (number[data.problem] >= FEWEST).nonzero()[0]:
        kinds.setdefault(KEYS[key](data.table, counts.shape, int(i)), []).append(int(i))
    found = [_of(name, errors[rows], data.problem[rows]) for name, rows in kinds.items()]
    return sorted((one for one in found if one.plans >= least), key=lambda one: one.mean)


def _of(name: str, errors: NDArray[np.float64], problems: NDArray[np.intp]) -> Residual:
    mean = float(np.exp(errors.mean()) - 1)
    return Residual(name, mean, len(errors), len(np.unique(problems)))


def _sheet(key: str, found: Sequence[Residual]) -> Sheet:
    made = Sheet(title=key, box=None, pad_edge=False)
    for name in (key, "beside the model", "plans", "problems"):
        made.add_column(name, justify="left" if name == key else "right")
    for one in found:
        made.add_row(one.name, f"{one.mean:+.1%}", str(one.plans), str(one.problems))
    return made


def main() -> None:
    """The command."""
    made = command_line("residuals", __doc__)
    made.add_argument("files", type=Path, nargs="+", metavar="FILE", help="of a sweep")
    made.add_argument("--by", nargs="+", default=[*KEYS], choices=list(KEYS), metavar="KEY")
    made.add_argument("--device", default=constants_of().device, help="whose model to ask")
    made.add_argument("--from", dest="low", type=float, default=0.0, metavar="MICROSECONDS")
    made.add_argument("--to", dest="high", type=float, default=float("inf"), metavar="MICROSECONDS")
    made.add_argument(
        "--near", type=float, default=1.2, help="times the best of the problem, default 1.2"
    )
    made.add_argument("--least", type=int, default=10, help="plans of a kind, default 10")
    made.epilog = f"Keys: {', '.join(KEYS)}."
    options = made.parse_args()
    device = constants_of(options.device)
    try:
        measured = Measurements.read(options.files, device)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"this is no file of a sweep: {error}")
    inside = (measured.seconds >= options.low * MICRO) & (measured.seconds <= options.high * MICRO)
    if not (inside & measured.usable).any():
        sys.exit("no plan that may be chosen took as long")
    console = console_here()
    for key in options.by:
        of_key = residuals(
            measured.where(inside), device, key, near=options.near, least=options.least
        )
        console.print(_sheet(key, of_key), "")


if __name__ == "__main__":
    main()
