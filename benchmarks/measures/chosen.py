"""Compare the cost model's choice among the plans of a sweep with the fastest. Needs no GPU.

    python -m benchmarks chosen benchmarks/results/fit/dense-h200-*.json.gz
    python -m benchmarks chosen sweep-corpus.json --json chosen-corpus.json

A file is a record of `benchmarks sweep`: seconds by problem and plan; the plan `cublas` stands for
cuBLAS. The next command makes a record on a GPU: on each of 300 shapes it times the 12 plans with
the least predicted times. Shapes are drawn as in the Stream-K paper (arXiv:2301.03598), log-uniform
from 128 to 8192:

    python -m benchmarks sweep --random 300 --likely 12 --layouts nt --time-limit 8

The table has geometric means and minima over the problems of three ratios: cuBLAS's time over that
of the fastest measured plan; cuBLAS's time over that of the plan that the model chooses; and the
fastest plan's time over that of the chosen one, which is 1 where the model chooses the fastest.
Plans that are no candidates of the model may be the fastest, but are never chosen; plans of
schedules that the model does not know are left out. Below the table are the problems where the
choice is worst. --json writes the plans and seconds of every problem.

--streaming compares the fastest plan that splits tiles along k with the fastest plan of whole
tiles, as measured and as predicted; see `benchmarks.measures.streaming`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.measures.streaming import Compared, compared
from benchmarks.measures.streaming import record_of as record_of_streaming
from benchmarks.measures.streaming import table_of as table_of_streaming
from benchmarks.options import add_device, command_line
from benchmarks.peers.contender import CUBLAS
from benchmarks.problems.shapes import group_title
from benchmarks.reports.console import make_console
from benchmarks.reports.record import key_of, write
from benchmarks.reports.summary import geometric_mean
from passes.choosing import constants_of
from passes.choosing.exclusions import chooseable
from passes.choosing.measurements import is_plan, known_plans, problem_of, read_sweep
from passes.choosing.model import cost
from passes.choosing.plan_table import Table
from passes.choosing.times import device_of

__all__ = ["Choice", "judge", "main", "record_of", "summary"]


@dataclass(frozen=True)
class Choice:
    """The cost model's choice on one problem, and measured times.

    Args:
        group: the group of shapes that the problem belongs to.
        problem: m, n, k and the layout, as text.
        cublas_seconds: the time of cuBLAS, in seconds.
        best_seconds: the time of the fastest measured plan, in seconds.
        best_plan: the text of the fastest measured plan.
        chosen_seconds: the measured time of the plan that the model chooses, in seconds.
        chosen_plan: the text of the plan that the model chooses.
    """

    group: str
    problem: str
    cublas_seconds: float
    best_seconds: float
    best_plan: str
    chosen_seconds: float
    chosen_plan: str

    @property
    def best(self) -> float:
        """cuBLAS's time divided by that of the fastest measured plan."""
        return self.cublas_seconds / self.best_seconds

    @property
    def chosen(self) -> float:
        """cuBLAS's time divided by that of the plan that the model chooses."""
        return self.cublas_seconds / self.chosen_seconds

    @property
    def of_best(self) -> float:
        """The fastest plan's time divided by the chosen plan's: 1 if they are the same plan."""
        return self.best_seconds / self.chosen_seconds


RATIOS = ("best", "chosen", "of_best")
MeanAndLeast = tuple[float, float]


def summary(found: Sequence[Choice]) -> dict[str, dict[str, MeanAndLeast]]:
    """The geometric mean and minimum of each ratio of times, by group of shapes and ratio.

    The ratios are `best` (cuBLAS's time / the fastest plan's), `chosen` (cuBLAS's time / the plan's
    that the model chooses) and `of_best` (the fastest plan's time / the chosen one's).
    A group is a group of shapes; the group `all` contains all problems.
    """
    parts = {name: [one for one in found if one.group == name] for name in groups_of(found)}
    return {
        name: {
            ratio: (geometric_mean(values), min(values))
            for ratio in RATIOS
            for values in [[getattr(choice, ratio) for choice in part]]
        }
        for name, part in {**parts, "all": found}.items()
        if part
    }


def groups_of(found: Iterable[Choice]) -> list[str]:
    """The names of the groups of shapes that the problems belong to, sorted."""
    return sorted({one.group for one in found})


def record_of(found: Sequence[Choice], source: str, device: str) -> dict[str, Any]:
    """A JSON record with the mean ratios of times by group, and every problem as a row."""
    means = {
        name: {ratio: {"mean": mean, "least": least} for ratio, (mean, least) in ratios.items()}
        for name, ratios in summary(found).items()
    }
    rows = [{**asdict(one), **{ratio: getattr(one, ratio) for ratio in RATIOS}} for one in found]
    return {"kind": "chosen", "of": source, "device": device, "means": means, "rows": rows}


def judge(rows: list[dict[str, Any]], device: str) -> list[Choice]:
    """The cost model's choice on every problem on which cuBLAS and a candidate plan were timed."""
    problems: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        problems.setdefault(key_of(row), []).append(row)
    constants, found = constants_of(device), list[Choice]()
    for (m, n, k, layout), measured in problems.items():
        cublas = [row["t"] for row in measured if row["plan"] == CUBLAS.lower()]
        ours = [row for row in measured if is_plan(row)]
        plans = known_plans(ours)
        ours = [row for row in ours if row["plan"] in plans]
        if not cublas or not ours:
            continue
        table = Table.of((problem_of(row), plans[row["plan"]]) for row in ours)
        candidates = chooseable(table, constants)
        if not candidates.any():
            continue
        predicted = np.where(candidates, cost(table, constants).total, np.inf)
        chosen = ours[int(np.argmin(predicted))]
        best = min(ours, key=lambda row: row["t"])
        found.append(
            Choice(
                measured[0].get("group", ""),
                f"{m}x{n}x{k} {layout}",
                cublas[0],
                best["t"],
                best["plan"],
                chosen["t"],
                chosen["plan"],
            )
        )
    return found


def table_of(found: Sequence[Choice], title: str) -> RichTable:
    """A table of mean ratios of times: a line per group of shapes, and one for all problems."""
    heads = ("group", "problems", "best plan", "least", "chosen plan", "least", "of best", "least")
    lines = RichTable(*heads, title=title, box=SIMPLE)
    counts = Counter(one.group for one in found)
    for group, ratios in summary(found).items():
        numbers = [f"{value:.3f}" for ratio in RATIOS for value in ratios[ratio]]
        whole = group == "all"
        count = len(found) if whole else counts[group]
        lines.add_row(group if whole else group_title(group), str(count), *numbers)
    return lines


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks chosen`."""
    made = command_line("chosen", __doc__)
    made.add_argument("files", nargs="+", type=Path, metavar="FILE")
    add_device(made)
    made.add_argument(
        "--worst",
        type=int,
        default=10,
        metavar="N",
        help="list the N problems where the choice is worst; default 10",
    )
    made.add_argument(
        "--streaming", action="store_true", help="compare schedules with and without split tiles"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write a record of one input file")
    return made


def main() -> None:
    """Run `python -m benchmarks chosen`."""
    made = parser()
    options = made.parse_args()
    if options.json and len(options.files) > 1:
        made.error("--json writes the record of one file; give one")
    console = make_console()
    for path in options.files:
        try:
            record = read_sweep(path)
            rows, device = record["rows"], device_of([record], options.device)
        except (OSError, ValueError) as error:
            sys.exit(f"cannot read measured times: {error}")
        print_choices = print_streaming if options.streaming else print_chosen
        if (choices := print_choices(rows, path.name, device, options.worst, console)) is None:
            sys.exit(
                f"{path} has no problem that {NEEDED[options.streaming]} were measured on; give a "
                "record of `python -m benchmarks sweep`"
            )
        if options.json:
            write(options.json, choices)
            console.print(f"written to {options.json}")


NEEDED = {False: "cuBLAS and a plan", True: "a plan of whole tiles and one of split tiles"}
"""What must have been measured on a problem, as text for an error message: without --streaming
(False), and with it (True)."""


def print_chosen(
    rows: list[dict[str, Any]], name: str, device: str, worst: int, console: Console
) -> dict[str, Any] | None:
    """Print how good the model's choices are; return them as data for JSON, or None.

    The problems where the chosen plan is slowest, relative to the fastest, are printed too: as many
    as `worst` says.

    The result is None if there is no problem on which both cuBLAS and a candidate plan were timed.
    """
    found = judge(rows, device)
    if not found:
        return None
    console.print(table_of(found, name))
    for one in sorted(found, key=lambda one: one.of_best)[:worst]:
        _line(
            console,
            f"{one.problem}: {one.of_best:.3f} of the best; chosen {one.chosen:.3f} "
            f"{one.chosen_plan}, best {one.best:.3f} {one.best_plan}",
        )
    return record_of(found, name, device)


def print_streaming(
    rows: list[dict[str, Any]], name: str, device: str, worst: int, console: Console
) -> dict[str, Any] | None:
    """Print the speedup of tiles split along k over whole tiles; return data for JSON, or None.

    The result is None if there is no problem in `rows` on which plans of both kinds were timed.
    """
    found = compared(rows, device)
    if not found:
        return None
    console.print(table_of_streaming(found, name))
    for one in sorted(found, key=Compared.error, reverse=True)[:worst]:
        _line(
            console,
            f"{one.problem}: measured {one.measured:.3f}, predicted {one.predicted:.3f}; "
            f"{one.streaming_plan} against {one.whole_plan}",
        )
    return record_of_streaming(found, name, device)


def _line(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
