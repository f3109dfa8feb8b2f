"""Simulate one launch of a lowered graph and search it for data races and deadlocks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from sympy import Symbol

from coordgraph.control.resolve import Node, resolve
from coordgraph.errors import VerifyError
from coordgraph.integers import evaluate, index_symbol
from coordgraph.kernel import KernelGraph
from coordgraph.verification.launch import Launch
from coordgraph.verification.memory_order.agents import ThreadClass, classify
from coordgraph.verification.memory_order.compiled_values import Formulas
from coordgraph.verification.memory_order.events import Early, Violation
from coordgraph.verification.memory_order.interleavings import counterexample
from coordgraph.verification.memory_order.machine import Machine
from coordgraph.verification.memory_order.machine_facts import Facts
from coordgraph.verification.memory_order.races import find_races
from coordgraph.verification.memory_order.steps import Walk
from coordgraph.verification.memory_order.thread_values import TooLarge, thread_symbols
from coordgraph.verification.verdicts import Counterexample

__all__ = ["Examiner"]

MOST_ROUNDS = 8
"""Largest number of simulations of a launch; if more are needed, an error is raised. A launch is
simulated again if an arrival may count for an earlier phase of its mbarrier than the last
simulation assumed."""
MOST_WORKGROUPS = 1 << 14
"""Largest number of workgroups of a launch that is simulated; a launch with more raises `TooLarge`
and is not examined."""


class Examiner:
    """Simulates launches of one lowered graph.

    The graph's expressions are compiled, and its memory facts collected, once for all launches.
    """

    def __init__(self, graph: KernelGraph) -> None:
        self.graph, self.facts, self.formulas = graph, Facts.of(graph), Formulas()

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every operation of the kernel graph, each with the indices of the loops around it."""
        return resolve(self.graph.control.root.body, self.graph.scope())

    def examine(self, launch: Launch) -> Counterexample | None:
        """Simulate a launch and compare all its accesses; return its first fault, or None.

        Raises:
            LaunchError: the graph does not allow the launch.
            TooLarge: the launch is over the budget of the simulation.
        """
        classes = self._classes(launch)
        early: Early = {}
        for _ in range(MOST_ROUNDS):
            machine = Machine(self.facts, [a for c in classes for a in c.agents()], early)
            found = _run(machine)
            if found is not None:
                return counterexample(found, machine.log, launch)
            before, early = early, machine.unordered
            if _times(before) == _times(early):
                return None
        raise VerifyError(
            f"after {MOST_ROUNDS} simulations of a launch, the check cannot tell for which phase "
            "of an mbarrier each arrival counts; order arrivals after the completion of earlier "
            "phases"
        )

    def _classes(self, launch: Launch) -> list[ThreadClass]:
        """For all workgroups of a launch: the classes of threads that execute equal steps."""
        classes: list[ThreadClass] = []
        known = self._parameters(launch)
        size = self.graph.workgroup.size
        assert size is not None
        grid = int(evaluate(size, known))
        if grid * self.facts.ranks > MOST_WORKGROUPS:
            raise TooLarge(
                f"the launch has {grid * self.facts.ranks} workgroups, over the budget of "
                f"{MOST_WORKGROUPS}; choose smaller sizes"
            )
        for number in range(grid * self.facts.ranks):
            classes += self._of_workgroup(number, known)
        return classes

    def _of_workgroup(self, number: int, known: Mapping[Symbol, Any]) -> list[ThreadClass]:
        facts, env = self.facts, dict(known)
        env |= thread_symbols(facts.workitem, facts.warp or "warp.number", facts.threads)
        env[self.graph.workgroup.symbol] = number // facts.ranks
        if facts.rank:
            env[index_symbol(facts.rank)] = number % facts.ranks
        walk = Walk(self.graph, self.formulas, env, facts.threads, facts.tracked)
        walk.run(self.nodes, np.ones(facts.threads, np.bool_))
        return classify(number, walk.steps, facts.threads)

    def _parameters(self, launch: Launch) -> dict[Symbol, Any]:
        """The values of the graph's parameters and tables in a launch, by symbol."""
        parameters = self.graph.parameters
        given = {p.name: 0 for p in parameters.given if p.minimum == 0} | dict(launch.values)
        values: Mapping[str, Any] = parameters.launch(given, dict(launch.tables))
        found: dict[Symbol, Any] = {p.symbol: values[p.name] for p in parameters.items}
        return found | {t.symbol: np.asarray(values[t.name]) for t in parameters.tables}


def _run(machine: Machine) -> Violation | None:
    """Run the simulation and return the first fault; None if there is none."""
    found: Violation | None = None
    try:
        machine.run()
    except Violation as violation:
        found = violation
    # If one fault leads to both a data race and a conflict at a barrier, the data race is reported:
    # it names the accesses.
    try:
        find_races(machine.entries.values(), machine.facts)
    except Violation as race:
        found = race
    return found


def _times(early: Early) -> dict[Any, list[tuple[int, int, int]]]:
    """Arrivals that may count for several phases of an mbarrier, as tuples that can be compared.

    The tuple is (event, time, seen): the arrival's event, and the two fields of its clock. A launch
    is simulated again until two simulations in a row give equal tuples.

    Args:
        early: by mbarrier and phase, the arrivals that may count for the phase.
    """
    return {
        (key, phase): [(a.event, a.clock.time, a.clock.seen) for a in arrivals]
        for key, phases in early.items()
        for phase, arrivals in phases.items()
    }
