"""Find errors of the cost model: measured over predicted times of plans with a common property.

    python -m benchmarks residuals benchmarks/results/fit/dense-h200-*.json.gz
    python -m benchmarks residuals FILE --by part stages --from 60

If plans with the same property take a few percent longer than predicted on many problems, then the
model leaves out a cost. The ratio measured / predicted time of a plan is divided by the geometric
mean of this ratio over all plans of the same problem, because clocks differ from problem to
problem. A figure is the geometric mean of these quotients over all plans with a property, less 1.
Plans that are much slower than the fastest of their problem are left out, since the model need not
be exact about them.

No GPU is needed; the files are records of `benchmarks sweep`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table as RichTable

from benchmarks.options import add_device, command_line
from benchmarks.reports.console import make_console
from passes.choosing import constants_of
from passes.choosing.constants import Constants
from passes.choosing.kernel_shape import Shape
from passes.choosing.measurements import Measurements, read_sweep
from passes.choosing.model import Counts, cost
from passes.choosing.plan_table import Table
from passes.choosing.times import device_of

__all__ = ["KEYS", "Residual", "main", "residuals"]

MICRO = 1e-6
MIN_PLANS = 3
"""Problems with fewer measured plans are left out, because the mean error of so few predicted times
is unreliable."""
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
"""For each property of plans, by name, a function that returns its value for a plan as text.

The properties are, in order: the part of a macro tile that one workgroup of a cluster computes,
the cluster, the family of schedules, pipeline stages, TMA boxes in which a warpgroup stores D, tile
rows of a rasterization band, the layout, and iterations of a tile (rounded up to a power of 2)."""


@dataclass(frozen=True)
class Residual:
    """The cost model's error on plans that have the same value of a property.

    Args:
        name: the value of the property.
        mean: the geometric mean of r over such plans, less 1. r is measured / predicted time,
            divided by the geometric mean of that ratio over all plans of the same problem. 0.05
            means that, compared with the other plans, such plans take 5 % longer than predicted.
        plans: the number of plans with that value, counted once for each problem.
        problems: the number of problems that have plans with that value.
    """

    name: str
    mean: float
    plans: int
    problems: int


def residuals(
    measured: Measurements, device: Constants, key: str, *, near: float = 1.2, least: int = 10
) -> list[Residual]:
    """The cost model's errors on plans that it may choose, for each value of a property.

    The result is sorted by `Residual.mean`.

    Args:
        measured: measured times of plans.
        device: the constants of the cost model.
        key: the name of the property, a key of `KEYS` such as `cluster`.
        near: plans are left out that take more than `near` times as long as the fastest plan of
            their problem.
        least: the smallest number of plans; values of the property with fewer plans are left out.
    """
    data = measured.where(measured.usable)
    data = data.where(data.seconds <= near * data.best(data.seconds)[data.problem])
    counts = Counts(data.table, device)
    errors = np.log(data.seconds / cost(counts, device).total)
    number = np.bincount(data.problem)
    errors -= (np.bincount(data.problem, errors) / number)[data.problem]
    by_value: dict[str, list[int]] = {}
    for i in (number[data.problem] >= MIN_PLANS).nonzero()[0]:
        by_value.setdefault(KEYS[key](data.table, counts.shape, int(i)), []).append(int(i))
    found = [_of(name, errors[rows], data.problem[rows]) for name, rows in by_value.items()]
    return sorted((one for one in found if one.plans >= least), key=lambda one: one.mean)


def _of(name: str, errors: NDArray[np.float64], problems: NDArray[np.intp]) -> Residual:
    mean = float(np.exp(errors.mean()) - 1)
    return Residual(name, mean, len(errors), len(np.unique(problems)))


def _table(key: str, found: Sequence[Residual]) -> RichTable:
    made = RichTable(title=key, box=None, pad_edge=False)
    for name in (key, "against the model", "plans", "problems"):
        made.add_column(name, justify="left" if name == key else "right")
    for one in found:
        made.add_row(one.name, f"{one.mean:+.1%}", str(one.plans), str(one.problems))
    return made


def main() -> None:
    """Run `python -m benchmarks residuals`."""
    made = command_line("residuals", __doc__)
    made.add_argument("files", type=Path, nargs="+", metavar="FILE", help="records of sweeps")
    made.add_argument(
        "--by", nargs="+", default=[*KEYS], choices=list(KEYS), metavar="KEY",
        help=f"properties: {', '.join(KEYS)}; default all of them",
    )  # fmt: skip
    add_device(made)
    made.add_argument(
        "--from", dest="low", type=float, default=0.0, metavar="MICROSECONDS",
        help="leave out plans that took less than this many µs",
    )  # fmt: skip
    made.add_argument(
        "--to", dest="high", type=float, default=float("inf"), metavar="MICROSECONDS",
        help="leave out plans that took more than this many µs",
    )  # fmt: skip
    made.add_argument(
        "--near",
        type=float,
        default=1.2,
        help="leave out plans that take more than this many times the fastest; default 1.2",
    )
    made.add_argument(
        "--least", type=int, default=10, help="leave out values with fewer plans; default 10"
    )
    options = made.parse_args()
    try:
        records = [read_sweep(path) for path in options.files]
        device = constants_of(device_of(records, options.device))
        measured = Measurements.of(records, device)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot read measured times: {error}")
    inside = (measured.seconds >= options.low * MICRO) & (measured.seconds <= options.high * MICRO)
    if not (inside & measured.usable).any():
        sys.exit(
            "no candidate plan of the cost model took between --from and --to microseconds; widen "
            "that range"
        )
    console = make_console()
    for key in options.by:
        of_key = residuals(
            measured.where(inside), device, key, near=options.near, least=options.least
        )
        console.print(_table(key, of_key), "")


if __name__ == "__main__":
    main()
