"""Error messages for launches on the CPU that ended early."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from codegen.targets.cpu.control_block import ControlBlock, Fault
from coordgraph import CoordGraphError, KernelGraph, LaunchError
from coordgraph.interpreter import trace

__all__ = ["StoppedLaunch", "failure_text"]


class StoppedLaunch(LaunchError):
    """A launch on the CPU ended early because the graph is wrong; D may be partly written."""


SHOWN = 3
"""The most waiting workgroups that an error message lists."""


def failure_text(
    control: ControlBlock,
    graph: KernelGraph,
    scheduled: KernelGraph,
    operations: Sequence[tuple[str, str]],
    given: Mapping[str, int],
    tables: Mapping[str, Sequence[int]],
) -> str:
    """The error message for a launch that ended early: what stopped it, where, and what to do.

    Args:
        control: the control block of the launch.
        graph: the lowered graph.
        scheduled: the graph before lowering.
        operations: (kind, dimension) of each operation that can stop a launch, by its number.
        given: the value of each parameter of the launch, by name.
        tables: the entries of each table that the call passes, by name.
    """
    workgroup, operation, tensor, index = control.details
    kind, dim = operations[operation]
    if control.fault is Fault.DEADLOCK:
        return _deadlock(control, scheduled, operations, given, tables)
    where = f"workgroup {workgroup}, {kind}"
    if control.fault is Fault.DIVISION:
        return f"{where}: a division by {index}; divisors must be positive"
    if control.fault is Fault.NEGATIVE:
        return (
            f"{where}: the dividend {index} is negative, although the graph's sizes rule this out; "
            "call the graph's check() to find the wrong size"
        )
    if control.fault is Fault.LOOP:
        return f"{where}: the step of the loop over '{dim}' is not positive at index {index}"
    if tensor >= 0:
        (first, end), tensors = map(int, control.limits[tensor]), graph.tensors
        owner = tensors[tensor].name if tensor < len(tensors) else dim
    else:
        owner, first, end = f"the buffer '{dim}'", 0, graph.coordinates[dim].fixed_size
    if control.fault is Fault.TABLE:
        return f"{where}: entry {index} of the table '{dim}' is read, which has {end} entries"
    held = f"has the indices {first} to {end - 1}" if end > first else "has no elements"
    return f"{where}: index {index} along '{dim}' is outside {owner}, which {held}"


def _deadlock(
    control: ControlBlock,
    graph: KernelGraph,
    operations: Sequence[tuple[str, str]],
    given: Mapping[str, int],
    tables: Mapping[str, Sequence[int]],
) -> str:
    """The error message for a deadlock: which workgroups wait for ever, and for which flags."""
    told = {workgroup: operations[number][1] for workgroup, number in control.waits.items()}
    told |= _missing(graph, given, tables, told.keys())
    shown = [f"workgroup {w} waits for {what}" for w, what in sorted(told.items())[:SHOWN]]
    more = f" and {len(told) - SHOWN} more wait" if len(told) > SHOWN else ""
    return (
        "deadlock: every workgroup that runs waits for a flag that no workgroup will set: "
        f"{', '.join(shown)}{more}; check which partials the schedule sends and receives"
    )


def _missing(
    graph: KernelGraph,
    given: Mapping[str, int],
    tables: Mapping[str, Sequence[int]],
    waiting: Collection[int],
) -> dict[int, str]:
    """For each waiting workgroup: a text that names the partial sum that it never receives.

    The interpreter finds these partial sums by running the graph. If it cannot run the graph, the
    result is empty.
    """
    try:
        found = trace(graph, given, tables)
    except CoordGraphError:
        return {}
    return {
        receive.workgroup: f"the partial of output tile {receive.tile} in slot {receive.slot}"
        for receive in found.stuck()
        if receive.workgroup in waiting
    }
