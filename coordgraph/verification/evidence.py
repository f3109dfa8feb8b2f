"""`Evidence` traces small launches of a graph, and runs them with random operands, for checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

import numpy as np
from sympy import Symbol

from coordgraph.control.operations import (
    AccumulatePartial,
    AddPartial,
    AwaitPartial,
    CollectPartial,
    ReceivePartial,
    SendPartial,
)
from coordgraph.errors import CoordGraphError, Deadlock, LaunchError, NoEntry, OutOfBounds
from coordgraph.gemm import AXES
from coordgraph.interpreter.arguments import Array
from coordgraph.interpreter.events import Event
from coordgraph.interpreter.faults import Fault
from coordgraph.interpreter.formulas import Environment
from coordgraph.interpreter.machine import Machine
from coordgraph.interpreter.memory import Memory
from coordgraph.interpreter.program import Program, program
from coordgraph.interpreter.run import execute
from coordgraph.interpreter.schedulers import SCHEDULERS
from coordgraph.interpreter.steps import Work
from coordgraph.interpreter.tracing import Trace
from coordgraph.interpreter.walking import Fuel
from coordgraph.kernel import KernelGraph
from coordgraph.tilings import macro_tile
from coordgraph.verification.launch import Launch
from coordgraph.verification.launch_candidates import far_launches
from coordgraph.verification.launch_traces import MOST_STEPS, LaunchTraces
from coordgraph.verification.launches import ranked_launches
from coordgraph.verification.reference import Operands, make_operands, products
from coordgraph.verification.verdicts import Counterexample

__all__ = ["LIMITS", "Evidence", "Limits"]


@dataclass(frozen=True)
class Limits:
    """How thoroughly `KernelGraph.check` examines a graph.

    Args:
        launches: the number of launches that are always examined. Up to the same number of further
            launches is traced; one of these is examined only if its trace has a feature that no
            earlier trace has.
        cost: the largest cost of a launch that is traced; a cost (`Launch.cost`) is an estimate of
            the number of events in the trace.
        total: the largest sum of the costs of all traced launches; `FEWEST` launches are traced
            even if the sum of their costs is larger.
        runs: the largest number of launches whose products the interpreter computes from operands.
        elements: the largest number of elements of A and B that the interpreter loads in these
            `runs` launches.
        schedulers: the names of the interpreter's schedulers; each of the `runs` launches runs once
            under each scheduler.
        questions: the largest number of inequalities that proofs about indices may ask `Ranges` to
            prove.
        constants: the largest number of constants in the graph's formulas that are tested: for each
            of these constants, launches with sizes just above the constant are examined.
        work: the largest sum, over the traced launches, of output tiles, workgroups and loop
            iterations. This limit also holds if the estimate `Launch.cost` is too low, because the
            graph has more tiles or longer loops than follow from the extents.
    """

    launches: int
    cost: int
    total: int
    runs: int
    elements: int
    schedulers: tuple[str, ...]
    questions: int
    constants: int
    work: int


LIMITS = {
    "default": Limits(8, 600, 1200, 3, 1 << 19, ("in-order",), 250, 2, 24_000),
    "all": Limits(40, 20_000, 100_000, 12, 1 << 24, tuple(SCHEDULERS), 2000, 9, 500_000),
}
"""For each level of `KernelGraph.check`: the limits of the work on launches and on proofs."""
FEWEST = 4
"""The number of launches that are examined even if their total cost exceeds `Limits.total`."""
LARGE = 20_000
"""A limit on the cost of a launch (estimated number of events in its trace) that replaces
`Limits.cost` for two kinds of launches: launches with sizes above a constant in the graph's
formulas, and the single launch of a graph that has no cheaper launch."""
OVERHEAD = 200
"""The smallest cost of a k tile in the interpreter, in loaded elements; it stands for the overhead
of an operation on a small tile."""
EXCHANGES = (
    SendPartial,
    ReceivePartial,
    AwaitPartial,
    AddPartial,
    AccumulatePartial,
    CollectPartial,
)
"""Operations on the workspace; an error in one of them refutes the check `fix-up`."""
FAILURES = (CoordGraphError, ArithmeticError, LookupError, TypeError, ValueError)
"""Exceptions that an operation of a wrong graph may raise in the interpreter, for example because
NumPy refuses tiles of different shapes."""
TOLERANCE = 2.0**-6
"""Largest relative difference from the reference at which an element of D counts as correct; the
result of an epilogue is rounded."""


class Evidence:
    """Traces of a graph's launches, and runs of the graph on operands, for its checks.

    A trace or a run is computed when a check first asks for it.

    Args:
        graph: a scheduled graph.
        limits: how thoroughly to examine it.
        launches: the launches to examine; None chooses them from the graph.
    """

    def __init__(
        self, graph: KernelGraph, limits: Limits, launches: tuple[Launch, ...] | None = None
    ) -> None:
        self.graph, self.limits = graph, limits
        self._launches = launches
        self._traces = LaunchTraces(graph)

    @property
    def chosen(self) -> bool:
        """Whether this object chose the launches to examine; False if the caller gave them."""
        return self._launches is None

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """The launches to examine, ordered so that the first few have as many features as possible.

        A feature is, for example, that a certain remainder in the graph's formulas is 0.
        """
        if self._launches is not None:
            return self._launches
        ranked = ranked_launches(self.graph, 2 * self.limits.launches, self.limits.cost)
        costs = accumulate(launch.cost for launch in ranked)
        count = sum(cost <= self.limits.total for cost in costs)
        # If the sizes that the graph fixes make every launch too costly, one large launch is
        # examined.
        near = ranked[: max(count, FEWEST)] or ranked_launches(self.graph, 1, LARGE)
        far = [x for x in far_launches(self.graph, self.limits.constants) if x.cost <= LARGE]
        return tuple({str(launch): launch for launch in (*near, *far)}.values())

    @cached_property
    def program(self) -> Program:
        """The graph as the interpreter executes it."""
        return program(self.graph)

    @cached_property
    def traces(self) -> tuple[tuple[Launch, Trace], ...]:
        """The launches that could be traced, each with its trace: what every workgroup did."""
        return tuple((launch, found) for launch, found in self._traced if isinstance(found, Trace))

    @property
    def left_out(self) -> int:
        """The number of launches that were not traced because of `Limits.work`."""
        _ = self._traced
        return self._traces.left_out

    @property
    def traced_launches(self) -> tuple[Launch, ...]:
        """The launches that could be traced, without the traces."""
        return tuple(launch for launch, _ in self.traces)

    @cached_property
    def failures(self) -> tuple[tuple[Launch, Fault], ...]:
        """The launches that could not be traced, each with the error that ended its trace."""
        return tuple((launch, found) for launch, found in self._traced if isinstance(found, Fault))

    @cached_property
    def _traced(self) -> tuple[tuple[Launch, Trace | Fault], ...]:
        work = self.limits.work if self.chosen else None
        return self._traces.of(self.launches, self.limits.launches, work)

    def counterexamples(self, check: str) -> Iterator[Counterexample]:
        """Yield the errors that refute the check named `check`.

        Errors of traces come first, then errors of launches that the interpreter runs with
        operands.
        """
        for launch, fault in self.failures:
            if fault.check == check:
                yield _counterexample(launch, fault)
        for launch, found in self.traces:
            for fault in found.faults:
                if fault.check == check:
                    yield _counterexample(launch, fault)
        yield from (found for name, found in self.runs if name == check)

    @cached_property
    def run_launches(self) -> tuple[Launch, ...]:
        """The launches whose product the interpreter computes, as many as the limits allow.

        The first launch has many fix-ups and partial tiles, but few segments. Each further launch
        adds as many new features as possible. A feature is an axis that ends in a partial tile, or
        a segment as long as the longest one of all traces.
        """
        m, n, k = macro_tile(self.graph.coordinates)
        deepest = max((_depth(found) for _, found in self.traces), default=0)
        open_: list[tuple[Launch, frozenset[object]]] = []
        left = self.limits.elements
        costs: dict[str, int] = {}
        for launch, found in sorted(self.traces, key=lambda pair: -_interest(*pair)):
            deep = {"deep"} if _depth(found) == deepest else set[str]()
            open_.append((launch, _ragged(self.graph, launch) | deep))
            work = sum(segment.k_count for segment in found.segments)
            stored = len(found.stores) * 2 * m * n
            costs[str(launch)] = work * max(m * k + k * n, OVERHEAD) + stored
        chosen: list[Launch] = []
        seen: frozenset[object] = frozenset()
        while open_ and len(chosen) < self.limits.runs:
            best = max(open_, key=lambda pair: len(pair[1] - seen)) if chosen else open_[0]
            open_.remove(best)
            if costs[str(best[0])] <= left:
                chosen.append(best[0])
                seen |= best[1]
                left -= costs[str(best[0])]
        return tuple(chosen)

    @cached_property
    def runs(self) -> tuple[tuple[str, Counterexample], ...]:
        """Errors of launches that compute a product, as (name of refuted check, counterexample)."""
        found: list[tuple[str, Counterexample]] = []
        for launch in self.run_launches:
            for name in self.limits.schedulers:
                errors = [*_run(self.graph, self.program, launch, name)]
                found += errors
                if errors:
                    break
        return tuple(found)


def _interest(launch: Launch, found: Trace) -> int:
    """Score of a launch: launches with the highest scores are run first in the interpreter.

    More fix-ups, more partial tiles and fewer segments raise the score. The number of odd launch
    arguments stands for the number of partial tiles: an axis of odd extent usually ends in one.
    """
    ragged = sum(length % 2 for length in launch.values.values())
    return min(len(found.receives), 8) + 2 * ragged - len(found.segments) // 8


def _ragged(graph: KernelGraph, launch: Launch) -> frozenset[object]:
    """The set of (axis, whether the axis has several tiles) for axes whose last tile is partial."""
    lengths = ((axis, getattr(graph.gemm, axis) or launch.values.get(axis, 0)) for axis in AXES)
    tiles = zip(lengths, macro_tile(graph.coordinates), strict=True)
    return frozenset((axis, length > n) for (axis, length), n in tiles if length % n)


def _depth(found: Trace) -> int:
    """The largest number of k tiles in one segment of a trace; 3 if there are more than 3."""
    return min(max((segment.k_count for segment in found.segments), default=0), 3)


def _counterexample(launch: Launch, fault: Fault) -> Counterexample:
    return Counterexample(fault.message, launch, fault.workgroups, fault.tile)


class _Watched(Machine):
    """Interprets one workgroup, limits its loops, and remembers the operation that raised an error.

    The counterexample of a check is made from that operation and the indices at which it failed.
    """

    failed: tuple[Work, Environment] | None = None

    def limit(self) -> _Watched:
        """Let the workgroup execute at most `MOST_STEPS` loop iterations; return `self`."""
        self._fuel = Fuel(self.workgroup, MOST_STEPS)
        return self

    def iterate(self) -> None:
        """Count one loop iteration; raise EvaluationError if the workgroup exceeds its limit."""
        self._fuel.burn()

    def work(self, work: Work, env: Environment) -> Iterator[Event]:
        """Execute an operation; if it raises an error, remember the operation and its indices."""
        try:
            yield from super().work(work, env)
        except FAILURES:
            self.failed = work, env
            raise


def _run(
    graph: KernelGraph, code: Program, launch: Launch, scheduler: str
) -> Iterator[tuple[str, Counterexample]]:
    """Compute a product in the interpreter; yield (refuted check, counterexample) per error."""
    try:
        operands = make_operands(graph, launch)
        memory = Memory(graph, operands.arrays, operands.values)
    except LaunchError:
        return
    machines: dict[int, _Watched] = {}

    def machine(number: int) -> Machine:
        machines[number] = _Watched(code, memory, number, operands.scalars).limit()
        return machines[number]

    (count,) = code.grid(code.environment(operands.values))
    try:
        execute(memory, machine, count, SCHEDULERS[scheduler](), count)
    except Deadlock:
        return  # a deadlock is reported from the trace, which shows its cause
    except FAILURES as error:
        yield _failure(code, launch, error, machines)
        return
    try:
        # Infinity and NaN are valid results, for example of the root of a negative number.
        with np.errstate(all="ignore"):
            wrong = [*_wrong(graph, operands, memory, launch)]
    except (ValueError, LookupError) as error:
        message = f"the shapes of the tensors are not those of the problem: {error}"
        yield "cover", Counterexample(message, launch)
        return
    for fault in memory.faults():
        if not (wrong and fault.check == "cover"):
            yield fault.check, _counterexample(launch, fault)
    yield from (("cover", found) for found in wrong)


def _failure(
    code: Program, launch: Launch, error: Exception, machines: Mapping[int, _Watched]
) -> tuple[str, Counterexample]:
    """Return (name of the check that an error of a run refutes, the counterexample)."""
    for number, machine in machines.items():
        if machine.failed is not None:
            work, env = machine.failed
            op = work.node.op
            tensor = getattr(op, "tensor", "")
            message = f"{op.kind}{f' of {tensor}' if tensor else ''}: {error}"
            found = Counterexample(message, launch, (number,), (), _coordinates(code, work, env))
            if isinstance(error, OutOfBounds | NoEntry | IndexError):
                return "bounds", found
            return "fix-up" if isinstance(op, EXCHANGES) else "cover", found
    return "cover", Counterexample(str(error), launch)


def _coordinates(code: Program, work: Work, env: Environment) -> dict[str, int]:
    """The indices along the dimensions that loops and assignments bind at an operation."""
    found: dict[str, int] = {}
    for dim, value in work.node.scope.known.items():
        if isinstance(value, Symbol) and value.name not in code.graph.parameters:
            place = code.slots.find(value)
            found |= {} if place is None else {dim: int(env[place])}
    return found


def _wrong(
    graph: KernelGraph, operands: Operands, memory: Memory, launch: Launch
) -> Iterator[Counterexample]:
    """Yield a counterexample for each matrix of D (or another output) with a wrong element."""
    shape = macro_tile(graph.coordinates)
    for product in products(graph, operands):
        if not product.place.size:
            continue
        flat: Array = memory.flat[product.tensor]
        written = memory.written[product.tensor]
        found = flat[product.place].astype(np.float64)
        wanted = product.expected.astype(np.float64)
        same = np.abs(found - wanted) <= TOLERANCE * np.abs(wanted)
        wrong = ~(same | (found == wanted) | (np.isnan(found) & np.isnan(wanted)))
        wrong |= written[product.place] != 1
        if not wrong.any():
            continue
        row, column = map(int, np.unravel_index(int(wrong.argmax()), wrong.shape))
        times = int(written[product.place][row, column])
        what = (
            f"is stored {times} times"
            if times != 1
            else f"is {found[row, column]:g} and must be {wanted[row, column]:g}"
        )
        batch = (product.number,) if graph.gemm.leading else ()
        name = ", ".join(map(str, (*batch, row, column)))
        yield Counterexample(
            f"{product.tensor}[{name}] {what}; {int(wrong.sum())} of {prod(wrong.shape)} elements "
            "are wrong",
            launch,
            (),
            (*batch, row // shape[0], column // shape[1]),
        )
