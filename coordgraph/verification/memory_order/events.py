"""Events of the reduced machine, the accesses that it records, and violations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordgraph.control.effects import Effect
from coordgraph.verification.memory_order.agents import Agent
from coordgraph.verification.memory_order.clocks import Clock
from coordgraph.verification.memory_order.machine_facts import Facts
from coordgraph.verification.memory_order.steps import Place, Step
from coordgraph.verification.memory_order.synchronisation import Arrival, Conflict

__all__ = ["EARLIER", "Early", "Entry", "Event", "Log", "Violation", "value_of"]

Early = Mapping[tuple[int, str, int], Mapping[int, Sequence[Arrival]]]
"""Unordered arrivals by mbarrier (its workgroup, dimension and place) and by phase."""
EARLIER = 1
"""The bit of the event that earlier launches have ended."""


@dataclass(frozen=True, slots=True)
class Event:
    """An effect that an agent performed, or that TMA or wgmma performs for it.

    Args:
        agent: the agent.
        step: the step of the agent.
        effect: the effect.
        what: what happens, if the effect does not say it.
        object: the barrier or flag, by kind and place; () if there is none.
    """

    agent: Agent
    step: Step
    effect: Effect | None = None
    what: str = ""
    object: tuple[Any, ...] = ()


@dataclass(slots=True)
class Entry:
    """The accesses of one step by the threads of a class.

    Args:
        step: the step.
        places: the places that are accessed.
        proxy: whether TMA or wgmma accesses them.
        asynchronous: whether another agent than the thread accesses them.
        events: for each agent of the class, the bits of the reads and of the writes.
        clocks: for each agent of the class, what happened before.
    """

    step: Step
    places: list[Place]
    proxy: bool
    asynchronous: bool
    agents: list[Agent] = field(default_factory=list[Agent])
    events: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    clocks: list[Clock] = field(default_factory=list[Clock])


class Violation(Exception):
    """A fault of a lowered graph.

    Args:
        problem: what is wrong, as one sentence.
        first, second: the numbers of the two events that are not ordered, if there are two.
        waiting: for a deadlock, the agents that wait, and the events that they cannot perform.
    """

    def __init__(
        self,
        problem: str,
        first: int | None = None,
        second: int | None = None,
        waiting: tuple[Event, ...] = (),
    ) -> None:
        super().__init__(problem)
        self.problem, self.first, self.second, self.waiting = problem, first, second, waiting


@dataclass
class Log:
    """The events of an execution.

    Args:
        facts: what the graph says about memory and clusters.
        events: the events by number; number 0 is the end of earlier launches.
        foreign: events that touch a workgroup's shared memory from outside its threads, with the
            workgroup.
    """

    facts: Facts
    events: list[Event | None] = field(default_factory=lambda: [None])
    foreign: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def add(self, agent: Agent, step: Step, effect: Effect | None, what: str = "", *of: Any) -> int:
        """Record an event; returns its bit."""
        self.events.append(Event(agent, step, effect, what, of))
        return 1 << (len(self.events) - 1)

    def launched(self, agent: Agent) -> None:
        """Check that earlier launches have ended before an access to device memory."""
        if not agent.clock.seen & EARLIER:
            raise Conflict("device memory is used while an earlier launch may still use it")


def value_of(step: Step, number: int, name: str, agent: Agent) -> int:
    """A number that an effect of a step needs, for the agent's thread."""
    found = step.values[number, name]
    return int(found if isinstance(found, int) else found[agent.thread])
