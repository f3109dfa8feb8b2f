"""Simulation of thread barriers (`bar.sync` and the like) and of asynchronous groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coordgraph.control.effects import AwaitGroups, Commit, Converge, Meet
from coordgraph.verification.memory_order.agents import WARPGROUP, Agent
from coordgraph.verification.memory_order.events import Event, Log, value_of
from coordgraph.verification.memory_order.steps import Step
from coordgraph.verification.memory_order.synchronisation import BarrierState, Conflict, Team
from coordgraph.verification.memory_order.thread_values import WARP

__all__ = ["Gathering", "Gatherings"]

Gathering = Commit | AwaitGroups | Converge | Meet
"""Type: effects on thread barriers and on groups of asynchronous operations."""


class Gatherings:
    """Simulates the thread barriers of a launch, and the async-groups that warpgroups commit."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.barriers: dict[tuple[Any, ...], BarrierState] = {}
        self.teams: dict[tuple[int, int, str, int], Team] = {}

    def perform(self, agent: Agent, step: Step, number: int, effect: Gathering) -> Iterator[Event]:
        """Simulate a thread at a barrier or async-group; yield an event while the thread waits.

        `number` is the position of `effect` in `step.effects`.
        """
        match effect:
            case Commit():
                self._commit(agent, step, effect)
            case AwaitGroups():
                yield from self._await_groups(agent, step, effect)
            case Converge():
                yield from self._converge(agent, step, effect)
            case Meet():
                yield from self._meet(agent, step, number, effect)

    def _commit(self, agent: Agent, step: Step, effect: Commit) -> None:
        event = self.log.add(agent, step, effect)
        agent.clock.add(event)
        groups = agent.groups.setdefault(effect.group, [])
        made = agent.open.pop(effect.group, (0, 0))
        if effect.together:
            key = agent.workgroup, agent.thread // WARPGROUP, effect.group, len(groups)
            team = self.teams.setdefault(key, Team(WARPGROUP))
            team.here += agent.weight
            team.time |= agent.clock.time
            team.events |= made[1]
        groups.append(made)

    def _await_groups(self, agent: Agent, step: Step, effect: AwaitGroups) -> Iterator[Event]:
        groups = agent.groups.get(effect.group, [])
        for number in range(max(0, len(groups) - effect.pending)):
            reads, every = groups[number]
            key = agent.workgroup, agent.thread // WARPGROUP, effect.group, number
            if (team := self.teams.get(key)) is not None:
                while team.here < team.expected:
                    yield Event(
                        agent, step, effect, f"{team.here} of {team.expected} threads have arrived"
                    )
                agent.clock.time |= team.time
                agent.clock.add(team.events)
            agent.clock.add(reads if effect.read else every)
        self.log.add(agent, step, effect)

    def _converge(self, agent: Agent, step: Step, effect: Converge) -> Iterator[Event]:
        warp = agent.thread // WARP
        state = self.barriers.setdefault(("warp", agent.workgroup, warp), BarrierState(WARP))
        event = self.log.add
        generation = state.arrive(
            agent.clock, agent.weight, lambda: event(agent, step, effect, "converged")
        )
        while len(state.done) <= generation:
            yield Event(agent, step, effect, f"{state.here} of {WARP} lanes have arrived")
        agent.clock.join(state.done[generation][1], visible=False)

    def _meet(self, agent: Agent, step: Step, number: int, effect: Meet) -> Iterator[Event]:
        if effect.identifier is None:
            cluster = self.log.facts.cluster_of(agent.workgroup)
            of: tuple[Any, ...] = "cluster", cluster
            expected = self.log.facts.threads * self.log.facts.ranks
        else:
            of = "barrier", agent.workgroup, value_of(step, number, "place", agent)
            expected = effect.workitems or self.log.facts.threads
        state = self.barriers.setdefault(of, BarrierState(expected))
        self.log.add(agent, step, effect, "", *of)
        if state.expected != expected:
            raise Conflict(
                f"one barrier is used for {state.expected} threads and for {expected} threads; use "
                "two barriers"
            )
        event = self.log.add
        generation = state.arrive(
            agent.clock,
            agent.weight,
            lambda: event(agent, step, None, "completes a phase", *of),
        )
        while len(state.done) <= generation:
            yield Event(agent, step, effect, f"{state.here} of {expected} threads have arrived", of)
        agent.clock.join(state.done[generation][1])
