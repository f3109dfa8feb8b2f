"""Simulation of mbarriers, flags and counters: threads arrive at mbarriers, set flags, and wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coordgraph.control.effects import (
    Access,
    Arrive,
    Asynchronous,
    AwaitFlag,
    AwaitPhase,
    ChangeFlag,
    DrawTicket,
    Initialise,
    Kind,
    TakeFlag,
)
from coordgraph.control.tickets import next_value
from coordgraph.verification.memory_order.agents import Agent
from coordgraph.verification.memory_order.clocks import Clock
from coordgraph.verification.memory_order.events import Early, Event, Log, value_of
from coordgraph.verification.memory_order.steps import Step
from coordgraph.verification.memory_order.synchronisation import (
    TMA,
    Arrival,
    Conflict,
    Flag,
    Mbarrier,
)

__all__ = ["Signal", "Signals"]

Signal = Initialise | Arrive | AwaitPhase | ChangeFlag | AwaitFlag | TakeFlag | DrawTicket
"""Type: effects on mbarriers, flags, and counters from which workgroups take loop indices."""


class Signals:
    """The mbarriers of all workgroups and the flags in device memory of a simulated launch.

    Args:
        log: records the events.
        early: arrivals that an earlier simulation of the launch could not assign to one phase, see
            `Mbarrier`.
    """

    def __init__(self, log: Log, early: Early) -> None:
        self.log, self.early = log, early
        self.mbarriers: dict[tuple[int, str, int], Mbarrier] = {}
        self.flags: dict[tuple[str, int], Flag] = {}
        self.drawn: dict[tuple[str, int], int] = {}
        """How many tickets (loop indices) were taken from each counter, by (dimension that numbers
        the counters, index of the counter along it)."""

    def perform(self, agent: Agent, step: Step, number: int, effect: Signal) -> Iterator[Event]:
        """Simulate a thread at an mbarrier, flag or counter; yield an event while the thread waits.

        `number` is the position of `effect` in `step.effects`.
        """
        place = value_of(step, number, "place", agent)
        match effect:
            case Initialise():
                self._initialise(agent, step, effect, place)
            case Arrive():
                self._arrive(agent, step, number, effect, place)
            case AwaitPhase():
                yield from self._await_phase(agent, step, number, effect, place)
            case ChangeFlag():
                self._change(agent, step, number, effect, place)
            case AwaitFlag():
                yield from self._await_flag(agent, step, number, effect, place)
            case DrawTicket():
                self._draw(agent, step, number, effect, place)
            case TakeFlag():
                yield from self._take(agent, step, effect, place)

    # The following methods perform effects on mbarriers.

    def _initialise(self, agent: Agent, step: Step, effect: Initialise, place: int) -> None:
        key = agent.workgroup, effect.barrier, place
        event = self.log.add(agent, step, effect, "", "mbarrier", *key)
        if key in self.mbarriers:
            raise Conflict("an mbarrier is initialised twice; leave out one InitBarrier")
        self.mbarriers[key] = Mbarrier(effect.arrivals, event, self.early.get(key, {}))
        agent.clock.add(event)

    def _arrive(self, agent: Agent, step: Step, number: int, effect: Arrive, place: int) -> None:
        at = agent.workgroup
        if effect.rank is not None:
            at = self.log.facts.peer(agent, value_of(step, number, "rank", agent))
        event = self.log.add(agent, step, effect, "", "mbarrier", at, effect.barrier, place)
        agent.clock.add(event)
        if at != agent.workgroup:
            self.log.foreign.append((event, at))
        mbarrier = self._found(agent, at, effect.barrier, place)
        source = agent.workgroup, effect.scope
        arrival = Arrival(event, agent.clock.copy(), source, agent.weight)
        expected = effect.expected
        bytes = None if expected is None else value_of(step, number, "expected", agent)
        mbarrier.arrive(arrival, self._completion(agent, step, at, effect.barrier, place), bytes)

    def deliver(
        self, agent: Agent, step: Step, number: int, effect: Asynchronous, events: int
    ) -> None:
        """Complete a TMA load: count its bytes at the mbarriers of all workgroups that receive it.

        `events` is the set of the load's events: an integer with one bit per event.
        """
        (box,) = (x for x in effect.accesses if isinstance(x, Access) and x.kind is Kind.WRITE)
        times = value_of(step, number, "times", agent)
        size = box.count * self.log.facts.bytes_of(box.dim) * times
        place = value_of(step, number, "place", agent)
        if not size:
            return
        for at in self.log.facts.receivers(agent, box.receivers):
            mbarrier = self._found(agent, at, effect.barrier, place, proxy=True)
            clock = Clock(agent.clock.time | events, events, dict(agent.clock.fenced))
            completion = self._completion(agent, step, at, effect.barrier, place)
            mbarrier.deliver(Arrival(events, clock, TMA), completion, size)

    def _await_phase(
        self, agent: Agent, step: Step, number: int, effect: AwaitPhase, place: int
    ) -> Iterator[Event]:
        parity = value_of(step, number, "parity", agent) ^ int(effect.before)
        mbarrier = self._found(agent, agent.workgroup, effect.barrier, place)
        of = "mbarrier", agent.workgroup, effect.barrier, place
        while not mbarrier.passes(parity):
            yield Event(agent, step, effect, _lacks(mbarrier), of)
        event = self.log.add(agent, step, effect, "", *of)
        mbarrier.wait(agent.clock, agent.workgroup, effect.scope, event)

    def _found(
        self, agent: Agent, workgroup: int, barrier: str, place: int, *, proxy: bool = False
    ) -> Mbarrier:
        """Look up an mbarrier; raise `Conflict` if `agent` cannot see its initialisation.

        If TMA (`proxy`) or another workgroup uses the mbarrier, a `PublishBarriers` is needed too.
        """
        mbarrier = self.mbarriers.get((workgroup, barrier, place))
        if mbarrier is None or not mbarrier.initialised & agent.clock.seen:
            other = 0 if mbarrier is None else mbarrier.initialised
            raise Conflict(
                f"{barrier}[{place}] may be used before it is initialised; order the use after "
                "its InitBarrier",
                other,
            )
        published = mbarrier.initialised & agent.clock.fenced.get("mbarrier", 0)
        if (proxy or workgroup != agent.workgroup) and not published:
            raise Conflict(
                f"TMA or another workgroup uses {barrier}[{place}], and no PublishBarriers "
                "made its initial value visible to them; add one after InitBarrier",
                mbarrier.initialised,
            )
        return mbarrier

    def _completion(
        self, agent: Agent, step: Step, at: int, barrier: str, place: int
    ) -> Callable[[], int]:
        of = "mbarrier", at, barrier, place
        return lambda: self.log.add(agent, step, None, "completes a phase", *of)

    # The following methods perform effects on flags: a change of a flag, or a wait for its value.

    def _change(
        self, agent: Agent, step: Step, number: int, effect: ChangeFlag, place: int
    ) -> None:
        event = self.log.add(agent, step, effect, "", "flag", effect.flag, place)
        self.log.launched(agent)
        agent.clock.add(event)
        flag = self.flags.setdefault((effect.flag, place), Flag())
        release = (agent.workgroup, effect.scope) if effect.release else None
        if effect.value is None:
            flag.add(agent.weight, agent.clock, event, release)
        else:
            flag.set(value_of(step, number, "value", agent), agent.clock, event, release)

    def _await_flag(
        self, agent: Agent, step: Step, number: int, effect: AwaitFlag, place: int
    ) -> Iterator[Event]:
        wanted = value_of(step, number, "value", agent)
        flag, of = self.flags.setdefault((effect.flag, place), Flag()), ("flag", effect.flag, place)
        while flag.value != wanted:
            yield Event(agent, step, effect, f"it is {flag.value}, not {wanted}", of)
        event = self.log.add(agent, step, effect, "", *of)
        self.log.launched(agent)
        flag.observe(agent.clock, (agent.workgroup, effect.scope) if effect.acquire else None)
        agent.clock.add(event)
        flag.ordered |= event

    def _draw(self, agent: Agent, step: Step, number: int, effect: DrawTicket, place: int) -> None:
        event = self.log.add(agent, step, effect, "", "flag", effect.counter, place)
        self.log.launched(agent)
        agent.clock.add(event)
        counter = self.flags.setdefault((effect.counter, place), Flag())
        count = value_of(step, number, "count", agent)
        taken = self.drawn[effect.counter, place] = agent.weight + self.drawn.get(
            (effect.counter, place), 0
        )
        if taken > count:
            raise Conflict(
                f"the launch takes more than {count} tickets, so a ticket is given twice; take one "
                "ticket for each index of the loop"
            )
        for _ in range(agent.weight):
            by = next_value(counter.value, count) - counter.value
            counter.add(by, agent.clock, event, None)

    def _take(self, agent: Agent, step: Step, effect: TakeFlag, place: int) -> Iterator[Event]:
        flag, of = self.flags.setdefault((effect.flag, place), Flag()), ("flag", effect.flag, place)
        while not flag.value:
            yield Event(agent, step, effect, "it is 0", of)
        event = self.log.add(agent, step, effect, "", *of)
        self.log.launched(agent)
        flag.observe(agent.clock, (agent.workgroup, effect.scope) if effect.acquire else None)
        agent.clock.add(event)
        flag.add(-1, agent.clock, event, None)


def _lacks(mbarrier: Mbarrier) -> str:
    """Text about an mbarrier's current phase: arrivals and bytes so far, for deadlock messages."""
    came = f"{mbarrier.arrivals - mbarrier.pending} of {mbarrier.arrivals} arrivals"
    missing = f", {mbarrier.bytes} bytes missing" if mbarrier.bytes else ""
    return f"phase {len(mbarrier.phases)} has {came}{missing}"
