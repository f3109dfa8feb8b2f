"""`check_graph`: runs the named checks of a scheduled graph or of a lowered graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter

from coordgraph.errors import VerifyError
from coordgraph.foreign_graphs import faults_named
from coordgraph.kernel import CHECK, KernelGraph
from coordgraph.validation import whole
from coordgraph.verification.addresses import bounds
from coordgraph.verification.batch_invariance import batch_invariance
from coordgraph.verification.cover import cover
from coordgraph.verification.evidence import LIMITS, Evidence
from coordgraph.verification.fix_up import fix_up
from coordgraph.verification.forward_progress import progress
from coordgraph.verification.launch import Launch
from coordgraph.verification.named import NamedCheck
from coordgraph.verification.size_rules import sizes as size_rules
from coordgraph.verification.verdicts import Report, Verdict

__all__ = ["CHECKS", "PROPERTIES", "check_graph"]

CHECKS: dict[str, NamedCheck] = {
    check.name: check for check in (size_rules, cover, fix_up, progress, bounds)
}
"""The named checks that run for every scheduled graph, by name, in the order in which they run."""
PROPERTIES: dict[str, NamedCheck] = {check.name: check for check in (batch_invariance,)}
"""Named checks, by name, that run only if a caller names them, because a correct graph need not
have the properties that they check."""
Sizes = Mapping[str, int | Sequence[int]]
"""Launch arguments by name: values of parameters, and the entries of tables."""


@CHECK.implement
def check_graph(
    graph: KernelGraph,
    sizes: Sizes | None = None,
    level: str = "default",
    checks: Sequence[str] | None = None,
) -> Report:
    """Run the named checks of the graph's level.

    Args:
        graph: a graph of the level `scheduled`, or `lowered` for GPUs.
        sizes: the launch arguments to examine, such as `{"m": 100, "n": 30, "k": 7}`, and the
            entries of tables; None chooses small launches, such as launches with sizes just below
            and above a multiple of the tile.
        level: `default` takes a few tenths of a second, `all` a few seconds.
        checks: the names of the checks to run: of `CHECKS` and `PROPERTIES` for a scheduled graph,
            of `lowered.LOWERED` for a lowered one. None runs all of `CHECKS`, or all of `LOWERED`.

    Raises:
        VerifyError: the graph has no schedule, fails the checks of its structure, or `level` or the
            name of a check is unknown.
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
    verdicts: list[Verdict] = []
    if graph.level == "lowered":
        # Imported here so that checks of scheduled graphs do not import the simulated machine.
        from coordgraph.verification.lowered import LOWERED, NOT_COVERED, reduced_launches

        wanted = _wanted(graph, checks, LOWERED, ())
        examined = launches or reduced_launches(graph, level)
        for name in wanted:
            start = perf_counter()
            with faults_named(f"the check {name}", graph):
                verdict = LOWERED[name](graph, examined)
            verdicts.append(replace(verdict, seconds=perf_counter() - start))
        return Report(tuple(verdicts), examined, NOT_COVERED)
    wanted = _wanted(graph, checks, CHECKS, PROPERTIES)
    evidence = Evidence(graph, LIMITS[level], launches)
    known = {**CHECKS, **PROPERTIES}
    for name in wanted:
        start = perf_counter()
        with faults_named(f"the check {name}", graph):
            found = known[name].examine(evidence)
        verdicts.append(Verdict(name, *found, seconds=perf_counter() - start))
    return Report(tuple(verdicts), evidence.launches)


def _wanted(
    graph: KernelGraph, names: Sequence[str] | None, usual: Iterable[str], others: Iterable[str]
) -> tuple[str, ...]:
    """The names of the checks to run.

    Args:
        graph: the graph to check.
        names: the names that the caller gave; None runs the checks named in `usual`.
        usual: the names of the checks that run by default for graphs of this graph's level.
        others: the names of further checks of graphs of this level.

    Raises:
        VerifyError: `names` contains a name that is not the name of a check for graphs of this
            graph's level.
    """
    if names is None:
        return (*usual,)
    names = (names,) if isinstance(names, str) else tuple(names)
    there = [*usual, *others]
    if unknown := [name for name in names if name not in there]:
        raise VerifyError(
            f"a {graph.level} graph has no check '{unknown[0]}'; its checks are {', '.join(there)}"
        )
    return names


def _launch(graph: KernelGraph, sizes: Sizes) -> Launch:
    """A `Launch` with the given arguments, which are checked against the graph's bounds."""
    values = {name: whole(v, name) for name, v in sizes.items() if not isinstance(v, Sequence)}
    tables = {name: tuple(v) for name, v in sizes.items() if isinstance(v, Sequence)}
    given = {p.name: 0 for p in graph.parameters.given if p.minimum == 0} | values
    graph.parameters.launch(given, tables)
    return Launch(values, tables)
