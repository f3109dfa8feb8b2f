"""`check_graph`: runs the named checks of a scheduled graph or of a lowered graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter

from coordgraph.errors import VerifyError
from coordgraph.foreign_graphs import faults_named
from coordgraph.kernel import CHECK, KernelGraph
from coordgraph.validation import whole
from coordgraph.verification.addresses import bounds
from coordgraph.verification.cover import cover
from coordgraph.verification.evidence import LIMITS, Evidence
from coordgraph.verification.fix_up import fix_up
from coordgraph.verification.forward_progress import progress
from coordgraph.verification.launch import Launch
from coordgraph.verification.memory_order.check import NAME as MEMORY_ORDER
from coordgraph.verification.memory_order.check import NOT_COVERED, memory_order, reduced_launches
from coordgraph.verification.named import NamedCheck
from coordgraph.verification.size_rules import sizes as size_rules
from coordgraph.verification.verdicts import Report, Verdict

__all__ = ["CHECKS", "check_graph"]

CHECKS: dict[str, NamedCheck] = {
    check.name: check for check in (size_rules, cover, fix_up, progress, bounds)
}
"""Every named check, in the order in which they run."""
Sizes = Mapping[str, int | Sequence[int]]
"""Launch arguments by name: values of parameters, and the entries of tables."""


@CHECK.implement
def check_graph(graph: KernelGraph, sizes: Sizes | None = None, level: str = "default") -> Report:
    """Run every named check of the graph's level.

    Args:
        graph: a graph of the level `scheduled`, or `lowered` for GPUs; a lowered graph has the one
            check `memory order`.
        sizes: the launch arguments to examine, such as `{"m": 100, "n": 30, "k": 7}`, and the
            entries of tables; None chooses small launches, such as those just below and above a
            multiple of the tile.
        level: `default` takes a few tenths of a second, `all` a few seconds.

    Raises:
        VerifyError: the graph has no schedule, fails the checks of its structure, or `level` is
            unknown.
        LaunchError: a parameter or a table is missing in `sizes`, or out of bounds.
    """
    if level not in LIMITS:
        raise VerifyError(f"level={level!r} is unknown; use one of {', '.join(LIMITS)}")
    if graph.level not in ("scheduled", "lowered"):
        raise VerifyError(
            f"the graph has the level '{graph.level}'; check a graph to which a schedule was "
            "applied"
        )
    graph.verify()
    launches = None if sizes is None else (_launch(graph, sizes),)
    if graph.level == "lowered":
        examined, start = launches or reduced_launches(graph, level), perf_counter()
        with faults_named(f"the check {MEMORY_ORDER}", graph):
            verdict = memory_order(graph, examined)
        verdict = replace(verdict, seconds=perf_counter() - start)
        return Report((verdict,), examined, NOT_COVERED)
    evidence = Evidence(graph, LIMITS[level], launches)
    verdicts: list[Verdict] = []
    for check in CHECKS.values():
        start = perf_counter()
        with faults_named(f"the check {check.name}", graph):
            found = check.examine(evidence)
        verdicts.append(Verdict(check.name, *found, seconds=perf_counter() - start))
    return Report(tuple(verdicts), evidence.launches)


def _launch(graph: KernelGraph, sizes: Sizes) -> Launch:
    """A `Launch` with the given arguments, which are checked against the graph's bounds."""
    values = {name: whole(v, name) for name, v in sizes.items() if not isinstance(v, Sequence)}
    tables = {name: tuple(v) for name, v in sizes.items() if isinstance(v, Sequence)}
    given = {p.name: 0 for p in graph.parameters.given if p.minimum == 0} | values
    graph.parameters.launch(given, tables)
    return Launch(values, tables)
