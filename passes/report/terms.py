"""The report's comparison of the cost model's terms with simulated and measured times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coordgraph import CoordGraphError, Gemm, KernelGraph
from passes.choosing import Plan
from passes.choosing.explaining import COVERED, SUMMANDS
from passes.choosing.model import cost
from passes.choosing.plan_table import Table
from passes.choosing.ranking import LEARNED, LIMITS, PARTS
from passes.simulation import Kernel, Machine, Simulation

__all__ = ["terms"]

OF_BUCKETS: Mapping[str, tuple[str, ...]] = {
    "launch": ("launch", "start"),
    "main": ("multiply", "outside D", "hand-over"),
    "tiles": ("epilogue",),
    "fixup": ("fix-up", "wait"),
    "cluster": (),
    "correction": (),
    "idle": ("gap", "tail"),
}
"""For each term of the cost model: the kinds of time of a launch (see
`passes.report.timelines.BUCKETS`) that the term predicts. To compare them, the time of these kinds
is summed over all workgroups, then divided by the number of workgroups that are resident on the GPU
at once."""
MAIN = f"the main loop: the largest of {', '.join(COVERED)}, and more where others are close to it"
IDLE = "slots without work; the model counts the busiest workgroup, so it has no such term"


def terms(
    graph: KernelGraph,
    given: Mapping[str, int],
    simulation: Simulation,
    kernel: Kernel,
    runs: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Data of the section that compares terms of the cost model's predicted time with runs.

    Args:
        graph: the scheduled graph.
        given: the launch arguments.
        simulation: the simulated run of the launch.
        kernel: the cluster shape, and whether the consumers are cooperative or ping-pong.
        runs: report data of the simulated run and, if there is one, of the measured run.

    Returns:
        A dict, whose `rows` have the seconds of each term: `model` is the prediction, or None if
        the cost model does not support the launch (`note` is then the reason); `runs` are averages
        over the workgroups that are resident at once.
    """
    predicted, note = _predicted(graph, given, simulation, kernel)
    rows = [
        {
            "name": name,
            "what": {**PARTS, "main": MAIN, "correction": LEARNED}.get(name, IDLE),
            "model": predicted.get(name),
            "runs": [
                sum(run["buckets"][b] for b in buckets) / run["slots"] if run["slots"] else 0.0
                for run in runs
            ],
        }
        for name, buckets in OF_BUCKETS.items()
        if buckets or predicted.get(name)
    ]
    limits = [
        {"name": name, "what": what, "model": predicted[name]}
        for name, what in {"loop": PARTS["loop"], **LIMITS}.items()
        if name in predicted
    ]
    return {
        "note": note,
        "runs": [run["name"] for run in runs],
        "total": {
            "model": predicted.get("total"),
            "runs": [run["makespan"] / 1e9 for run in runs],
        },
        "rows": rows,
        "limits": limits,
        "memory": {
            "asked": simulation.asked_bytes,
            "read": simulation.read_bytes,
            "compulsory": simulation.compulsory_bytes,
            "stored": simulation.stored_bytes,
            "workspace": simulation.workspace_bytes,
        },
    }


def _predicted(
    graph: KernelGraph, given: Mapping[str, int], simulation: Simulation, kernel: Kernel
) -> tuple[dict[str, float], str]:
    """(seconds of the cost model's terms by name, ''), or ({}, the reason why there are none)."""
    machine: Machine = simulation.machine
    gemm = Gemm.of(graph.gemm)
    if machine.constants is None:
        return {}, f"The cost model covers wgmma and TMA; {machine.name} has neither."
    if gemm.leading:
        return {}, "The cost model's terms are shown for single products only."
    sizes = {axis: given.get(axis, getattr(gemm, axis)) for axis in "mnk"}
    m, n, k = (sizes[axis] for axis in "mnk")
    shape = next(iter(graph.tilings)).shape
    workgroups = given.get("workgroups")
    if workgroups is None and "workgroups" in {p.name for p in graph.parameters.given}:
        workgroups = simulation.steps.workgroups
    plan = Plan(shape, kernel.cluster, ",".join(graph.log), workgroups, kernel.consumers)
    try:
        found = cost(Table.of([(replace(gemm, m=m, n=n, k=k), plan)]), machine.constants)
    except (CoordGraphError, ValueError) as error:
        return {}, f"The cost model does not cover this launch: {error}"
    row = found.row(0)
    rest = sum(row[name] for name in SUMMANDS if name != "main")
    return {**row, "main": row["total"] - rest}, ""
