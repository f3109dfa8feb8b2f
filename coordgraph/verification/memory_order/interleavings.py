"""Counterexamples of the check `memory order`: the events that lead to a fault, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from coordgraph.control.effects import Access, Asynchronous, Converge, Fence
from coordgraph.verification.launch import Launch
from coordgraph.verification.memory_order.events import Event, Log, Violation
from coordgraph.verification.memory_order.machine_facts import Facts
from coordgraph.verification.verdicts import Counterexample

__all__ = ["counterexample"]

BEFORE, AFTER = 3, 2
"""A data race has two events; a counterexample shows them among other events of their threads.
BEFORE: largest number of synchronising events that are shown before each of the two, from its own
thread. AFTER: largest number of synchronising events that are shown between the two, from the first
event's thread."""
WAITING = 6
"""Largest number of waiting threads that the counterexample of a deadlock shows."""


def counterexample(violation: Violation, log: Log, launch: Launch) -> Counterexample:
    """Convert a violation to a counterexample, with the interleaving that leads to it.

    Args:
        violation: the violation.
        log: the events of the simulated launch.
        launch: the launch arguments.
    """
    facts = log.facts
    if violation.waiting:
        found = list(_once(violation.waiting))[:WAITING]
        lines = [f"{_who(event, facts)} waits at {_what(event)}" for event in found]
        shown = found
    else:
        numbers = [n for n in (violation.first, violation.second) if n is not None]
        chosen = {n for number in numbers for n in _leading(log, number)}
        chosen |= {*_following(log, numbers[0], numbers[-1])} if numbers else set()
        shown = [event for n in numbers if (event := log.events[n]) is not None]
        marks = dict(zip(numbers, (" <-- first", " <-- second"), strict=False))
        every = (_line(log, n, facts) + marks.get(n, "") for n in sorted(chosen))
        lines = list(dict.fromkeys(every))
    workgroups = sorted({event.agent.workgroup // facts.ranks for event in shown})
    return Counterexample(violation.problem, launch, tuple(workgroups), interleaving=tuple(lines))


def _once(events: Iterable[Event]) -> Iterator[Event]:
    """Yield only the first of several events that differ in nothing but the thread.

    The compared events have the same workgroup, warp role, operation, and barrier or flag.
    """
    seen: set[tuple[object, ...]] = set()
    for event in events:
        key = event.agent.workgroup, event.step.role, id(event.step.op), event.object
        if key not in seen:
            seen.add(key)
            yield event


def _leading(log: Log, number: int) -> list[int]:
    """Numbers of the last synchronising events before event `number` in its thread, then `number`.

    At most BEFORE events precede `number`. The result is empty if the event belongs to no thread.
    """
    last = log.events[number]
    if last is None:
        return []
    of_agent = [
        n
        for n in range(number)
        if (event := log.events[n]) is not None
        and event.agent is last.agent
        and (event.object or isinstance(event.effect, Fence))
        and not isinstance(event.effect, Converge)
    ]
    return [*of_agent[-BEFORE:], number]


def _following(log: Log, number: int, end: int) -> list[int]:
    """Numbers of events after event `number` in which the thread of that event signals or waits.

    All numbers are less than `end`, and there are at most AFTER of them. The result is empty if the
    event `number` belongs to no thread.
    """
    last = log.events[number]
    if last is None:
        return []
    of_agent = (
        n
        for n in range(number + 1, end)
        if (event := log.events[n]) is not None and event.agent is last.agent and event.object
    )
    return [*islice(of_agent, AFTER)]


def _line(log: Log, number: int, facts: Facts) -> str:
    event = log.events[number]
    return "earlier launches end" if event is None else f"{_who(event, facts)}: {_what(event)}"


def _who(event: Event, facts: Facts) -> str:
    workgroup, rank = divmod(event.agent.workgroup, facts.ranks)
    of = f"workgroup {workgroup}" + (f", rank {rank}" if facts.ranks > 1 else "")
    role = f", {event.step.role}" if event.step.role else ""
    return f"{of}{role}, thread {event.agent.thread}"


def _what(event: Event) -> str:
    """Text of an event: its operation, the barrier, flag or memory it uses, and loop indices."""
    text = event.step.op.kind if event.effect is not None else event.what
    if event.object:
        text += f" of {_name(event)}" if event.effect is None else f" {_name(event)}"
    else:
        text += _memory(event)
    if event.effect is not None and event.what:
        text += f", where {event.what}"
    at = [f"{dim} = {_value(value, event)}" for dim, value in event.step.indices.items()]
    return f"{text} [{', '.join(at)}]" if at else text


def _name(event: Event) -> str:
    match event.object:
        case ("mbarrier", _, str(barrier), int(place)):
            return f"{barrier}[{place}]"
        case ("flag", str(flag), int(place)):
            return f"{flag}[{place}]"
        case ("barrier", _, number):
            return f"barrier {number}"
        case _:
            return "the cluster's barrier"


def _memory(event: Event) -> str:
    """Text that says which memory an event accesses, such as ` reads a.shared`."""
    effect = event.effect
    accesses = effect.accesses if isinstance(effect, Asynchronous) else (effect,)
    found = [f"{x.kind.value} {x.dim}" for x in accesses if isinstance(x, Access)]
    return f" ({', '.join(found)})" if found else ""


def _value(value: object, event: Event) -> int:
    if isinstance(value, np.ndarray):
        return int(value.reshape(-1)[event.agent.thread if value.size > 1 else 0])
    return int(str(value))
