"""`interpret`: run a scheduled graph on numpy arrays; compiled kernels are tested against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coordgraph.errors import Deadlock, LaunchError, NoEntry
from coordgraph.foreign_graphs import faults_named
from coordgraph.interpreter.arguments import (
    Array,
    bind,
    factor_of_c,
    numpy_dtype,
    with_defaults,
)
from coordgraph.interpreter.events import Event, Point
from coordgraph.interpreter.machine import Machine
from coordgraph.interpreter.memory import Memory
from coordgraph.interpreter.program import program
from coordgraph.interpreter.recording import record
from coordgraph.interpreter.schedulers import Scheduler, scheduler_of
from coordgraph.interpreter.tracing import Trace
from coordgraph.interpreter.walking import walk
from coordgraph.kernel import KernelGraph

__all__ = ["Result", "execute", "interpret"]

Starter = Callable[[int], Iterator[Event]]
Maker = Callable[[int], Machine]


@dataclass(frozen=True)
class Result:
    """The result of `interpret`.

    Args:
        d: the output D, with the shape of the graph's output tensor. Elements that the kernel does
            not write, such as rows that belong to no group, are NaN or the least integer. If the
            epilogue does not store D, the array has the shape 0 x 0.
        written: a Boolean array of the shape of `d`: True where the kernel wrote an element.
        trace: the segments, sends, receives, epilogues and stores of every workgroup; None unless
            `trace=True` was passed.
        outputs: the arrays of the epilogue's outputs besides D, by output name; elements that the
            kernel does not write are NaN or the least integer.
        stored: by name of an output besides D, a Boolean array: True where the kernel wrote an
            element.
    """

    d: Array
    written: Array
    trace: Trace | None = None
    outputs: Mapping[str, Array] = field(default_factory=dict[str, Array])
    stored: Mapping[str, Array] = field(default_factory=dict[str, Array])


def interpret(
    graph: KernelGraph,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float | None = None,
    parameters: Mapping[str, int] | None = None,
    tables: Mapping[str, Array] | None = None,
    operands: Mapping[str, Any] | None = None,
    schedule: Scheduler | str | None = None,
    resident: int | None = None,
    trace: bool = False,
) -> Result:
    """Run a scheduled graph on numpy arrays, one workgroup at a time.

    Args:
        graph: a kernel graph to which a schedule pass has been applied (level "scheduled").
        a, b: the inputs, with the element types and numbers of axes of the graph's tensors.
        c: the operand C of the epilogue; it is read only if beta is not zero.
        alpha, beta: scalars of the epilogue, rounded to the accumulator's type; if that type is an
            integer type, alpha and beta must be whole numbers. The default of beta is 1 if C is
            passed to the default epilogue, else 0.
        parameters: launch arguments that do not follow from the arrays, such as `workgroups`.
        tables: the tables that the graph reads, by name: `offsets` for groups; `m_offsets`,
            `n_offsets` and `k_offsets` for a list of products.
        operands: the arrays and numbers that the graph's epilogue function takes, by name, other
            than c, alpha and beta.
        schedule: the scheduler, which chooses the workgroup that runs next at every event, or the
            name of one of `SCHEDULERS`, such as `shuffled`; by default `InOrder`.
        resident: how many workgroups run concurrently, at least 1; a further workgroup starts when
            one ends. By default all run concurrently.
        trace: whether to record the events of every workgroup in `Result.trace`.

    Raises:
        VerifyError: no schedule pass has been applied to the graph.
        LaunchError: the arguments do not fit the graph; this is checked before anything is
            computed.
        Deadlock: every workgroup that runs waits for a flag, and none can continue.
        EvaluationError: a flag is still set at the end, an output element was not written exactly
            once, or an index was outside its tensor.
    """
    with faults_named("interpreting the graph", graph):
        return _interpreted(
            graph,
            (a, b),
            {
                "c": c,
                "alpha": alpha,
                "beta": factor_of_c(beta, c, graph.gemm.epilogue),
                **(operands or {}),
            },
            parameters or {},
            tables or {},
            scheduler_of(schedule),
            resident,
            trace,
        )


def _interpreted(
    graph: KernelGraph,
    factors: tuple[Array, Array],
    epilogue: Mapping[str, Any],
    parameters: Mapping[str, int],
    tables: Mapping[str, Array],
    schedule: Scheduler,
    resident: int | None,
    trace: bool,
) -> Result:
    """Run a graph on numpy arrays; `epilogue` has all operands by name, c, alpha and beta too."""
    code = program(graph)
    given = with_defaults(graph.gemm.epilogue, epilogue)
    arrays, numbers, values = bind(graph, factors, given, parameters, tables)
    if resident is not None and resident < 1:
        raise LaunchError(f"resident = {resident} workgroups is too few; give at least 1")
    memory = Memory(graph, arrays, values)
    (count,) = code.grid(code.environment(values))

    def machine(workgroup: int) -> Machine:
        return Machine(code, memory, workgroup, numbers)

    try:
        execute(memory, machine, count, schedule, resident or count)
    except NoEntry as error:
        raise NoEntry(
            f"the launch reads outside a table: {error}; call the graph's verify() to see which "
            "check the graph fails"
        ) from error
    found = memory.finish()
    nothing = np.empty((0, 0), numpy_dtype(graph.gemm.out_dtype or graph.gemm.dtype))
    d, written = found.pop("D", (nothing, np.empty((0, 0), np.bool_)))
    outputs = {name: array for name, (array, _) in found.items()}
    stored = {name: mask for name, (_, mask) in found.items()}
    return Result(d, written, record(code, values) if trace else None, outputs, stored)


def execute(memory: Memory, machine: Maker, count: int, schedule: Scheduler, resident: int) -> None:
    """Run all workgroups of one launch until they end.

    Args:
        memory: the global memory of the launch.
        machine: a function that makes the `Machine` for the workgroup with a given number.
        count: how many workgroups there are.
        schedule: the scheduler, which chooses the workgroup to run at every event.
        resident: how many workgroups run concurrently, at least 1.

    Raises:
        Deadlock: every workgroup that has started waits for a flag.
        EvaluationError: an operation cannot be executed.
    """
    # Infinity from overflow and NaN are valid results, as on a GPU.
    with np.errstate(all="ignore"):
        _Run(memory, schedule, count, resident).run(lambda number: _begin(machine(number)))


def _begin(machine: Machine) -> Iterator[Event]:
    yield Event(Point.BEGIN)
    code = machine.program
    env = code.environment(machine.memory.values, machine.workgroup)
    yield from walk(code.steps, env, machine)


class _Run:
    """The execution of one launch: interleaves its workgroups until all have ended."""

    def __init__(self, memory: Memory, schedule: Scheduler, count: int, resident: int) -> None:
        self.memory, self.schedule, self.count, self.resident = memory, schedule, count, resident
        self.live: dict[int, Iterator[Event]] = {}
        self.ready: dict[int, Event] = {}
        self.blocked: dict[tuple[str, int], dict[int, Event]] = {}
        self.dispatched = 0

    def run(self, start: Starter) -> None:
        """Start and run all workgroups of the launch until they have ended.

        Raises:
            Deadlock: no workgroup can continue.
        """
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
        """Make the workgroups ready that wait for `flag` to have the value that it now has."""
        waiting, now = self.blocked.pop(flag, {}), self.memory.value(flag)
        self.ready.update({w: e for w, e in waiting.items() if e.met(now)})
        if left := {w: e for w, e in waiting.items() if not e.met(now)}:
            self.blocked[flag] = left

    def _deadlock(self) -> Deadlock:
        waiting = {w: e.slot for group in self.blocked.values() for w, e in group.items()}
        named = ", ".join(f"{w} for slot {slot}" for w, slot in sorted(waiting.items()))
        message = (
            f"all {len(waiting)} running workgroups wait for flags of workspace slots: {named}"
        )
        if self.dispatched < self.count:
            message += (
                f"; only {self.resident} are resident, so {self.dispatched}..{self.count - 1} "
                "cannot start; raise resident"
            )
        return Deadlock(message, waiting)
