"""The report's verdict: why a launch is slower than it could be, and which schedules are faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from coordgraph import CoordGraphError, Gemm, KernelGraph
from coordgraph.elements import dtype
from coordgraph.interpreter.lockstep import StepKind
from passes.choosing import Plan, rank
from passes.pipeline import Pipeline
from passes.report.limits import limit_of, micros, peak_source, share
from passes.simulation import Kernel, Machine, Simulation, simulate, simulate_plan

__all__ = ["Alternative", "alternatives", "headline", "peak_flops"]

SCHEDULES = ("data-parallel", "stream-k", "two-tile-stream-k", "hybrid-stream-k")
"""Schedules that are simulated as alternatives to the reported schedule, with the same macro tile
and order of output tiles as the reported one."""
BUSY, MOSTLY = 0.9, 0.75
"""Smallest utilisations for which the page answers "yes" and "mostly" to the question
"is the GPU busy?". Utilisation is the fraction of time in which a workgroup multiplies tiles of D,
averaged over all workgroups that the GPU can hold at a time."""
PEAK_BUSY, PEAK_MOSTLY = 0.6, 0.4
"""Smallest fractions of the tensor cores' peak rate for which the page answers "yes" and "mostly"
to the question "is the GPU busy?". The utilisation must reach its limit (BUSY or MOSTLY) as well.
The utilisation alone is no proof, since time spent multiplying includes waits for loads."""
WORTH = 0.02
"""Another schedule or plan is recommended if it saves at least this fraction of the launch's
time."""
PLANS = 3
"""Number of plans, the best by the cost model, that are simulated as alternatives."""
MOST_EVENTS = 60_000
"""Largest number of events of the reported launch's simulation for which alternatives are simulated
as well. With more events, each simulation would take seconds."""


@dataclass(frozen=True)
class Alternative:
    """Another schedule or plan for the same product, simulated on the same machine.

    Args:
        name: the pipeline of passes, or the plan, as text.
        option: the command-line option that selects the schedule or plan: `--schedule` or `--plan`.
        seconds: the simulated time of the launch, in seconds.
        utilisation: the fraction of time in which resident workgroups multiply.
    """

    name: str
    option: str
    seconds: float
    utilisation: float

    def as_data(self, base: float) -> dict[str, Any]:
        """Plain data for JSON; `change` is the change of the time, relative to `base` seconds."""
        return {
            "name": self.name,
            "option": self.option,
            "seconds": self.seconds,
            "utilisation": self.utilisation,
            "change": self.seconds / base - 1 if base else 0.0,
        }


def alternatives(
    graph: KernelGraph,
    given: Mapping[str, int],
    simulation: Simulation,
    kernel: Kernel,
    tables: Mapping[str, Sequence[int]],
) -> list[Alternative]:
    """Simulate other schedules and the cost model's best plans for the product, fastest first.

    The result is empty if the simulated launch has more than `MOST_EVENTS` events.
    """
    if len(simulation.events) > MOST_EVENTS:
        return []
    machine = simulation.machine
    found = [*_schedules(graph, given, machine, kernel, tables), *_plans(graph, given, machine)]
    return sorted(found, key=lambda a: a.seconds)


def _schedules(
    graph: KernelGraph,
    given: Mapping[str, int],
    machine: Machine,
    kernel: Kernel,
    tables: Mapping[str, Sequence[int]],
) -> Iterator[Alternative]:
    *orders, own = graph.log or ("",)
    shape = next(iter(graph.tilings)).shape
    free = {name: value for name, value in given.items() if name != "workgroups"}
    for schedule in SCHEDULES:
        if schedule == own.partition("{")[0]:
            continue
        text = ",".join([*orders, schedule])
        try:
            other = Pipeline.parse(text)(Gemm.of(graph.gemm).graph(shape))
            run = simulate(other, free, machine, tables=tables, kernel=kernel)
        except CoordGraphError:
            continue  # this schedule cannot be applied to the problem
        yield Alternative(text, "--schedule", run.makespan, run.utilisation)


def _plans(graph: KernelGraph, given: Mapping[str, int], machine: Machine) -> Iterator[Alternative]:
    """Simulate the plans with the best predicted times.

    Yields nothing for batches and groups of products, and for a GPU without constants of the cost
    model.
    """
    gemm = Gemm.of(graph.gemm)
    if machine.constants is None or gemm.leading:
        return
    m, n, k = (given.get(axis, getattr(gemm, axis)) for axis in "mnk")
    try:
        sized = replace(gemm, m=m, n=n, k=k)
        ranked = list(islice(rank(sized, machine.constants, PLANS), PLANS))
    except CoordGraphError:
        return  # the cost model does not support this problem
    for choice in ranked:
        plan: Plan = choice.plan
        try:
            run = simulate_plan(sized, plan, machine)
        except CoordGraphError:
            continue
        yield Alternative(str(plan), "--plan", run.makespan, run.utilisation)


def peak_flops(machine: Machine, element: str) -> float:
    """Peak rate of a machine's tensor cores, in operations per second, for an element type."""
    rate = machine.processors * machine.flops_per_clock * machine.clock
    return rate * 2 / dtype(element).bytes


def headline(
    run: Mapping[str, Any],
    simulation: Simulation,
    tiles: int,
    others: Sequence[Alternative],
    peak: float,
    modelled: Mapping[str, float],
) -> dict[str, Any]:
    """Data of the page's first section: whether the GPU is busy, the main loss of time, advice.

    Args:
        run: report data of the measured run; of the simulated run if none was measured.
        simulation: the simulated run of the same launch.
        tiles: number of output tiles.
        others: other schedules and plans for the same product, simulated.
        peak: the peak rate of the machine's tensor cores, in operations per second.
        modelled: the cost model's lower bounds of the time, in seconds, by the names `dram`, `l2`
            and `power`; empty if the cost model does not describe the launch.
    """
    seconds = run["makespan"] / 1e9
    total = run["slots"] * seconds
    shares = {name: value / total if total else 0.0 for name, value in run["buckets"].items()}
    busy = shares["multiply"]
    rate = simulation.flops / seconds if seconds else 0.0
    of_peak = rate / peak if peak else 0.0
    # The cost model leaves out the traffic of tiles outside D, so its bounds are not used if a tile
    # lies outside D.
    bounds = {} if shares["outside D"] else modelled
    limit = limit_of(busy, seconds, simulation, peak, bounds)
    machine = simulation.machine
    worst, why = _cause(shares, simulation, tiles)
    return {
        "answer": _answer(busy, of_peak),
        "source": run["name"],
        "utilisation": busy,
        "seconds": seconds,
        "flops_per_second": rate,
        "peak": peak,
        "peak_source": peak_source(machine, peak / machine.processors / machine.clock),
        "of_peak": of_peak,
        "limit": limit.as_data(),
        "cause": worst,
        "why": why,
        "advice": _advice(others, simulation),
        "alternatives": [a.as_data(simulation.makespan) for a in others],
    }


def _answer(busy: float, of_peak: float) -> str:
    """`Yes`, `Mostly` or `No`: whether the GPU is busy.

    Args:
        busy: the utilisation: the fraction of time in which workgroups multiply tiles of D.
        of_peak: the fraction of the tensor cores' peak that is reached.
    """
    if busy >= BUSY and of_peak >= PEAK_BUSY:
        return "Yes"
    return "Mostly" if busy >= MOSTLY and of_peak >= PEAK_MOSTLY else "No"


def _cause(shares: Mapping[str, float], s: Simulation, tiles: int) -> tuple[str, str]:
    """(name of the largest loss of time, such as `waits`; sentence that explains the loss)."""
    losses = {
        "tiles outside D": shares["outside D"],
        "the last wave": shares["tail"] + shares["gap"],
        "waits": shares["wait"],
        "fix-up": shares["fix-up"],
        "epilogues": shares["epilogue"],
        "the start": shares["launch"] + shares["start"],
        "hand-over": shares["hand-over"],
    }
    worst = max(losses, key=losses.__getitem__)
    lost = share(losses[worst])
    where = "SMs" if s.slots == s.machine.processors else "slots"
    if worst == "tiles outside D":
        return worst, f"{lost} multiplying output tiles that lie outside D, for nothing."
    if worst == "the last wave":
        return worst, f"{lost} idle: {_waves(s, tiles, where)}"
    if worst == "waits":
        waiting, longest = int((s.waiting_of > 0).sum()), micros(float(s.waiting_of.max()))
        text = (
            f"{lost} waiting: {waiting} of {s.steps.workgroups} workgroups wait for partial sums "
            f"of others, {longest} at most."
        )
        return worst, text
    if worst == "fix-up":
        return worst, f"{lost} fix-up: {s.fix_ups} partial sums are written, read and added."
    if worst == "epilogues":
        text = f"{lost} epilogues: {tiles} tiles are stored while nothing is multiplied."
        return worst, text
    if worst == "hand-over":
        return worst, f"{lost} hand-over: warpgroups wait for their turn on the tensor cores."
    text = f"{lost} at the start: launching, and loading the first tiles of each workgroup."
    return worst, text


def _waves(s: Simulation, tiles: int, where: str) -> str:
    """A sentence on why SMs are idle: few tiles or workgroups, a partial wave, unequal shares."""
    whole = not (s.steps.kind == StepKind.SEND).any()
    if whole and tiles < s.slots:
        some = "1 tile leaves" if tiles == 1 else f"{tiles} tiles leave"
        return f"{some} {s.slots - tiles} of {s.slots} {where} without work."
    if whole and s.slots and tiles % s.slots:
        full = tiles % s.slots / s.slots
        return (
            f"{tiles} tiles on {s.slots} {where} are {tiles / s.slots:.2f} waves; the last wave "
            f"is {share(full)} full."
        )
    if s.steps.workgroups < s.slots:
        return (
            f"{s.steps.workgroups} workgroups leave {s.slots - s.steps.workgroups} of {s.slots} "
            f"{where} without work."
        )
    multiplies = (s.steps.kind == StepKind.MULTIPLY) & (s.steps.count > 0)
    if idle := s.steps.workgroups - len(np.unique(s.steps.workgroup[multiplies])):
        return (
            f"{idle} of {s.steps.workgroups} workgroups have no work, because there are too few k "
            "tiles; choose fewer workgroups or smaller tiles."
        )
    return "workgroups end at different times, because their shares of the work differ."


def _advice(others: Sequence[Alternative], s: Simulation) -> str:
    """A sentence that recommends the fastest other schedule, and a plan if it is faster still.

    The result is '' if no other schedule or plan was simulated.
    """
    if not others:
        return ""
    found: list[str] = []
    least = s.makespan
    for option, what in (("--schedule", "schedule"), ("--plan", "plan")):
        best = next((a for a in others if a.option == option), None)
        if best is not None and best.seconds < (1 - WORTH) * least:
            least, change = best.seconds, _signed(best.seconds / s.makespan - 1)
            base = "" if found else f" of the simulated {micros(s.makespan)}"
            found.append(f"the {what} {best.name}: {micros(least)} ({change}{base})")
    if not found:
        return "No other schedule or plan that was simulated is faster."
    return f"Try {', or '.join(found)}."


def _signed(change: float) -> str:
    return f"{'−' if change < 0 else '+'}{share(abs(change))}"
