"""Classes for a simulated launch: its events, its memory accesses, and the faults found in it."""

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
"""Type: for each mbarrier, given by (workgroup, dimension, index), and for each of its phases, the
arrivals that may count for that phase instead of a later one."""
EARLIER = 1
"""The event set (one bit per event) that holds only event 0: all earlier launches have ended."""


@dataclass(frozen=True, slots=True)
class Event:
    """An effect that a simulated thread performs, or that TMA or wgmma performs for the thread.

    Args:
        agent: the simulated thread.
        step: the operation of the thread that has the effect.
        effect: the memory access or synchronisation; None for an event that no thread performs,
            which `what` describes.
        what: what happens, in words; '' if `effect` is enough to describe the event.
        object: identifies the barrier or flag: its kind, such as `mbarrier`, then its name and
            index; () if the event uses none.
    """

    agent: Agent
    step: Step
    effect: Effect | None = None
    what: str = ""
    object: tuple[Any, ...] = ()


@dataclass(slots=True)
class Entry:
    """The memory accesses of one step by a class of threads: those that execute the same steps.

    Args:
        step: the step of these threads that makes the accesses.
        places: the elements that the threads access.
        proxy: whether TMA or wgmma makes the accesses.
        asynchronous: whether the accesses are asynchronous to the thread's program.
        agents: the simulated threads of the class.
        events: for each of `agents`, (read event, write event), each as an integer with one set
            bit.
        clocks: for each of `agents`, the events that happened before the accesses.
    """

    step: Step
    places: list[Place]
    proxy: bool
    asynchronous: bool
    agents: list[Agent] = field(default_factory=list[Agent])
    events: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    clocks: list[Clock] = field(default_factory=list[Clock])


class Violation(Exception):
    """Raised when a simulated launch shows a fault of the lowered graph, such as a data race.

    Args:
        problem: what is wrong, as one sentence.
        first, second: the numbers of the two events that are not ordered; None for events that the
            fault does not have, such as both for a deadlock.
        waiting: for a deadlock, the waits at which the simulated threads are blocked.
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
    """The events of a simulated launch.

    Args:
        facts: what the graph declares about memory, threads and clusters.
        events: the events by number; number 0 is the end of all earlier launches.
        foreign: (event as an integer with one set bit, workgroup) for each access to the shared
            memory of `workgroup` by TMA, by wgmma or by a thread of another workgroup.
    """

    facts: Facts
    events: list[Event | None] = field(default_factory=lambda: [None])
    foreign: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def add(self, agent: Agent, step: Step, effect: Effect | None, what: str = "", *of: Any) -> int:
        """Record an event; return the integer in which only the bit of this event is set."""
        self.events.append(Event(agent, step, effect, what, of))
        return 1 << (len(self.events) - 1)

    def launched(self, agent: Agent) -> None:
        """Raise `Conflict` if device memory may be accessed before earlier launches have ended."""
        if not agent.clock.seen & EARLIER:
            raise Conflict(
                "device memory is accessed while an earlier launch may still access it; put an "
                "AwaitEarlierLaunch before the access"
            )


def value_of(step: Step, number: int, name: str, agent: Agent) -> int:
    """The value of an effect's operand, such as a flag's index, for one simulated thread.

    Args:
        step: the step that has the effect.
        number: the position of the effect in `step.effects`.
        name: the name of the operand, such as `place` for the index of a barrier or flag.
        agent: the simulated thread.
    """
    found = step.values[number, name]
    return int(found if isinstance(found, int) else found[agent.thread])
