"""`record_steps`: traces what every workgroup does, for all workgroups at once with numpy.

`trace` walks one workgroup after another and makes an object of every event. `record_steps` walks
the program once, and evaluates each expression for all workgroups that execute it, which takes a
twentieth of `trace`'s time if there are many tiles. `record_steps` does not check that accumulators
are used in a valid order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coordgraph.control.operations import (
    AccumulatePartial,
    AddPartial,
    AwaitPartial,
    CollectPartial,
    Epilogue,
    MultiplyAccumulate,
    ReceivePartial,
    SendPartial,
    StoreTile,
)
from coordgraph.control.tickets import TakeTicket
from coordgraph.errors import EvaluationError
from coordgraph.integers import evaluate
from coordgraph.integers.columns import Column
from coordgraph.interpreter.formulas import Formula
from coordgraph.interpreter.program import Program, program
from coordgraph.interpreter.recorded_steps import COLUMNS, StepKind, Steps
from coordgraph.interpreter.steps import Branch, DynamicLoop, Let, Loop, Step, Work
from coordgraph.kernel import KernelGraph
from coordgraph.tensors import Role

__all__ = ["StepKind", "Steps", "record_steps"]

Lanes = npt.NDArray[np.intp]
"""Type: the numbers of the workgroups that execute a step, ascending."""
MOST_ITERATIONS = 1_000_000
"""The largest number of loop iterations, over all workgroups, that numpy evaluates at once, to save
memory; if a loop has more, the workgroups are evaluated in several batches."""


def record_steps(
    graph: KernelGraph,
    parameters: Mapping[str, int] | None = None,
    tables: Mapping[str, Sequence[int]] | None = None,
) -> Steps:
    """Record the steps of every workgroup of a scheduled graph.

    Args:
        graph: a kernel graph to which a schedule pass has been applied (level "scheduled").
        parameters: a value for every launch argument, by name. Arguments whose smallest value is 0,
            such as `read_c` and the strides of a batch, may be left out and are then 0.
        tables: the entries of the tables that the graph reads, by name, such as `offsets`.

    Raises:
        VerifyError: no schedule pass has been applied to the graph.
        LaunchError: a parameter or a table is missing or out of bounds.
        EvaluationError: a loop steps by less than 1.
    """
    given = dict(parameters or {})
    for p in graph.parameters.given:
        if p.minimum == 0:
            given.setdefault(p.name, 0)
    code = program(graph)
    values = graph.parameters.launch(given, tables or {})
    env = code.environment(values)
    (count,) = code.grid(env)
    walk = _Walk(code, values, count)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        walk.run(code.steps, np.arange(count))
    columns = [np.concatenate([*c, np.empty(0, np.int64)]) for c in walk.columns]
    order = np.argsort(columns[0], kind="stable")
    flags = [t for t in graph.tensors if t.role is Role.FLAGS]
    slots = sum(int(evaluate(t.elements, dict(values))) for t in flags)
    found = dict(zip(COLUMNS, (column[order] for column in columns), strict=True))
    _set_shares(found)
    return _joined(Steps(count, code.tiles(env), slots, code.shapes(values), **found))


def _set_shares(columns: dict[str, Column]) -> None:
    """Set, for each ADD step, the part of the output tile to which it adds partial sums.

    In a reduce-scatter, a tile is divided into such parts (shares). The share is that of the next
    FINISH step (epilogue), if the same workgroup executes both steps.

    Args:
        columns: the columns of `Steps` by name; the function changes `first` and `count`.
    """
    adds = np.flatnonzero(columns["kind"] == StepKind.ADD)
    ends = np.flatnonzero(columns["kind"] == StepKind.FINISH)
    if not len(adds) or not len(ends):
        return
    following = ends[np.minimum(np.searchsorted(ends, adds), len(ends) - 1)]
    same = columns["workgroup"][following] == columns["workgroup"][adds]
    for name in ("first", "count"):
        columns[name][adds[same]] = columns[name][following[same]]


def _joined(s: Steps) -> Steps:
    """Join successive steps that sum adjacent ranges of k tiles of the same output tile."""
    multiply = s.kind == StepKind.MULTIPLY
    same = multiply[1:] & multiply[:-1]
    for name in ("workgroup", "tiling", "product", "m", "n", "padding"):
        column = getattr(s, name)
        same &= column[1:] == column[:-1]
    same &= s.first[1:] == (s.first + s.count)[:-1]
    if not same.any():
        return s
    starts = np.flatnonzero(np.concatenate([[True], ~same]))
    found = {name: getattr(s, name)[starts] for name in COLUMNS}
    found["count"] = np.add.reduceat(s.count, starts)
    # Only `count` changes by joining: it is the sum of the joined steps' numbers of k tiles. Other
    # columns have the values of the first of the joined steps.
    return Steps(s.workgroups, s.tiles, s.slots, s.shapes, **found)


class _Walk:
    """Walks the steps of a program for many workgroups, and appends each step to `columns`.

    Args:
        code: the program.
        values: every parameter's value and every table's entries.
        count: the number of workgroups.
    """

    def __init__(self, code: Program, values: Mapping[str, Any], count: int) -> None:
        self.code, self.count = code, count
        self.env: list[Any] = [
            v if isinstance(v, int) else np.asarray(v, np.int64) for v in code.environment(values)
        ]
        self.tables = {code.parameters[p.name] for p in code.graph.parameters.tables}
        self.env[code.workgroup] = np.arange(count)
        self.columns: list[list[Column]] = [[] for _ in COLUMNS]
        self.tilings = {t.accumulator: i for i, t in enumerate(code.graph.tilings)}
        self.tickets = 0
        """How many tickets (indices of the dynamic loop) all workgroups have taken so far; a kernel
        has at most one counter of tickets."""
        self.last: list[Any] = [0, 0, 0, 0]
        """The output tile that each workgroup summed last, as four values: the number of the
        product, the tile's numbers along m and n, and the index of its shape in `graph.tilings`.
        Each value is an array with an entry per workgroup, or one integer for all workgroups."""

    def evaluate(self, formula: Formula, lanes: Lanes) -> tuple[Any, ...]:
        """Evaluate the expressions of `formula` for the workgroups `lanes`.

        Each value is an array with an entry per workgroup, or one integer for all of them.
        """
        whole = len(lanes) == self.count

        def value(place: int) -> Any:
            found = self.env[place]
            if whole or not isinstance(found, np.ndarray) or place in self.tables:
                return found
            return found[lanes]

        return formula.columns(value)

    def assign(self, place: int, value: Any, lanes: Lanes) -> None:
        """Set the variable at position `place` to `value`, only for the workgroups `lanes`."""
        self.env[place] = self.merged(self.env[place], value, lanes)

    def merged(self, old: Any, value: Any, lanes: Lanes) -> Any:
        """A column by workgroup: `value` for the workgroups `lanes`, and `old` for all others."""
        if len(lanes) == self.count:
            return value
        new = np.empty(self.count, np.int64)
        new[:] = old
        new[lanes] = value
        return new

    def run(self, steps: tuple[Step, ...], lanes: Lanes) -> None:
        """Execute `steps`, in order, for all workgroups whose numbers are in `lanes` at once."""
        for step in steps:
            if not len(lanes):
                return
            match step:
                case Work():
                    self.work(step, lanes)
                case Let():
                    (value,) = self.evaluate(step.value, lanes)
                    self.assign(step.place, value, lanes)
                    self.run(step.body, lanes)
                case Branch():
                    (condition,) = self.evaluate(step.condition, lanes)
                    taken = np.broadcast_to(condition, lanes.shape)
                    self.run(step.body, lanes[taken])
                    self.run(step.orelse, lanes[~taken])
                case Loop():
                    self.loop(step, lanes)
                case DynamicLoop():
                    self.dynamic(step, lanes)

    def loop(self, loop: Loop, lanes: Lanes) -> None:
        """Execute `loop` for the workgroups `lanes` until none of them has iterations left."""
        start, stop = (np.broadcast_to(v, lanes.shape) for v in self.evaluate(loop.bounds, lanes))
        inside = start < stop
        lanes, index, stop = lanes[inside], start[inside], stop[inside]
        if loop.product is not None:
            self.accumulate(loop, loop.product, lanes, index, stop)
            return
        while len(lanes):
            self.assign(loop.index, index, lanes)
            self.run(loop.body, lanes)
            self.assign(loop.index, index, lanes)
            (advance,) = self.evaluate(loop.step, lanes)
            if np.any(advance < 1):
                raise EvaluationError(
                    f"the loop over {loop.symbol} steps by {np.min(advance)}; make its step at "
                    "least 1"
                )
            index = index + advance
            left = index < stop
            lanes, index, stop = lanes[left], index[left], stop[left]

    def dynamic(self, loop: DynamicLoop, lanes: Lanes) -> None:
        """Execute a dynamic loop for the workgroups `lanes`, round by round.

        In each round, every workgroup that is left executes one index of the loop, and takes its
        next index (a ticket) from a counter that all workgroups share.
        """
        start, stop = (np.broadcast_to(v, lanes.shape) for v in self.evaluate(loop.bounds, lanes))
        index = start
        while True:
            inside = index < stop
            lanes, index, stop = lanes[inside], index[inside], stop[inside]
            if not len(lanes):
                return
            self.assign(loop.index, index, lanes)
            self.assign(loop.following, stop, lanes)
            self.run(loop.body, lanes)
            index = np.broadcast_to(self.values(loop.following, lanes), lanes.shape)

    def take_tickets(self, work: Work, lanes: Lanes) -> None:
        """Set the next index of a dynamic loop (a ticket) of each of the workgroups `lanes`.

        The workgroups take their tickets in the order of their numbers.
        """
        first, count = self.evaluate(work.ticket, lanes)
        taken = self.tickets + np.arange(len(lanes))
        # the counter of `count` tickets starts again at 0 after the last of them
        least = np.maximum(count, 1)
        self.tickets += len(lanes)
        self.assign(work.following, first + taken % least, lanes)

    def values(self, place: int, lanes: Lanes) -> Any:
        """The value, for each of the workgroups `lanes`, of the variable at position `place`.

        The result is an array with an entry per workgroup, or one integer for all workgroups.
        """
        found = self.env[place]
        return found[lanes] if isinstance(found, np.ndarray) else found

    def accumulate(self, loop: Loop, work: Work, lanes: Lanes, start: Column, stop: Column) -> None:
        """Record a loop that sums k tiles: a step for each range of consecutive k tiles."""
        if loop.accumulation is not None and len(lanes):
            left = ~self.accumulated(loop, work, lanes, start, stop)
            lanes, start, stop = lanes[left], start[left], stop[left]
        while len(lanes):
            part = max(int(np.searchsorted(np.cumsum(stop - start), MOST_ITERATIONS, "right")), 1)
            self.iterations(loop, work, lanes[:part], start[:part], stop[:part])
            lanes, start, stop = lanes[part:], start[part:], stop[part:]

    def accumulated(
        self, loop: Loop, work: Work, lanes: Lanes, start: Column, stop: Column
    ) -> npt.NDArray[np.bool_]:
        """Record a loop over consecutive k tiles as one step of each workgroup, where possible.

        One step is possible for a workgroup whose loop has a single k tile, or whose k tiles are
        all inside the tensors.

        Returns:
            For each workgroup in `lanes`, whether its loop was recorded; where it was not, the
            caller must evaluate every iteration.
        """
        self.assign(loop.index, stop - 1, lanes)
        *_, last = self.evaluate(work.iteration, lanes)
        self.assign(loop.index, start, lanes)
        *at, first = (np.broadcast_to(v, lanes.shape) for v in self.evaluate(work.iteration, lanes))
        alike = (first == last) & (first.astype(bool) | (stop - start == 1))
        self.add(work, lanes[alike], [v[alike] for v in (*at, first)], (stop - start)[alike])
        return alike

    def iterations(self, loop: Loop, work: Work, lanes: Lanes, start: Column, stop: Column) -> None:
        """Evaluate all iterations of an accumulation loop at once, and record its steps.

        Successive iterations on consecutive k tiles of an output tile become one step.
        """
        counts = stop - start
        ends = np.cumsum(counts)
        rows = np.repeat(lanes, counts)
        index = np.arange(ends[-1]) + np.repeat(stop - ends, counts)

        def value(place: int) -> Any:
            found = self.env[place]
            if place == loop.index:
                return index
            alike = not isinstance(found, np.ndarray) or place in self.tables
            return found if alike else found[rows]

        found = [np.broadcast_to(v, rows.shape) for v in work.iteration.columns(value)]
        *tile, k = _position(found)
        joined = k[1:] == k[:-1] + 1
        for column in (rows, *tile, found[-1]):
            joined &= np.equal(column[1:], column[:-1])
        starts = np.flatnonzero(np.concatenate([[True], ~joined]))
        lengths = np.diff(starts, append=len(rows))
        self.remember(work, lanes, [v[ends - 1] for v in found])
        self.record_sums(work, rows[starts], [v[starts] for v in found], lengths)

    def add(self, work: Work, lanes: Lanes, at: Sequence[Any], count: Any) -> None:
        """Record that each of the workgroups `lanes` sums `count` k tiles of an output tile.

        Args:
            work: the operation that sums.
            lanes: the numbers of the workgroups.
            at: the values of `Work.iteration` at the first of these k tiles: the tile numbers of A,
                the tile numbers of B, and 0 if the tile of A or of B is padding, else 1.
            count: the number of k tiles.
        """
        self.remember(work, lanes, at)
        self.record_sums(work, lanes, at, count)

    def remember(self, work: Work, lanes: Lanes, at: Sequence[Any]) -> None:
        """Store in `last` the output tile that the workgroups `lanes` summed most recently."""
        product, m, n, _ = _position(at)
        tiling = self.tilings[work.tiling.accumulator]
        self.last = [
            self.merged(old, new, lanes)
            for old, new in zip(self.last, (product, m, n, tiling), strict=True)
        ]

    def record_sums(self, work: Work, lanes: Lanes, at: Sequence[Any], count: Any) -> None:
        """Append a step that sums `count` k tiles to the trace of each of the workgroups `lanes`.

        A workgroup may occur several times in `lanes`: its steps then follow each other.
        """
        *tile, k = _position(at)
        tiling = self.tilings[work.tiling.accumulator]
        padding = 1 - np.asarray(at[-1]).astype(np.int64)
        self.record(lanes, StepKind.MULTIPLY, tiling, tile, k, count, padding=padding)

    def work(self, work: Work, lanes: Lanes) -> None:
        """Record that the workgroups `lanes` execute one operation on tiles or partial sums."""
        match op := work.node.op:
            case MultiplyAccumulate():
                self.add(work, lanes, self.evaluate(work.iteration, lanes), 1)
            case Epilogue() | StoreTile():
                *numbers, exists = self.evaluate(work.tile, lanes)
                share, shares = self.evaluate(work.share, lanes)
                kind = StepKind.FINISH if isinstance(op, Epilogue) else StepKind.STORE
                tile = (numbers[0] if len(numbers) > 2 else 0, *numbers[-2:])
                tiling = self.tilings[op.accumulator]
                there = np.broadcast_to(exists, lanes.shape).astype(bool)
                row = [np.broadcast_to(v, lanes.shape)[there] for v in (*tile, share, shares)]
                self.record(lanes[there], kind, tiling, row[:3], row[3], row[4])
            case SendPartial() | AccumulatePartial():
                self.send(work, op, lanes)
            case ReceivePartial() | CollectPartial() | AwaitPartial():
                self.receive(work, op, lanes)
            case AddPartial():
                (slot,) = self.evaluate(work.slot, lanes)
                *tile, tiling = self.of_lanes(lanes)
                self.record(lanes, StepKind.ADD, tiling, tile, 0, 1, slot=slot)
            case TakeTicket():
                self.take_tickets(work, lanes)
            case _:
                pass

    def of_lanes(self, lanes: Lanes) -> list[Any]:
        """The output tiles that the workgroups `lanes` summed last, as four values.

        The values are the number of the product, the tile's numbers along m and n, and the index of
        its shape in `graph.tilings`; each is an array for `lanes`, or one integer.
        """
        return [v[lanes] if isinstance(v, np.ndarray) else v for v in self.last]

    def send(self, work: Work, op: SendPartial | AccumulatePartial, lanes: Lanes) -> None:
        """Record that the workgroups `lanes` send a partial sum to the workspace."""
        (slot,) = self.evaluate(work.slot, lanes)
        turn, readers = 0, 1
        if isinstance(op, AccumulatePartial):
            turn, _ = self.evaluate(work.senders, lanes)
        else:
            (raised,) = self.evaluate(work.raised, lanes)
            turn, readers = (raised - 1, 1) if op.turn else (0, raised)
        *tile, tiling = self.of_lanes(lanes)
        self.record(lanes, StepKind.SEND, tiling, tile, turn, 1, slot=slot, readers=readers)

    def receive(
        self, work: Work, op: ReceivePartial | CollectPartial | AwaitPartial, lanes: Lanes
    ) -> None:
        """Record that the workgroups `lanes` wait for partial sums in the workspace."""
        (slot,) = self.evaluate(work.slot, lanes)
        first, count, kind = 0, 1, StepKind.RECEIVE
        *tile, tiling = self.of_lanes(lanes)
        if isinstance(op, CollectPartial):
            first, count = self.evaluate(work.senders, lanes)
        elif isinstance(op, ReceivePartial):
            (raised,) = self.evaluate(work.raised, lanes)
            first = raised - 1
        else:
            kind, numbers = StepKind.AWAIT, self.evaluate(work.output, lanes)
            tile = (numbers[0] if len(numbers) > 2 else 0, *numbers[-2:])
        self.record(lanes, kind, tiling, tile, first, count, slot=slot)

    def record(
        self,
        lanes: Lanes,
        kind: StepKind,
        tiling: Any,
        tile: Sequence[Any],
        first: Any,
        count: Any,
        *,
        slot: Any = -1,
        readers: Any = 0,
        padding: Any = 0,
    ) -> None:
        """Append one step to the trace of each of the workgroups `lanes`.

        An argument is a column with one value per workgroup, or an integer for all workgroups.
        """
        if not len(lanes):
            return
        row = (lanes, int(kind), tiling, *tile, first, count, slot, readers, padding)
        for column, value in zip(self.columns, row, strict=True):
            column.append(np.broadcast_to(np.asarray(value, np.int64), lanes.shape))


def _position(at: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """The tile numbers (product, m, n, k) of one tile multiplication, from `Work.iteration`."""
    *both, _ = at
    *batch, m, k = both[: len(both) // 2]
    return (batch[0] if batch else np.zeros_like(m)), m, both[-1], k
