"""Explanations of why a plan was chosen: a table of predicted times, and sentences about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from coordgraph import Gemm
from passes.choosing.constants import Constants, constants_of
from passes.choosing.gpu_figures import GpuFigures
from passes.choosing.known_schedules import chosen_schedules
from passes.choosing.mma_sync import choices as mma_sync_choices
from passes.choosing.mma_sync import ranked as mma_sync_ranked
from passes.choosing.plan_table import sizes
from passes.choosing.ranking import Choice, choices, rank
from passes.choosing.summation_order import SummationOrder

__all__ = ["Explanation", "every_choice", "explain", "micros", "origin", "page"]

SUMMANDS = ("launch", "main", "tiles", "fixup", "cluster", "correction")
"""The terms of a predicted time whose sum is the total. The term `main` is the time of the main
loop, including the time by which memory, L2 cache or power limit it. The term `correction` is
learned from measured times (see `passes.choosing.correction`)."""
COVERED = ("loop", "dram", "l2", "power")
"""The terms of a predicted time from which the term `main` is computed, as a smooth maximum.

`main` is at least the largest of these terms, and somewhat larger if other terms are close to it.
"""
LEGEND = (
    f"In microseconds: total = {' + '.join(SUMMANDS)}. main is the largest of "
    f"{', '.join(COVERED)}, and somewhat more where others are close to it. correction is learned "
    "from the errors of such predictions; it is 0 for problems for which none was learned."
)
MICRO = 1e6
"""Number of microseconds in a second."""
KINDS = {
    "data-parallel": "whole tiles only",
    "heterogeneous-tiles": "small tiles in the last wave",
    "hybrid-stream-k": "the last wave streamed",
    "two-tile-stream-k": "the last two waves streamed",
    "stream-k": "all tiles streamed",
}
"""Descriptions of schedules, by name. Any other schedule is described by its name."""


@dataclass(frozen=True)
class Explanation:
    """The best plans for a problem, in the order of their predicted times.

    `str(explanation)` is a table of times in microseconds, then sentences about the best plan.

    Args:
        problem: the problem, with values for m, n and k.
        device: the cost model's constants of the device, or the data-sheet rates of the device.
        choices: the best plans, the best first.
        rivals: (description, best plan) for each kind of schedule.
        reads_c: whether the epilogue reads C.
        batches: number of products in a batch, or of groups.
    """

    problem: Gemm
    device: Constants | GpuFigures
    choices: tuple[Choice, ...]
    rivals: tuple[tuple[str, Choice], ...]
    reads_c: bool = False
    batches: int = 1
    """Number of products in a batch, or of groups."""
    heading: tuple[str, ...] = field(default=(), compare=False)
    """Lines of text that stand above the table: about the problem, the device and the code."""

    @property
    def best(self) -> Choice:
        """The plan with the shortest predicted time, which `codegen.matmul` chooses."""
        return self.choices[0]

    def as_data(self) -> dict[str, Any]:
        """The explanation as plain data for JSON; times are in seconds."""
        m, n, k = sizes(self.problem)
        return {
            "problem": {
                **{"m": m, "n": n, "k": k, "dtype": self.problem.dtype},
                "out_dtype": self.problem.out_dtype,
                "transpose_a": self.problem.transpose_a,
                "transpose_b": self.problem.transpose_b,
                **({"batches": self.batches} if self.problem.leading else {}),
            },
            "device": self.device.device,
            "estimated": self.device.estimated,
            "source": origin(self.device),
            "heading": self.heading,
            "plans": [
                {
                    "plan": str(c.plan),
                    "seconds": c.seconds,
                    "bound": c.bound,
                    "terms": {"main": _main(c), **c.terms},
                }
                for c in self.choices
            ],
        }

    def rows(self) -> list[list[str]]:
        """The table's rows: a plan, its predicted time and the terms of that time, in microseconds.

        The first row is the header. The terms are rounded so that those of `SUMMANDS` add up to the
        shown total.
        """
        head = ["plan", "total", *SUMMANDS, *COVERED]
        return [head, *([str(c.plan), *_cells(c)] for c in self.choices)]

    def reasons(self) -> list[str]:
        """Sentences: what limits the best plan's speed, and how much longer other plans take."""
        best = self.best
        m, n, k = sizes(self.problem)
        products = self.batches if self.problem.batched else 1
        rate = 2 * products * m * n * k / best.seconds / 1e12
        found = [
            f"{best.plan} should take {micros(best.seconds)} µs ({rate:.0f} TFLOP/s). "
            f"What bounds it: {best.reason}."
        ]
        for words, rival in self.rivals:
            if rival.plan != best.plan:
                more = rival.seconds / best.seconds - 1
                found.append(f"The best with {words}, {rival.plan}, would take {more:.1%} longer.")
        if self.device.estimated:
            name = self.device.device
            found.append(f"Estimates, not measured on {name}. Figures: {origin(self.device)}.")
            found.append(_advice(self.device))
        elif isinstance(self.device, GpuFigures):
            found.append(f"The figures of {self.device.device}: {origin(self.device)}.")
        else:
            # `source` is the command that fitted the constants, its files and, after a colon, the
            # number of measurements in these files, such as `15115 times, 2026-11-24`.
            number, _, rest = self.device.source.rpartition(": ")[2].partition(" times")
            found.append(
                f"The figures of {self.device.device} are fitted to {number} measured times{rest}."
            )
        return found

    def __str__(self) -> str:
        return "\n".join([*self.heading, *([""] * bool(self.heading)), self.page])

    @property
    def page(self) -> str:
        """The text of the table and the sentences below it, without the heading."""
        return page(self.rows(), [self.legend, *self.reasons()])

    @property
    def legend(self) -> str:
        """A sentence that explains the units and the terms of the table."""
        return LEGEND


def explain(
    problem: Gemm,
    device: Constants | GpuFigures | None = None,
    count: int = 8,
    *,
    batches: int = 1,
    reads_c: bool = False,
    order: SummationOrder | None = None,
) -> Explanation:
    """Explain why a plan is chosen for a problem.

    Args:
        problem: the problem, with values for m, n and k.
        device: the cost model's constants of the device, or its data-sheet rates; None for the
            constants of the measured H200.
        count: number of plans to list.
        batches: number of products in a batch, or of groups.
        reads_c: whether the epilogue reads C.
        order: the order of additions along k that the plans must have; None sets no limit.
    """
    device = device or constants_of()
    rivals: dict[str, Choice] = {}
    kinds = len({schedule.name for schedule in chosen_schedules()})
    for choice in every_choice(problem, device, batches=batches, reads_c=reads_c, order=order):
        name = choice.plan.schedule.name
        rivals.setdefault(KINDS.get(name, name), choice)
        if len(rivals) == kinds:
            break
    if isinstance(device, GpuFigures):
        ranked = mma_sync_ranked(problem, device, count, batches=batches, reads_c=reads_c)
    else:
        ranked = rank(
            problem, device, count, batches=batches, reads_c=reads_c, order=order, nearest=False
        )
    listed = tuple(islice((c for c in ranked if c.terms), count))
    return Explanation(problem, device, listed, tuple(rivals.items()), reads_c, batches)


def every_choice(
    problem: Gemm,
    device: Constants | GpuFigures,
    *,
    batches: int = 1,
    reads_c: bool = False,
    order: SummationOrder | None = None,
) -> Iterator[Choice]:
    """Yield every candidate plan for a problem on a device, in the order of predicted times.

    `device` has cost-model constants or data-sheet rates of a GPU, `batches` is the number of
    products, `reads_c` says whether the epilogue reads C, and `order` is the order of additions
    along k that plans must have. If `device` is a `GpuFigures`, `order` has no effect.
    """
    if isinstance(device, GpuFigures):
        return mma_sync_choices(problem, device, batches=batches, reads_c=reads_c)
    return choices(problem, device, batches=batches, reads_c=reads_c, order=order, nearest=False)


def origin(device: Constants | GpuFigures) -> str:
    """A phrase that says where the numbers about a GPU that predict times of kernels come from."""
    return device.origin if isinstance(device, GpuFigures) else device.source


def _advice(device: Constants | GpuFigures) -> str:
    """A sentence that says how to replace estimates of a device by measurements."""
    if isinstance(device, GpuFigures):
        return (
            "tune=True measures the plans of a size on this GPU; coordgraph calibrate measures "
            "kernels with wgmma only."
        )
    return "Run coordgraph calibrate on this GPU to measure it."


def _main(choice: Choice) -> float:
    """Seconds of the term `main`: a plan's predicted time minus the other terms of `SUMMANDS`."""
    return choice.seconds - sum(choice.terms[name] for name in SUMMANDS if name != "main")


def _cells(choice: Choice) -> list[str]:
    """The predicted time of a plan, and each term of that time, in microseconds as text.

    The terms are rounded so that the shown summands add up to the shown total.
    """
    digits = 1 if choice.seconds * MICRO < 1000 else 0

    def rounded(seconds: float) -> float:
        return round(seconds * MICRO, digits) + 0.0  # not -0.0

    total = rounded(choice.seconds)
    summands = {name: rounded(choice.terms[name]) for name in SUMMANDS if name != "main"}
    summands["main"] = total - sum(summands.values())
    covered = [rounded(choice.terms[name]) for name in COVERED]
    numbers = [total, *(summands[name] for name in SUMMANDS), *covered]
    return [f"{number:.{digits}f}" for number in numbers]


def micros(seconds: float) -> str:
    """Format a time given in seconds as a number of microseconds, without the unit.

    Numbers below 1000 have one decimal place, larger numbers none.
    """
    micro = seconds * MICRO
    return f"{micro:.1f}" if micro < 1000 else f"{micro:.0f}"


def page(rows: list[list[str]], reasons: list[str]) -> str:
    """Format a table as text, with plans in the first column, and sentences below the table.

    Args:
        rows: the rows of the table, the first of which is its header.
        reasons: sentences to write below the table.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines: list[str] = []
    for plan, *numbers in rows:
        cells = [x.rjust(width) for x, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([plan.ljust(widths[0]), *cells]))
    return "\n".join([*lines, "", *reasons])
