"""Simulated synchronisation objects: mbarriers, barriers, flags and shared async-groups.

Two operations on one object that do not commute must be ordered; then all interleavings have the
result of the simulated interleaving (see `coordgraph.verification.memory_order`). If two such
operations are not ordered, `Conflict` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coordgraph.control.effects import CLUSTER, CTA
from coordgraph.verification.memory_order.clocks import Clock

__all__ = ["TMA", "Arrival", "BarrierState", "Conflict", "Flag", "Mbarrier", "Team"]

NewEvent = Callable[[], int]
"""Type: a function that records a new event and returns an integer with only the event's bit
set."""


class Conflict(Exception):
    """Raised if two operations that do not commute are not ordered.

    Both operations use one mbarrier, barrier, flag or register fragment, or the first operation is
    an earlier launch that still uses device memory.

    Args:
        problem: what may happen, as a sentence.
        other: the event that is not ordered with the current event, as an integer in which only
            the bit of `other` is set; 0 if no single event is known.
    """

    def __init__(self, problem: str, other: int = 0) -> None:
        super().__init__(problem)
        self.problem, self.other = problem, other


@dataclass
class _Phase:
    """A completed phase of an mbarrier.

    Args:
        event: the event that completed the phase, as an integer with only its bit set.
        clock: the events that happened before the completion; `clock.seen` is empty, since
            the field `seen` says which of these events are visible.
        seen: the events that a wait for the phase makes visible, by (workgroup, scope) of the
            arrivals that released them.
    """

    event: int
    clock: Clock
    seen: dict[tuple[int, str], int]


@dataclass(frozen=True, slots=True)
class Arrival:
    """An arrival of threads, or of bytes, at an mbarrier.

    Args:
        event: the arrival's event, as an integer with only its bit set.
        clock: the events that happened before the arrival, and the arrival itself.
        source: (workgroup, scope) of the arrival's release.
        weight: the number of threads that arrive.
    """

    event: int
    clock: Clock
    source: tuple[int, str]
    weight: int = 1


@dataclass(eq=False)
class Mbarrier:
    """A simulated mbarrier: a phase completes when all arrivals and bytes that it expects came.

    Args:
        arrivals: number of arrivals that complete a phase.
        initialised: the event that initialised the mbarrier, as an integer with only its bit set.
        early: for each phase, by number: arrivals that an earlier simulation of the launch counted
            for a later phase, although nothing orders them after the completion of this phase. So
            each of these arrivals may complete this phase in place of another arrival.
        pending: number of arrivals that the current phase still needs.
        bytes: number of bytes that the current phase expects and that are not yet written.
        counts_bytes: whether an arrival has announced bytes, so that phases wait for bytes too.
        phases: the completed phases, in order.
        current: the arrivals that counted for the current phase.
        found: for each phase, by number: arrivals that this simulation counted for a later phase,
            although nothing orders them after the completion of this phase.
    """

    arrivals: int
    initialised: int
    early: Mapping[int, Sequence[Arrival]]
    pending: int = 0
    bytes: int = 0
    counts_bytes: bool = False
    phases: list[_Phase] = field(default_factory=list[_Phase])
    current: list[Arrival] = field(default_factory=list[Arrival])
    waits: dict[int, int] = field(default_factory=dict[int, int])
    """For each phase, by number: the events that waited for it, as an integer with one bit per
    event."""
    found: dict[int, list[Arrival]] = field(default_factory=dict[int, list[Arrival]])

    def __post_init__(self) -> None:
        self.pending = self.arrivals

    def arrive(self, arrival: Arrival, event: NewEvent, bytes: int | None = None) -> None:
        """Count an arrival; `bytes`, if not None, is how many more bytes the phase expects."""
        if bytes is not None:
            self.counts_bytes = True
            self.bytes += bytes
        self._order(arrival, "an arrival")
        if arrival.weight > self.pending:
            raise Conflict(
                f"more than {self.arrivals} threads arrive in phase {len(self.phases)} of an "
                f"mbarrier that is initialised with {self.arrivals} arrivals; make the two numbers "
                "equal"
            )
        self.pending -= arrival.weight
        self.current.append(arrival)
        self._complete(event)

    def deliver(self, arrival: Arrival, event: NewEvent, bytes: int) -> None:
        """Count bytes that TMA has written; a phase completes only when it has all its bytes."""
        self.counts_bytes = True
        self._order(arrival, "the count of bytes that TMA writes")
        self.bytes -= bytes
        self.current.append(arrival)
        self._complete(event)

    def _order(self, arrival: Arrival, what: str) -> None:
        """Record the earlier phases for which an arrival may count, instead of the current phase.

        The arrival may count for a phase if nothing orders that phase's completion before the
        arrival. If the mbarrier counts bytes, `Conflict` is raised instead.
        """
        for phase in reversed(range(len(self.phases))):
            done = self.phases[phase].event
            if done & arrival.clock.time:
                return
            if self.counts_bytes:
                raise Conflict(
                    f"{what} may count for phase {phase} instead of phase {len(self.phases)}: "
                    f"nothing orders it after the completion of phase {phase}; wait for that "
                    "phase first",
                    done,
                )
            self.found.setdefault(phase, []).append(arrival)

    def _complete(self, event: NewEvent) -> None:
        if self.pending or self.bytes:
            return
        number, done = len(self.phases), event()
        clock, seen = Clock(), dict[tuple[int, str], int]()
        early = self.early.get(number, ())
        for arrival in self.current:
            part = _certain(arrival, [e for e in early if not arrival.event & e.clock.time])
            clock.join(part, visible=False)
            seen[arrival.source] = seen.get(arrival.source, 0) | part.seen
        if self.phases:
            clock.time |= self.phases[-1].clock.time
        if late := self.waits.get(number - 1, 0) & ~clock.time:
            raise Conflict(
                f"a wait for phase {number - 1} may miss the phase's completion: phase "
                f"{number} may complete before the wait tests the parity, which then has its "
                f"old value again; let the last arrival of phase {number} come after the wait",
                late,
            )
        clock.time |= done
        self.phases.append(_Phase(done, clock, seen))
        self.current, self.pending = [], self.arrivals

    def passes(self, parity: int) -> bool:
        """Whether `mbarrier.try_wait.parity` with this parity succeeds."""
        return len(self.phases) % 2 != parity

    def wait(self, clock: Clock, workgroup: int, scope: str, event: int) -> int:
        """End a wait: acquire what the completed phase released. Return the phase's number."""
        phase = len(self.phases) - 1
        if phase > 0 and not self.phases[phase - 1].event & clock.time:
            raise Conflict(
                f"a wait for phase {phase} may pass before the phase completes: nothing orders "
                f"the wait after the completion of phase {phase - 1}, before which the parity "
                f"is the same; wait for phase {phase - 1} first",
                self.phases[phase - 1].event,
            )
        if phase >= 0:
            done = self.phases[phase]
            clock.join(done.clock, visible=False)
            for (source, of), seen in done.seen.items():
                if source in (workgroup, EVERYWHERE) or CTA not in (of, scope):
                    clock.seen |= seen
        clock.add(event)
        self.waits[phase] = self.waits.get(phase, 0) | event
        return phase


def _certain(arrival: Arrival, instead: Sequence[Arrival]) -> Clock:
    """The events that happened before a phase completed, whichever arrival completed it.

    The result has the events that happened both before `arrival` and before each arrival in
    `instead`: one of these arrivals has completed the phase.
    """
    clock = arrival.clock.copy()
    for other in instead:
        clock.time &= other.clock.time
        clock.seen &= other.clock.seen if other.source == arrival.source else 0
        clock.fenced = {
            space: events & other.clock.fenced.get(space, 0)
            for space, events in clock.fenced.items()
        }
    return clock


EVERYWHERE = -1
"""Stands for the number of the releasing workgroup if TMA releases the bytes that it wrote: a wait
in any workgroup and with any scope makes them visible."""
TMA = EVERYWHERE, CLUSTER


@dataclass(eq=False)
class BarrierState:
    """A simulated barrier of a workgroup (`bar.sync`), of a cluster, or of a warp's threads.

    Args:
        expected: number of threads that the barrier waits for.
    """

    expected: int
    here: int = 0
    clock: Clock = field(default_factory=Clock)
    done: list[tuple[int, Clock]] = field(default_factory=list[tuple[int, Clock]])

    def arrive(self, clock: Clock, weight: int, event: NewEvent) -> int:
        """Arrive at the barrier as `weight` threads; return the number of the phase to wait for."""
        if self.done and not self.done[-1][0] & clock.time:
            raise Conflict(
                "a thread may arrive at a barrier before the barrier's previous phase has "
                "completed: nothing orders the two; let the thread wait for that phase first",
                self.done[-1][0],
            )
        if self.here + weight > self.expected:
            raise Conflict(
                f"a barrier expects {self.expected} threads, but more arrive at it; make the two "
                "numbers equal"
            )
        generation = len(self.done)
        self.clock.join(clock)
        self.here += weight
        if self.here == self.expected:
            met = event()
            self.clock.add(met)
            self.done.append((met, self.clock))
            self.here, self.clock = 0, Clock()
        return generation


@dataclass(eq=False)
class Flag:
    """A simulated flag in device memory.

    Args:
        value: the flag's value.
        released: the events that become visible to a thread which acquires the flag: an integer
            with one bit per event.
        scope: the scope of the last release.
        clock: the events that happened before the flag got its value.
        ordered: the events that store to the flag or wait for it, one bit per event; they must be
            ordered with every other event of the flag.
        commuting: the events of atomic additions, one bit per event; they need not be ordered with
            each other.
    """

    value: int = 0
    released: int = 0
    scope: str = CTA
    source: int = EVERYWHERE
    clock: Clock = field(default_factory=Clock)
    ordered: int = 0
    commuting: int = 0

    def set(self, value: int, clock: Clock, event: int, release: tuple[int, str] | None) -> None:
        """Store a value; `release` is (workgroup, scope) of a release, None for a relaxed store."""
        if unordered := (self.ordered | self.commuting) & ~clock.time:
            raise Conflict(
                "the flag may be set while another thread sets it or waits for it; order the "
                "two operations",
                unordered,
            )
        if value and self.value >= value:
            raise Conflict(
                f"the flag is set to {value} while its value is already {self.value}; set a larger "
                "value, or clear the flag first"
            )
        self.value, self.released = value, 0
        self._change(clock, event, release)
        self.ordered |= event

    def add(self, value: int, clock: Clock, event: int, release: tuple[int, str] | None) -> None:
        """Add to the value atomically; an acquire sees what all earlier additions released."""
        if unordered := self.ordered & ~clock.time:
            raise Conflict(
                "the flag may be changed while another thread sets it or waits for it; order "
                "the two operations",
                unordered,
            )
        self.value += value
        self._change(clock, event, release)
        self.commuting |= event

    def _change(self, clock: Clock, event: int, release: tuple[int, str] | None) -> None:
        self.clock.join(clock, visible=False)
        self.clock.time |= event
        if release is not None:
            self.released |= clock.seen | event
            self.source, self.scope = release

    def observe(self, clock: Clock, acquire: tuple[int, str] | None) -> None:
        """Read the value; `acquire` is (workgroup, scope) of an acquire, None for relaxed order."""
        clock.join(self.clock, visible=False)
        if acquire is not None and (acquire[0] == self.source or "gpu" == acquire[1] == self.scope):
            clock.seen |= self.released


@dataclass(eq=False)
class Team:
    """An async-group of a whole warpgroup, and how many threads have reached its commit so far.

    Args:
        expected: number of threads that must reach the commit.
        here: number of threads that have reached it.
        time: the events that happened before these threads reached it, one bit per event.
        events: the events of the group's operations, one bit per event.
    """

    expected: int
    here: int = 0
    time: int = 0
    events: int = 0
