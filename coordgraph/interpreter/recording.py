"""`trace`: record what every workgroup of a scheduled graph does, without computing any element.

Control flow never depends on matrix elements, so each workgroup is walked alone, and its waits for
flags are skipped. An accumulation loop that `Loop.accumulation` recognises is recorded as one range
of k tiles. Any other loop, and a loop that reaches into padding, is walked iteration by iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coordgraph.control.operations import (
    AccumulatePartial,
    AddPartial,
    AwaitPartial,
    CollectPartial,
    Epilogue,
    InitAccumulator,
    MultiplyAccumulate,
    ReceivePartial,
    SendPartial,
    StoreTile,
)
from coordgraph.control.tickets import TakeTicket
from coordgraph.errors import EvaluationError
from coordgraph.integers import evaluate
from coordgraph.interpreter.accumulators import Accumulators
from coordgraph.interpreter.events import Event, Point
from coordgraph.interpreter.formulas import Environment
from coordgraph.interpreter.program import Program, program
from coordgraph.interpreter.steps import Loop, Work
from coordgraph.interpreter.traced_tickets import Tickets, execute_in_turn
from coordgraph.interpreter.tracing import (
    Finish,
    OutputTile,
    Receive,
    Segment,
    Send,
    Span,
    Store,
    Trace,
    TraceEvent,
)
from coordgraph.interpreter.walking import Budget, Fuel, walk
from coordgraph.kernel import KernelGraph
from coordgraph.tensors import Role

__all__ = ["record", "trace"]


def trace(
    graph: KernelGraph,
    parameters: Mapping[str, int] | None = None,
    tables: Mapping[str, Sequence[int]] | None = None,
    *,
    most_steps: int | None = None,
    budget: Budget | None = None,
) -> Trace:
    """Record which segments, sends, receives, epilogues and stores every workgroup executes.

    Args:
        graph: a kernel graph to which a schedule pass has been applied (level "scheduled").
        parameters: a value for every launch argument, by name. Parameters whose least value is 0,
            such as `read_c` and the strides of a batch, may be left out and are 0 then.
        tables: the entries of the tables that the graph reads, by name: `offsets` for groups;
            `m_offsets`, `n_offsets` and `k_offsets` for a list of products.
        most_steps: the largest number of loop iterations of one workgroup; None for no limit.
        budget: counts the loop iterations of all workgroups; None for no limit.

    Raises:
        VerifyError: no schedule pass has been applied to the graph.
        LaunchError: a parameter or a table is missing or out of bounds.
        EvaluationError: loops have more iterations than `most_steps` or `budget` allows, or a
            workgroup works on two output tiles at once.
    """
    given = dict(parameters or {})
    for p in graph.parameters.given:
        if p.minimum == 0:  # the trace does not depend on such a parameter (`read_c`, a stride)
            given.setdefault(p.name, 0)
    code = program(graph)
    return record(code, graph.parameters.launch(given, tables or {}), most_steps, budget)


def record(
    code: Program,
    values: Mapping[str, Any],
    most_steps: int | None = None,
    budget: Budget | None = None,
) -> Trace:
    """The trace of a compiled program.

    Args:
        code: the program.
        values: the values of all parameters and the entries of all tables, by name.
        most_steps: the largest number of loop iterations of one workgroup; None for no limit.
        budget: counts the loop iterations of all workgroups; None for no limit.
    """
    env = code.environment(values)
    (count,), tiles, shapes = code.grid(env), code.tiles(env), code.shapes(values)
    depths = tuple(depth for *_, depth in shapes)
    recorders: list[_Recorder] = []
    tickets, stores_d = Tickets(), code.graph.gemm.epilogue.stores_d

    def walks() -> Iterator[Iterator[Event]]:
        for number in range(count):
            fuel = Fuel(number, most_steps, budget)
            recorders.append(_Recorder(number, depths or tiles[-1:], fuel, tickets, stores_d))
            yield walk(code.steps, code.environment(values, number), recorders[-1])

    execute_in_turn(walks())
    workgroups: list[tuple[TraceEvent, ...]] = []
    disorder: list[str] = []
    for recorder in recorders:
        recorder.flush()
        recorder.accumulators.end()
        workgroups.append(tuple(recorder.events))
        if recorder.accumulators.problem:
            disorder.append(recorder.accumulators.problem)
    flags = [t for t in code.graph.tensors if t.role is Role.FLAGS]
    slots = sum(int(evaluate(t.elements, dict(values))) for t in flags)
    counters = tuple(tickets.problems())
    return Trace(tuple(workgroups), tiles, slots, shapes, tuple(disorder), counters, stores_d)


class _Recorder:
    """Worker of `walk` that appends the trace events of one workgroup to `events`.

    Args:
        workgroup: the number of the workgroup.
        depths: for each product, its number of k tiles; a single entry if all products have equally
            many.
        fuel: limits the workgroup's loop iterations.
        tickets: the counters from which all workgroups take their indices of dynamic loops.
        stores_d: whether the kernel stores D.
    """

    def __init__(
        self, workgroup: int, depths: tuple[int, ...], fuel: Fuel, tickets: Tickets, stores_d: bool
    ) -> None:
        self.tickets = tickets
        self.workgroup, self.depths, self.iterate = workgroup, depths, fuel.burn
        self.events: list[TraceEvent] = []
        self.accumulators = Accumulators(workgroup, stores_d)
        # For each accumulator, what was summed since the accumulator was last zeroed or sent: the
        # output tile, its extents in unit tiles, and half-open ranges of k tiles. The key is the
        # accumulator's name and whether the ranges are padding.
        self.sums: dict[tuple[str, bool], tuple[OutputTile, Span, list[tuple[int, int]]]] = {}
        self.tile: OutputTile = (-1, -1)

    def accumulate(self, loop: Loop, env: Environment, start: int, stop: int) -> bool:
        """Record an accumulation loop as one range of k tiles, and return True.

        Returns False if the loop's iterations must be executed one after another instead.
        """
        accumulated = loop.accumulation
        if accumulated is None or stop <= start:
            return False
        env[loop.index] = stop - 1
        last = accumulated.iteration(env)
        env[loop.index] = start
        first = accumulated.iteration(env)
        if bool(first[-1]) != bool(last[-1]) or not (first[-1] or stop - start == 1):
            return False
        self._add(accumulated, first, stop - start)
        return True

    def work(self, work: Work, env: Environment) -> Iterator[Event]:
        """Record one operation; yields an event only before a `TakeTicket` operation.

        That operation gives the workgroup its next index of a dynamic loop.
        """
        match op := work.node.op:
            case MultiplyAccumulate():
                self._add(work, work.iteration(env), 1)
            case InitAccumulator():
                self.flush(op.accumulator)
                self.accumulators.zero(op.accumulator)
            case Epilogue() | StoreTile():
                self.flush(op.accumulator)
                self._end(work, op, env)
            case AwaitPartial():
                (slot,), tile = work.slot(env), self._output(work, env)
                self.events.append(Receive(self.workgroup, slot, tile))
                self.accumulators.wait_for(slot, tile)
            case SendPartial() | AccumulatePartial():
                self.flush(op.accumulator)
                self.accumulators.send(op.accumulator, self._output(work, env))
                self._send(work, op, env)
            case ReceivePartial() | CollectPartial():
                self.flush(op.accumulator)
                self.accumulators.receive(op.accumulator, self._output(work, env))
                self._receive(work, op, env)
            case AddPartial():
                (slot,) = work.slot(env)
                self.accumulators.take(op.accumulator, slot, self._output(work, env))
            case TakeTicket():
                yield Event(Point.TICKET)
                self.tickets.take(work, env)
            case _:
                pass

    def _output(self, work: Work, env: Environment) -> OutputTile:
        """The output tile at the indices of D in the operation's scope, counted in unit tiles.

        In a graph without an epilogue, which says how D is indexed, it is the tile summed last.
        """
        if work.finishing is None:
            return self.tile
        return _first(work.output(env), work.finishing.span)

    def _end(self, work: Work, op: Epilogue | StoreTile, env: Environment) -> None:
        *numbers, exists = work.tile(env)
        tile = _first(numbers, work.span) if exists else None
        ends, event = self.accumulators.store, Store
        if isinstance(op, Epilogue):
            ends, event = self.accumulators.finish, Finish
        ends(op.accumulator, tile)
        if tile:
            at = (self.workgroup, tile, *work.share(env))
            self.events.append(event(*at, span=work.span))

    def _send(self, work: Work, op: SendPartial | AccumulatePartial, env: Environment) -> None:
        (slot,) = work.slot(env)
        if isinstance(op, AccumulatePartial):
            turn, _ = work.senders(env)
            self.events.append(Send(self.workgroup, slot, self.tile, turn))
            return
        (raised,) = work.raised(env)
        if op.turn:
            self.events.append(Send(self.workgroup, slot, self.tile, raised - 1))
        else:
            self.events.append(Send(self.workgroup, slot, self.tile, readers=raised))

    def _receive(self, work: Work, op: ReceivePartial | CollectPartial, env: Environment) -> None:
        (slot,) = work.slot(env)
        if isinstance(op, CollectPartial):
            first, count = work.senders(env)
        else:
            (raised,) = work.raised(env)
            first, count = raised - 1, 1
        for turn in range(first, first + count):
            self.events.append(Receive(self.workgroup, slot, self.tile, turn))

    def flush(self, accumulator: str | None = None) -> None:
        """Append a `Segment` event for each range of k tiles summed since the last flush.

        Args:
            accumulator: the name of the accumulator to flush; None for all accumulators.
        """
        for name, padding in list(self.sums):
            if accumulator in (None, name):
                tile, span, ranges = self.sums.pop((name, padding))
                for first, end in _merged(ranges):
                    depth = self.depths[tile[0] if len(self.depths) > 1 else 0]
                    at = (self.workgroup, tile, first, end - first, depth)
                    self.events.append(Segment(*at, padding, span))

    def _add(self, work: Work, at: tuple[int, ...], count: int) -> None:
        assert isinstance(work.node.op, MultiplyAccumulate)
        *both, exists = at
        (*batch, m, k), (*batch_of_b, k_of_b, n) = both[: len(both) // 2], both[len(both) // 2 :]
        if (*batch, k) != (*batch_of_b, k_of_b):
            of_a, of_b = (", ".join(map(str, x)) for x in ((*batch, k), (*batch_of_b, k_of_b)))
            raise EvaluationError(
                f"workgroup {self.workgroup} multiplies k tile {of_a} of A and {of_b} of B; both "
                "must be the same k tile of the same product, so check the schedule's edges"
            )
        self.tile = _first((*batch, m, n), work.span)
        accumulator = work.node.op.accumulator
        self.accumulators.add(accumulator, self.tile if exists else None)
        key = (accumulator, not exists)
        tile, _, ranges = self.sums.setdefault(key, (self.tile, work.span, []))
        if exists and tile != self.tile:
            raise EvaluationError(
                f"workgroup {self.workgroup} adds products of output tile {self.tile} to "
                f"accumulator '{accumulator}', which holds output tile {tile}; store or send the "
                "accumulator and zero it between two tiles"
            )
        ranges.append((k, k + count))


def _first(tile: Sequence[int], span: Span) -> OutputTile:
    """The number of the first unit tile in a macro tile.

    A unit tile is the largest tile that divides macro tiles of every shape.

    Args:
        tile: the macro tile's number, counted in macro tiles of its shape.
        span: how many unit tiles in m and n the macro tile covers.
    """
    *batch, m, n = tile
    return (*batch, m * span[0], n * span[1])


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort half-open ranges and join ranges that touch; ranges that overlap are not joined."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if merged and merged[-1][1] == first:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((first, end))
    return merged
