"""Time contenders on one problem in turn; each gives a row of the record."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.contender import CUBLAS, Contender, Unavailable
from benchmarks.problems.problem import Problem
from benchmarks.timing.roofline import Roofline
from benchmarks.timing.sampler import (
    HEAT_SECONDS,
    REGIMES,
    Sampler,
    Spread,
    sample_in_rounds,
)
from coordgraph import CoordGraphError

__all__ = ["FAILED", "WRONG", "compete", "exit_if_wrong", "is_wrong"]

WRONG, FAILED = "WRONG", "FAILED"
"""First words of the text `problem` in a row of a contender that was not timed.

WRONG: its result is wrong. FAILED: it raised an unexpected exception. With any other first word,
the text says why the contender cannot compute these sizes or types.
"""


def is_wrong(row: dict[str, Any]) -> bool:
    """True if a row reports a wrong result or an unexpected exception."""
    return str(row.get("problem", "")).startswith((WRONG, FAILED))


def exit_if_wrong(rows: Sequence[dict[str, Any]]) -> None:
    """End the command with an error if any row has a wrong result or an unexpected exception."""
    if any(map(is_wrong, rows)):
        sys.exit(
            "some results are wrong, or contenders raised unexpected exceptions: see WRONG and "
            "FAILED above"
        )


@dataclass
class Entry:
    """The measured times of one contender (kernel or library) on one problem.

    Args:
        contender: the kernel or library that is timed.
        details: further columns for the record, read right after the contender was prepared.
        sampler: measures the contender's times; None if the contender has a fault.
        fault: the reason why the contender is not timed; '' if it is timed.
        samples: the seconds of one launch in each round, by the name of a regime of
            `benchmarks.timing.sampler.REGIMES`: with or without pauses between the samples.
    """

    contender: Contender
    details: dict[str, Any] = field(default_factory=dict)
    sampler: Sampler | None = None
    fault: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)


Check = Callable[[Contender, Callable[[], Any]], str | None]
"""A function that checks the D that a contender writes; it returns what is wrong, or None."""


def _prepared(contender: Contender, problem: Problem, options: Any, check: Check) -> Entry:
    """Prepare a contender, check its result, and make it ready to be timed."""
    entry = Entry(contender)
    try:
        run = contender.prepare(problem)
        fault = check(contender, lambda: problem.launch(run, 0))
        if fault is None:
            sampler = Sampler(
                lambda number: problem.launch(run, number),
                len(problem.sets),
                options.seconds,
                graphs=options.graphs,
            )
            # Check again after back-to-back launches, which must not corrupt each other's results.
            fault = check(contender, sampler.sample)
            entry.sampler = sampler if fault is None else None
        entry.fault = fault or ""
    except (CoordGraphError, Unavailable) as error:
        entry.fault = str(error)
    except Exception as error:  # the other contenders are still timed; the command fails at its end
        entry.fault = f"{FAILED}: {type(error).__name__}: {error}"
    entry.details = dict(contender.details)
    return entry


def compete(
    contenders: Sequence[Contender],
    problem: Problem,
    options: Any,
    *,
    regimes: Sequence[str] = ("sustained",),
    deadline: float = math.inf,
    device_state: Callable[[float], dict[str, float]] = lambda start: {},
    roofline: Roofline | None = None,
    check: Check | None = None,
    heat_seconds: float = HEAT_SECONDS,
) -> Iterator[dict[str, Any]]:
    """Check all contenders' results, time those without errors in turn, and yield their rows.

    Args:
        contenders: the contenders to time.
        problem: the operands and the reference result.
        options: the parsed command line with `seconds` of one sample, `graphs` and `rounds`.
        regimes: how samples follow each other: `burst`, with pauses, or `sustained`; every
            contender gets one row per regime.
        deadline: the time when sampling should end, by `time.monotonic()`.
        device_state: a function from a start time to the GPU's clocks and power since then.
        roofline: measured peak rates; with them, rows also get the lower bound on the time.
        check: a function that checks a contender's result; by default `problem.fault`.
        heat_seconds: how long to keep the GPU busy before the first round of a regime whose
            `Regime.heats` is True.
    """

    def product_fault(contender: Contender, compute: Callable[[], Any]) -> str | None:
        return problem.fault(compute, rounded_partials=not contender.ours)

    entries = [
        _prepared(contender, problem, options, check or product_fault) for contender in contenders
    ]
    timed = [(entry, entry.sampler) for entry in entries if entry.sampler is not None]
    for number, regime in enumerate(regimes):
        start = time.monotonic()
        until = start + (deadline - start) / (len(regimes) - number)
        samples = sample_in_rounds(
            [sampler for _, sampler in timed],
            options.rounds,
            REGIMES[regime],
            deadline=until,
            heat_seconds=heat_seconds,
        )
        for (entry, _), seconds in zip(timed, samples, strict=True):
            entry.samples[regime] = seconds
        yield from _rows(entries, problem, regime, device_state(start), roofline)


def _rows(
    entries: Sequence[Entry],
    problem: Problem,
    regime: str,
    device: dict[str, float],
    roofline: Roofline | None,
) -> Iterator[dict[str, Any]]:
    shape = problem.shape
    m, n, k = shape.m, shape.n, shape.k
    medians = {
        entry.contender.name: Spread.of(entry.samples[regime]).median
        for entry in entries
        if regime in entry.samples
    }
    for entry in entries:
        name = entry.contender.name
        row: dict[str, Any] = {
            "shape": shape.name, "m": m, "n": n, "k": k, "layout": problem.layout,
            "regime": regime, "name": name, "ours": entry.contender.ours,
            "buffers": len(problem.sets), "device": device, **entry.details,
        }  # fmt: skip
        if entry.fault:
            yield {**row, "problem": entry.fault}
            continue
        seconds = medians[name]
        row |= {
            "seconds": Spread.of(entry.samples[regime]).json(),
            "tflops": 2e-12 * m * n * k / seconds,
        }
        if CUBLAS in medians:
            row["of_cublas"] = medians[CUBLAS] / seconds
        if roofline:
            floor = roofline.least_seconds(m, n, k)
            row |= {"floor": floor, "of_floor": floor / seconds}
        yield row
