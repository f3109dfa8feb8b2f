"""`interpret`: the reference meaning of a scheduled graph, under any interleaving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coordgraph.errors import Deadlock, LaunchError, NoEntry
from coordgraph.interpreter.arguments import Array, bind, with_defaults
from coordgraph.interpreter.events import Event, Point
from coordgraph.interpreter.machine import Machine, Memory
from coordgraph.interpreter.program import Program, program, walk
from coordgraph.interpreter.recording import record
from coordgraph.interpreter.schedulers import InOrder, Scheduler
from coordgraph.interpreter.tracing import Trace
from coordgraph.kernel import KernelGraph

__all__ = ["Result", "interpret"]

Starter = Callable[[int], Iterator[Event]]


@dataclass(frozen=True)
class Result:
    """The output, and what every workgroup did, where that was asked for.

    Args:
        d: the output; NaN, or the least integer, where nothing is written, as in rows that belong
            to no group.
        written: the elements of `d` that were written.
        trace: segments and communication.
    """

    d: Array
    written: Array
    trace: Trace | None = None


def interpret(
    graph: KernelGraph,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    parameters: Mapping[str, int] | None = None,
    tables: Mapping[str, Array] | None = None,
    operands: Mapping[str, Any] | None = None,
    schedule: Scheduler | None = None,
    resident: int | None = None,
    trace: bool = False,
) -> Result:
    """Run a scheduled graph over numpy arrays, workgroup by workgroup.

    Args:
        graph: at the level "scheduled".
        a, b, c: as the graph's tensors; C is read only where beta is not zero.
        alpha, beta: rounded to the accumulator's type; whole numbers where that is an integer.
        parameters: launch arguments that the arrays do not give, such as `workgroups`.
        tables: the tables that the graph reads, as `offsets` of groups, or of a list of products
            `m_offsets`, `n_offsets` and `k_offsets`.
        operands: of an epilogue of one's own, by name: arrays and numbers; instead of c, alpha and
            beta, or beside those that it names.
        schedule: who runs next at every event; by default the lowest number that can.
        resident: how many workgroups fit the machine; the next one starts when one has ended.
        trace: record segments and communication as well.

    Raises:
        VerifyError: no schedule has tied the graph to workgroups.
        LaunchError: the arguments do not fit; nothing was computed.
        Deadlock: all workgroups wait.
        EvaluationError: a flag is still up at the end, an output element was not written exactly
            once, or an index left its tensor.
    """
    code = program(graph)
    given = with_defaults(
        graph.gemm.epilogue, {"c": c, "alpha": alpha, "beta": beta, **(operands or {})}
    )
    arrays, numbers, values = bind(graph, (a, b), given, parameters or {}, tables or {})
    if resident is not None and resident < 1:
        raise LaunchError(f"resident = {resident} must be at least 1")
    memory = Memory(graph, arrays, values)
    (count,) = code.grid(code.environment(values))

    def start(workgroup: int) -> Iterator[Event]:
        machine = Machine(code, memory, workgroup, numbers)
        return _begin(code, code.environment(values, workgroup), machine)

    # Overflow to infinity and NaN are results here, as on a GPU.
    with np.errstate(all="ignore"):
        try:
            _Run(memory, schedule or InOrder(), count, resident or count).run(start)
        except NoEntry as error:
            raise NoEntry(f"an index reads {error}; verify() tells what the graph lacks") from error
    return Result(*memory.finish(), record(code, values) if trace else None)


def _begin(code: Program, env: list[int], machine: Machine) -> Iterator[Event]:
    yield Event(Point.BEGIN)
    yield from walk(code.steps, env, machine)


class _Run:
    """Drives the workgroups of one launch."""

    def __init__(self, memory: Memory, schedule: Scheduler, count: int, resident: int) -> None:
        self.memory, self.schedule, self.count, self.resident = memory, schedule, count, resident
        self.live: dict[int, Iterator[Event]] = {}
        self.ready: dict[int, Event] = {}
        self.blocked: dict[tuple[str, int], dict[int, Event]] = {}
        self.dispatched = 0

    def run(self, start: Starter) -> None:
        """Until all have ended."""
        while self.live or self.dispatched < self.count:
            while self.dispatched < self.count and len(self.live) < self.resident:
                self.live[self.dispatched] = start(self.dispatched)
                self._advance(self.dispatched)
                self.dispatched += 1
            if not self.ready:
                raise self._deadlock()
            chosen = self.schedule.choose(self.ready)
            event = self.ready.pop(chosen)
            self._advance(chosen)
            if event.point is Point.RAISE:
                self._wake(event.flag)

    def _advance(self, workgroup: int) -> None:
        event = next(self.live[workgroup], None)
        if event is None:
            del self.live[workgroup]
        elif event.point is Point.WAIT and not event.met(self.memory.value(event.flag)):
            self.blocked.setdefault(event.flag, {})[workgroup] = event
        else:
            self.ready[workgroup] = event

    def _wake(self, flag: tuple[str, int]) -> None:
        """Who waits for what the flag says now can go on."""
        waiting, now = self.blocked.pop(flag, {}), self.memory.value(flag)
        self.ready.update({w: e for w, e in waiting.items() if e.met(now)})
        if left := {w: e for w, e in waiting.items() if not e.met(now)}:
            self.blocked[flag] = left

    def _deadlock(self) -> Deadlock:
        waiting = {w: e.slot for group in self.blocked.values() for w, e in group.items()}
        named = ", ".join(f"{w} for slot {slot}" for w, slot in sorted(waiting.items()))
        message = f"all {len(waiting)} workgroups that are left wait: {named}"
        if self.dispatched < self.count:
            message += (
                f"; only {self.resident} are resident, so {self.dispatched}..{self.count - 1} "
                "cannot start"
            )
        return Deadlock(message, waiting)
