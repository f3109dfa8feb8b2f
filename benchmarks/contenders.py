"""What competes: each is prepared for a problem, and what was measured of it becomes a row."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import codegen
from benchmarks.plans import Plan
from benchmarks.problem import DTYPES, Problem, Run
from benchmarks.roofline import Roof
from benchmarks.timing import REGIMES, Sampler, Spread, take_turns
from codegen.dispatch import chosen
from coordgraph import CoordGraphError

__all__ = [
    "COORDGRAPH",
    "CUBLAS",
    "FAILED",
    "Contender",
    "Library",
    "Ours",
    "Unavailable",
    "compete",
    "exit_where_wrong",
    "fill_cache",
]

CUBLAS, COORDGRAPH = "cuBLAS", "coordgraph"
FAILED = "FAILED"
"""How a fault begins that is an error of the program; a wrong result begins with WRONG."""


class Unavailable(Exception):
    """A contender cannot do this, or is not installed; says why."""


class Contender(Protocol):
    """A way to multiply.

    `ours` tells our kernels from peers; `details` are about the last problem it was prepared for.
    """

    name: str
    ours: bool
    details: dict[str, Any]

    def prepare(self, problem: Problem) -> Run:
        """A function for this problem; Unavailable or CoordGraphError where there is none."""
        ...


class Ours:
    """A plan's kernel; `kernel` may be the error that it ended with."""

    ours = True

    def __init__(self, plan: Plan, kernel: Any) -> None:
        self.plan, self.name, self.kernel = plan, str(plan), kernel
        self.details: dict[str, Any] = {}
        if not isinstance(kernel, CoordGraphError):
            self.details = {"registers": kernel.registers, "resident": kernel.resident}

    def prepare(self, problem: Problem) -> Run:
        if isinstance(self.kernel, CoordGraphError):
            raise self.kernel
        grid = self.plan.workgroups
        return lambda a, b, out: self.kernel(a, b, out=out, workgroups=grid)


class Library:
    """`codegen.matmul`, which chooses a kernel for each shape itself.

    Args:
        tune: let it measure to choose.
    """

    name, ours = COORDGRAPH, True

    def __init__(self, *, tune: bool = False) -> None:
        self.tune = tune
        self.details: dict[str, Any] = {}

    def prepare(self, problem: Problem) -> Run:
        turned: dict[str, Any] = {
            "transpose_a": problem.a_turned,
            "transpose_b": problem.b_turned,
        }
        a, b, out = problem.sets[0]
        start = time.perf_counter()
        codegen.matmul(a, b, out=out, tune=self.tune, **turned)
        seconds = time.perf_counter() - start
        # What the first call found by measuring is remembered for this shape.
        plan = str(chosen(a, b, out=out, **turned))
        self.details = {"plan": plan, "first_call_seconds": seconds, "tuned": self.tune}
        return lambda a, b, out: codegen.matmul(a, b, out=out, **turned)


def exit_where_wrong(rows: Sequence[dict[str, Any]]) -> None:
    """End the command with an error where a result is wrong or a contender failed."""
    faults = [row.get("problem", "") for row in rows]
    if any(fault.startswith(("WRONG", FAILED)) for fault in faults):
        sys.exit("some results are wrong, or contenders failed")


def fill_cache(shape: tuple[int, int, int], layout: str, dtype: str) -> None:
    """Let `codegen.matmul` choose for a problem and build what it chose (in a process apart)."""
    import torch

    (m, n, k), kind = shape, getattr(torch, DTYPES[dtype][0])
    a_turned, b_turned = (side == "t" for side in layout)
    a = torch.empty((k, m) if a_turned else (m, k), dtype=kind, device="cuda")
    b = torch.empty((n, k) if b_turned else (k, n), dtype=kind, device="cuda")
    with suppress(CoordGraphError):  # who measures it meets it again
        codegen.matmul(a, b, transpose_a=a_turned, transpose_b=b_turned)


@dataclass
class Entry:
    """A contender in one problem."""

    contender: Contender
    details: dict[str, Any] = field(default_factory=dict)
    sampler: Sampler | None = None
    fault: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)


def _enter(contender: Contender, problem: Problem, options: Any) -> Entry:
    """Prepare and check a contender, and get it ready to be timed."""
    entry = Entry(contender)
    loose = not contender.ours
    try:
        run = contender.prepare(problem)
        fault = problem.fault(lambda: problem.launch(run, 0), rounded_partials=loose)
        if fault is None:
            sampler = Sampler(
                lambda number: problem.launch(run, number),
                len(problem.sets),
                options.seconds,
                graphs=options.graphs,
            )
            # Launches that follow each other closely must not disturb each other either.
            fault = problem.fault(sampler.sample, rounded_partials=loose)
            entry.sampler = sampler if fault is None else None
        entry.fault = fault or ""
    except (CoordGraphError, Unavailable) as error:
        entry.fault = str(error)
    except Exception as error:  # a long run goes on without this one, and ends with a failure
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
    state: Callable[[float], dict[str, float]] = lambda start: {},
    roof: Roof | None = None,
) -> Iterator[dict[str, Any]]:
    """Time all contenders whose results are right, in turns; a row for each and every regime.

    Args:
        options: with `seconds` of a sample, `graphs` and `rounds`.
        deadline: see `take_turns`.
        state: what the device did since a time of `time.monotonic()`.
    """
    entries = [_enter(contender, problem, options) for contender in contenders]
    racing = [entry for entry in entries if entry.sampler is not None]
    samplers = [entry.sampler for entry in racing if entry.sampler is not None]
    for number, name in enumerate(regimes):
        start = time.monotonic()
        until = start + (deadline - start) / (len(regimes) - number)
        found = take_turns(samplers, options.rounds, REGIMES[name], deadline=until)
        for entry, samples in zip(racing, found, strict=True):
            entry.samples[name] = samples
        yield from _rows(entries, problem, name, state(start), roof)


def _rows(
    entries: Sequence[Entry],
    problem: Problem,
    regime: str,
    state: dict[str, float],
    roof: Roof | None,
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
            "buffers": len(problem.sets), "device": state, **entry.details,
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
        if roof:
            row |= {"floor": roof.floor(m, n, k), "of_floor": roof.floor(m, n, k) / seconds}
        yield row
