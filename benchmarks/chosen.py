"""What the model chooses among plans that were measured, and what the best of them is. No GPU.

    python -m benchmarks chosen benchmarks/results/sweep-*.json
    python -m benchmarks chosen sweep-corpus.json --json chosen-corpus.json

A file is what `benchmarks sweep` writes: rows of a problem, a plan and seconds, with rows of the
plan `cublas` among them. For the Stream-K paper's corpus (arXiv:2301.03598), 300 shapes with
extents log-uniform from 128 to 8192 and the dozen most promising plans of each:

    python -m benchmarks sweep --random 300 --likely 12 --layouts nt --time-limit 8   # on a GPU

Columns are geometric means and the least over problems, of cuBLAS's time over that of the best
measured plan, and over that of the one the model prefers; and of the best plan's time over that of
the preferred one, which is what the model leaves on the table. Plans that are no candidates may be
the best, but are not chosen; those of schedules that no model knows are left out. Last come the
problems where the model loses most. --json keeps plans and seconds of every problem.

With --streaming the best plan that streams tiles is held against the best of whole tiles, as
measured and as predicted; see `benchmarks.streaming`.
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
from rich.table import Table as Lines

from benchmarks.contenders import CUBLAS
from benchmarks.options import command_line
from benchmarks.record import key_of, load, write
from benchmarks.report import console_here, geometric_mean
from benchmarks.shapes import title
from benchmarks.streaming import Compared, compared
from benchmarks.streaming import lines_of as lines_of_streaming
from benchmarks.streaming import record_of as record_of_streaming
from passes.choosing import constants_of
from passes.choosing.calibrate import is_plan, known_plans, problem_of
from passes.choosing.candidates import chooseable
from passes.choosing.model import cost
from passes.choosing.table import Table

__all__ = ["Judged", "judge", "main", "record_of", "summary"]


@dataclass(frozen=True)
class Judged:
    """A problem whose plans were measured.

    Args:
        cublas_seconds, best_seconds, chosen_seconds: of cuBLAS, the best plan, and the one the
            model prefers.
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
        """cuBLAS's time over that of the best plan."""
        return self.cublas_seconds / self.best_seconds

    @property
    def chosen(self) -> float:
        """cuBLAS's time over that of the plan that the model prefers."""
        return self.cublas_seconds / self.chosen_seconds

    @property
    def of_best(self) -> float:
        """The best plan's time over that of the one the model prefers: 1 where it is the best."""
        return self.best_seconds / self.chosen_seconds


SIDES = ("best", "chosen", "of_best")
Spread = tuple[float, float]
"""Geometric mean, and the least."""


def summary(found: Sequence[Judged]) -> dict[str, dict[str, Spread]]:
    """What is said of each group, and of `all`: of each of `SIDES`, a mean and the least."""
    parts = {name: [one for one in found if one.group == name] for name in groups_of(found)}
    return {
        name: {
            side: (geometric_mean(values), min(values))
            for side in SIDES
            for values in [[getattr(one, side) for one in of]]
        }
        for name, of in {**parts, "all": found}.items()
        if of
    }


def groups_of(found: Iterable[Judged]) -> list[str]:
    """The groups that there are, in order."""
    return sorted({one.group for one in found})


def record_of(found: Sequence[Judged], source: str, device: str) -> dict[str, Any]:
    """For JSON: the means, and every problem as a row."""
    means = {
        name: {side: {"mean": mean, "least": least} for side, (mean, least) in sides.items()}
        for name, sides in summary(found).items()
    }
    rows = [{**asdict(one), **{side: getattr(one, side) for side in SIDES}} for one in found]
    return {"kind": "chosen", "of": source, "device": device, "means": means, "rows": rows}


def judge(rows: list[dict[str, Any]], device: str) -> list[Judged]:
    """Every problem that cuBLAS and some plan were measured on, in order."""
    problems: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        problems.setdefault(key_of(row), []).append(row)
    constants, found = constants_of(device), list[Judged]()
    for (m, n, k, layout), measured in problems.items():
        cublas = [row["t"] for row in measured if row["plan"] == CUBLAS.lower()]
        ours = [row for row in measured if is_plan(row)]
        plans = known_plans(ours)
        ours = [row for row in ours if row["plan"] in plans]
        if not cublas or not ours:
            continue
        table = Table.of((problem_of(row), plans[row["plan"]]) for row in ours)
        able = chooseable(table, constants)
        if not able.any():
            continue
        predicted = np.where(able, cost(table, constants).total, np.inf)
        preferred = ours[int(np.argmin(predicted))]
        best = min(ours, key=lambda row: row["t"])
        found.append(
            Judged(
                measured[0].get("group", ""),
                f"{m}x{n}x{k} {layout}",
                cublas[0],
                best["t"],
                best["plan"],
                preferred["t"],
                preferred["plan"],
            )
        )
    return found


def lines_of(found: Sequence[Judged], name: str) -> Lines:
    """A line for each group, and one for all."""
    heads = ("group", "problems", "best plan", "least", "chosen plan", "least", "of best", "least")
    lines = Lines(*heads, title=name, box=SIMPLE)
    counts = Counter(one.group for one in found)
    for group, sides in summary(found).items():
        numbers = [f"{value:.3f}" for side in SIDES for value in sides[side]]
        whole = group == "all"
        count = len(found) if whole else counts[group]
        lines.add_row(group if whole else title(group), str(count), *numbers)
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("chosen", __doc__)
    made.add_argument("files", nargs="+", type=Path, metavar="FILE")
    made.add_argument("--device", default="NVIDIA H200", help="whose model to ask")
    made.add_argument(
        "--worst", type=int, default=10, metavar="N", help="problems to list, default 10"
    )
    made.add_argument(
        "--streaming", action="store_true", help="streamed tiles against whole ones instead"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write this; of one file only")
    return made


def main() -> None:
    """The command."""
    made = parser()
    options = made.parse_args()
    if options.json and len(options.files) > 1:
        made.error("--json holds what is said of one file; give one")
    console = console_here()
    for path in options.files:
        try:
            rows = load(path)["rows"]
        except (OSError, ValueError) as error:
            sys.exit(f"{path}: {error}")
        say = streaming if options.streaming else chosen
        if (record := say(rows, path.name, options.device, options.worst, console)) is None:
            sys.exit(f"{path} has no problem that {NEEDED[options.streaming]} were measured on")
        if options.json:
            write(options.json, record)
            console.print(f"written to {options.json}")


NEEDED = {False: "cuBLAS and a plan", True: "a plan of whole tiles and one that streams"}


def chosen(
    rows: list[dict[str, Any]], name: str, device: str, worst: int, console: Console
) -> dict[str, Any] | None:
    """Print what is chosen; returns a record of it, or None where there is nothing to say."""
    found = judge(rows, device)
    if not found:
        return None
    console.print(lines_of(found, name))
    for one in sorted(found, key=lambda one: one.of_best)[:worst]:
        _line(
            console,
            f"{one.problem}: {one.of_best:.3f} of the best; chosen {one.chosen:.3f} "
            f"{one.chosen_plan}, best {one.best:.3f} {one.best_plan}",
        )
    return record_of(found, name, device)


def streaming(
    rows: list[dict[str, Any]], name: str, device: str, worst: int, console: Console
) -> dict[str, Any] | None:
    """The same of streamed tiles against whole ones."""
    found = compared(rows, device)
    if not found:
        return None
    console.print(lines_of_streaming(found, name))
    for one in sorted(found, key=Compared.wrong_by, reverse=True)[:worst]:
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
