"""The reduced machine: simulates the threads of a few workgroups and records what orders events.

Simulated threads (agents) advance one effect at a time, and wait where an operation waits. Each
access by TMA or wgmma is an event of its own. The access becomes visible to a thread that has
waited for the phase of the mbarrier at which TMA counts its bytes, or for the end of the
async-group.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordgraph.control.effects import (
    Access,
    Asynchronous,
    AwaitEarlier,
    AwaitGroups,
    Commit,
    Converge,
    Effect,
    Fence,
    Meet,
    Registers,
)
from coordgraph.verification.memory_order.agents import Agent
from coordgraph.verification.memory_order.clocks import Clock
from coordgraph.verification.memory_order.events import (
    EARLIER,
    Early,
    Entry,
    Event,
    Log,
    Violation,
)
from coordgraph.verification.memory_order.gatherings import Gatherings
from coordgraph.verification.memory_order.machine_facts import Facts
from coordgraph.verification.memory_order.signals import Signals
from coordgraph.verification.memory_order.steps import Step
from coordgraph.verification.memory_order.synchronisation import Conflict
from coordgraph.verification.memory_order.thread_values import TooLarge

__all__ = ["Machine"]

MOST_BYTES = 1 << 31
"""Largest memory in bytes for the clocks of a simulated launch: every memory access keeps a clock
(a bit for each event so far). Beyond this limit the simulation raises `TooLarge`."""


class Machine:
    """Simulates threads, mbarriers, flags, barriers and asynchronous operations of a launch.

    Args:
        facts: what the graph declares about memory, threads and clusters.
        agents: the simulated threads of all workgroups.
        early: arrivals that an earlier simulation of the launch could not assign to one phase, see
            `Mbarrier`.
    """

    def __init__(self, facts: Facts, agents: list[Agent], early: Early | None = None) -> None:
        self.facts, self.agents, self.log = facts, agents, Log(facts)
        self.signals = Signals(self.log, early or {})
        self.gatherings = Gatherings(self.log)
        self.entries: dict[tuple[int, int, int], Entry] = {}
        self.registers: dict[tuple[int, str], list[int]] = {}
        self._bytes = 0
        if not facts.overlaps:
            for agent in agents:
                agent.clock.add(EARLIER)

    @property
    def unordered(self) -> Early:
        """Arrivals that this simulation could not assign to one phase of their mbarrier."""
        return {key: m.found for key, m in self.signals.mbarriers.items() if m.found}

    def run(self) -> None:
        """Simulate all threads to the ends of their programs.

        Raises:
            Violation: the graph has a fault, such as a deadlock.
            TooLarge: the clocks of the accesses are over the budget of memory.
        """
        running = [(agent, self._program(agent)) for agent in self.agents]
        while running:
            before, left = len(self.log.events), list[tuple[Agent, Iterator[Event]]]()
            waiting: list[Event] = []
            for agent, program in running:
                if (stopped := next(program, None)) is not None:
                    left.append((agent, program))
                    waiting.append(stopped)
            if len(left) == len(running) and len(self.log.events) == before:
                raise Violation(
                    "deadlock: every thread that has not ended waits, and no thread is left "
                    "to signal it; add the missing signal or remove the wait",
                    waiting=tuple(waiting),
                )
            running = left
        self._finish()

    def _program(self, agent: Agent) -> Iterator[Event]:
        """Perform the effects of one simulated thread; yield an event while the thread waits."""
        for step in agent.of.steps:
            elected = bool(step.elected[agent.thread])
            for number, effect in enumerate(step.effects):
                if elected or isinstance(effect, Converge):
                    try:
                        yield from self._perform(agent, step, number, effect)
                    except Conflict as conflict:
                        self.log.add(agent, step, effect)
                        other = conflict.other.bit_length() - 1 if conflict.other else None
                        here = len(self.log.events) - 1
                        raise Violation(conflict.problem, other, here) from None

    def _perform(self, agent: Agent, step: Step, number: int, effect: Effect) -> Iterator[Event]:
        match effect:
            case Access() | Registers() | Asynchronous():
                self._access(agent, step, number, effect)
            case Fence(space=space):
                agent.clock.fence(space)
                self.log.add(agent, step, effect)
            case AwaitEarlier():
                self.log.add(agent, step, effect)
                agent.clock.add(EARLIER)
            case Commit() | AwaitGroups() | Converge() | Meet():
                yield from self.gatherings.perform(agent, step, number, effect)
            case _:
                yield from self.signals.perform(agent, step, number, effect)

    def _access(
        self, agent: Agent, step: Step, number: int, effect: Access | Registers | Asynchronous
    ) -> None:
        accesses = effect.accesses if isinstance(effect, Asynchronous) else (effect,)
        memory = [access for access in accesses if isinstance(access, Access)]
        asynchronous = isinstance(effect, Asynchronous)
        read = self.log.add(agent, step, effect)
        write = read
        if asynchronous and any(access.kind.changes for access in accesses):
            write = self.log.add(agent, step, effect)
        for access in accesses:
            if isinstance(access, Registers):
                self._use_registers(agent, access, read, write, asynchronous=asynchronous)
            elif self.facts.is_global(access.dim):
                self.log.launched(agent)
        places = [place for place in step.places if any(place.access is x for x in memory)]
        if places:
            key = id(step), number, id(agent.of)
            proxy = asynchronous and effect.proxy
            entry = self.entries.setdefault(key, Entry(step, places, proxy, asynchronous))
            entry.agents.append(agent)
            entry.events.append((read, write))
            entry.clocks.append(self._kept(agent))
            for place in places:
                for at in self.facts.targets(agent, place):
                    if at is not None and (at != agent.workgroup or asynchronous):
                        event = write if place.access.kind.changes else read
                        self.log.foreign.append((event, at))
        if not asynchronous:
            agent.clock.add(read)
        elif effect.barrier:
            self.signals.deliver(agent, step, number, effect, read | write)
        else:
            reads, every = agent.open.get(effect.group, (0, 0))
            agent.open[effect.group] = reads | read, every | read | write

    def _kept(self, agent: Agent) -> Clock:
        """Return a copy of a thread's clock, which the record of an access stores.

        Raises:
            TooLarge: all such copies together need more than MOST_BYTES.
        """
        clock = agent.clock.copy()
        self._bytes += (clock.time.bit_length() + clock.seen.bit_length()) // 8
        if self._bytes > MOST_BYTES:
            raise TooLarge(
                f"the clocks (which events happened before each access) of {len(self.log.events)} "
                f"events need more than {MOST_BYTES} bytes; choose smaller sizes"
            )
        return clock

    def _use_registers(
        self, agent: Agent, access: Registers, read: int, write: int, *, asynchronous: bool
    ) -> None:
        """Check and record that a thread, or wgmma for it, accesses registers of a fragment.

        A thread must not access registers while wgmma may change them. Between an access by the
        thread and a later wgmma that uses these registers, the thread must execute `wgmma.fence`.

        Args:
            agent: the simulated thread.
            access: the registers.
            read, write: the read event and the write event, each as an integer with one set bit.
            asynchronous: whether wgmma makes the access.
        """
        used = self.registers.setdefault((id(agent), access.fragment), [EARLIER, 0])
        own, pending = used
        if asynchronous:
            if late := own & ~agent.clock.fenced.get("registers", 0):
                raise Conflict(
                    f"wgmma uses registers of {access.fragment} without a FenceMultiplies "
                    "after the thread's own accesses to them; add one before wgmma",
                    late,
                )
            used[1] |= read | write
            return
        if late := pending & ~agent.clock.seen:
            raise Conflict(
                f"a thread accesses registers of {access.fragment} while wgmma may still change "
                "them; wait for wgmma with WaitMultiplies",
                late,
            )
        used[0], used[1] = own | read, 0

    def _finish(self) -> None:
        """Check at the end of a launch that flags are 0 and no shared memory is still accessed."""
        for (name, place), flag in self.signals.flags.items():
            if flag.value:
                last = (flag.ordered | flag.commuting).bit_length() - 1
                raise Violation(
                    f"the flag {name}[{place}] is {flag.value} at the end of the launch, and "
                    "the next launch needs 0; clear the flag after its last use",
                    last,
                )
        known: dict[int, int] = {}
        for agent in self.agents:
            known[agent.workgroup] = known.get(agent.workgroup, 0) | agent.clock.time
        for event, workgroup in self.log.foreign:
            if not event & known[workgroup]:
                raise Violation(
                    "a workgroup may end while TMA or another workgroup still accesses its "
                    "shared memory; wait for these accesses before the end",
                    event.bit_length() - 1,
                )
