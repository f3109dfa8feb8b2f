"""What the model chooses among plans that were measured, and what the best of them is. No GPU.

    python -m benchmarks chosen benchmarks/results/sweep-*.json

A file is what `benchmarks sweep` writes: rows of a problem, a plan and seconds, with rows of the
plan `cublas` among them. Ratios are times of cuBLAS over ours. Plans that are no candidates
may be the best, but are not chosen.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Lines

from benchmarks.contenders import CUBLAS
from benchmarks.record import load
from benchmarks.report import geometric_mean
from benchmarks.shapes import title
from passes.choosing import Plan, constants_of
from passes.choosing.calibrate import is_plan, problem_of
from passes.choosing.candidates import slow
from passes.choosing.model import cost
from passes.choosing.table import Table

__all__ = ["Judged", "judge", "main"]

SLOW = 0.95


@dataclass(frozen=True)
class Judged:
    """A problem whose plans were measured.

    Args:
        best, chosen: cuBLAS's time over that of the best plan, and of the one the model prefers.
    """

    group: str
    problem: str
    best: float
    best_plan: str
    chosen: float
    chosen_plan: str


def judge(rows: list[dict[str, Any]], device: str) -> list[Judged]:
    """Every problem that cuBLAS and some plan were measured on, in order."""
    problems: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        problems.setdefault((row["m"], row["n"], row["k"], row["layout"]), []).append(row)
    constants, found = constants_of(device), list[Judged]()
    for (m, n, k, layout), measured in problems.items():
        cublas = [row["t"] for row in measured if row["plan"] == CUBLAS.lower()]
        ours = [row for row in measured if is_plan(row)]
        if not cublas or not ours:
            continue
        table = Table.of((problem_of(row), Plan.parse(row["plan"])) for row in ours)
        predicted = np.where(slow(table), np.inf, cost(table, constants).total)
        preferred = ours[int(np.argmin(predicted))]
        best = min(ours, key=lambda row: row["t"])
        found.append(
            Judged(
                measured[0].get("group", ""),
                f"{m}x{n}x{k} {layout}",
                cublas[0] / best["t"],
                best["plan"],
                cublas[0] / preferred["t"],
                preferred["plan"],
            )
        )
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--device", default="NVIDIA H200", help="whose model to ask")
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    for path in options.files:
        found = judge(load(path)["rows"], options.device)
        heads = ("group", "problems", "best plan", "least", "chosen plan", "least")
        lines = Lines(*heads, title=path.name)
        for group in [*sorted({one.group for one in found}), ""]:
            of = [one for one in found if group in ("", one.group)]
            numbers = [
                f"{value:.3f}"
                for side in ("best", "chosen")
                for values in [[getattr(one, side) for one in of]]
                for value in (geometric_mean(values), min(values))
            ]
            lines.add_row(title(group) if group else "all", str(len(of)), *numbers)
        console.print(lines)
        for one in sorted(found, key=lambda one: one.chosen):
            if one.chosen < SLOW:
                console.print(
                    f"{one.problem}: chosen {one.chosen:.3f} {one.chosen_plan}, "
                    f"best {one.best:.3f} {one.best_plan}"
                )


if __name__ == "__main__":
    main()
