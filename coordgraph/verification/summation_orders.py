"""`summation_orders`: the order in which a launch adds up the products of each tile along k.

The operations of every workgroup are executed on terms instead of numbers: a term says which k
tiles were added up, in which order, and how partial sums of workgroups were added to one another.
Additions of floating-point numbers are commutative but not associative, so the two operands of an
addition have no order, and a different nesting of the additions gives a result with different bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

from coordgraph.control.operations import (
    AccumulatePartial,
    AddPartial,
    CollectPartial,
    Epilogue,
    InitAccumulator,
    MultiplyAccumulate,
    ReceivePartial,
    SendPartial,
)
from coordgraph.control.tickets import TakeTicket
from coordgraph.interpreter.events import Event, Point
from coordgraph.interpreter.formulas import Environment
from coordgraph.interpreter.program import Program
from coordgraph.interpreter.steps import Loop, Work
from coordgraph.interpreter.traced_tickets import Tickets, execute_in_turn
from coordgraph.interpreter.tracing import OutputTile
from coordgraph.interpreter.walking import Budget, Fuel, walk

__all__ = ["Products", "Sum", "Term", "Unordered", "summation_orders"]


@dataclass(frozen=True)
class Products:
    """A sum to which the products of some k tiles are added one after another.

    Args:
        ranges: the k tiles in the order in which they are added, as half-open ranges; ranges that
            touch are joined.
        start: the sum to which the products are added; None for zero.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    start: Term | None = None

    def then(self, first: int, end: int) -> Products:
        """The sum that results if the k tiles `first` to `end - 1` are added to this sum."""
        *before, last = self.ranges or ((first, first),)
        if last[1] == first:
            return Products((*before, (last[0], end)), self.start)
        return Products((*self.ranges, (first, end)), self.start)

    def __str__(self) -> str:
        found = [f"k tiles {a}..{b - 1}" if b - a > 1 else f"k tile {a}" for a, b in self.ranges]
        if self.start is not None:
            found.insert(0, str(self.start))
        return ", ".join(found) or "zero"


@dataclass(frozen=True)
class Sum:
    """The sum of two terms. `Sum.of` sorts the terms, so `Sum.of(a, b)` equals `Sum.of(b, a)`.

    Args:
        terms: the two symbolic sums that are added, sorted by their text.
    """

    terms: tuple[Term, Term]

    @classmethod
    def of(cls, one: Term, other: Term) -> Sum:
        """The symbolic sum of two terms (symbolic sums), which may be given in either order."""
        first, second = sorted((one, other), key=str)
        return cls((first, second))

    def __str__(self) -> str:
        return f"({self.terms[0]}) + ({self.terms[1]})"


@dataclass(frozen=True)
class Unordered:
    """The sum of terms that workgroups add atomically, in an order that differs between runs.

    Args:
        terms: the symbolic sums that are added, sorted by their text.
    """

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return " + ".join(f"({term})" for term in self.terms) + " in any order"


Term = Products | Sum | Unordered
"""Type of a symbolic sum: it says what is added in which order, and has no numeric value."""
ZERO = Products()
Place = tuple[int, int, OutputTile]
"""Type that identifies a partial sum: its workspace slot, its turn (how many partial sums were sent
to the slot before it), and its output tile."""
Step = Callable[["_Replay"], bool]
"""Type: an operation of a workgroup, a function that returns False if the operation must wait for a
partial sum, else True."""


def summation_orders(
    code: Program,
    values: Mapping[str, Any],
    most_steps: int | None = None,
    budget: Budget | None = None,
) -> dict[OutputTile, tuple[Term, ...]]:
    """For each output tile, the symbolic sums (terms) to which its epilogue is applied.

    A tile has one term; in a reduce-scatter, in which several workgroups each apply the epilogue to
    a share of the tile's rows, the tile has one term for each share. Output tiles without an
    epilogue, and tiles whose partial sums are awaited for ever, are left out.

    Args:
        code: the program of a scheduled graph.
        values: the values of all parameters and the entries of all tables, by name.
        most_steps: the largest number of loop iterations of one workgroup; None for no limit.
        budget: limits the loop iterations of all workgroups together; None for no limit.

    Raises:
        EvaluationError: the graph is wrong, or loops have too many iterations.
    """
    (count,) = code.grid(code.environment(values))
    tickets = Tickets()
    workers = [_Worker(n, Fuel(n, most_steps, budget), tickets) for n in range(count)]
    environments = (code.environment(values, number) for number in range(count))
    execute_in_turn(map(walk, repeat(code.steps), environments, workers))
    return _replayed([worker.steps for worker in workers])


def _replayed(steps: Sequence[Sequence[Step]]) -> dict[OutputTile, tuple[Term, ...]]:
    """Execute the operations of all workgroups; return the symbolic sums of every output tile.

    An operation that receives partial sums is executed as soon as these are written.
    """
    slots: dict[Place, list[Term]] = defaultdict(list)
    finished: dict[OutputTile, dict[int, Term]] = defaultdict(dict)
    replays = [_Replay(slots, finished) for _ in steps]
    at = [0] * len(steps)
    moved = True
    while moved:
        moved = False
        for number, (mine, replay) in enumerate(zip(steps, replays, strict=True)):
            while at[number] < len(mine) and mine[at[number]](replay):
                at[number], moved = at[number] + 1, True
    return {tile: tuple(x for _, x in sorted(s.items())) for tile, s in sorted(finished.items())}


class _Replay:
    """Symbolic sums (terms) in the accumulators of one workgroup, and in the launch's workspace.

    Args:
        slots: for each partial sum (slot, turn, output tile) in the workspace, the terms that were
            written to it; several if workgroups add them atomically.
        finished: for each output tile: the term of each share of the tile (rows to which one
            workgroup applies the epilogue) when the epilogue began, by the number of the share.
    """

    def __init__(
        self, slots: dict[Place, list[Term]], finished: dict[OutputTile, dict[int, Term]]
    ) -> None:
        self.slots, self.finished = slots, finished
        self.sums: dict[str, Term] = {}

    def zero(self, name: str) -> bool:
        self.sums[name] = ZERO
        return True

    def products(self, name: str, first: int, end: int) -> bool:
        before = self.sums.get(name, ZERO)
        chain = before if isinstance(before, Products) else Products(start=before)
        self.sums[name] = chain.then(first, end)
        return True

    def send(self, name: str, place: Place) -> bool:
        self.slots[place].append(self.sums.get(name, ZERO))
        return True

    def receive(self, name: str, places: Sequence[Place]) -> bool:
        """Add the partial sums in the workspace slots `places` to the accumulator `name`.

        Returns False, and adds nothing, if a partial sum has not been written yet. If a slot holds
        several partial sums, workgroups added them atomically, so they have no order.
        """
        if not all(self.slots.get(place) for place in places):
            return False
        found = [term for place in places for term in self.slots[place]]
        added = found[0] if len(found) == 1 else Unordered(tuple(sorted(found, key=str)))
        self.sums[name] = Sum.of(self.sums.get(name, ZERO), added)
        return True

    def finish(self, name: str, tile: OutputTile, share: int) -> bool:
        self.finished[tile][share] = self.sums.get(name, ZERO)
        return True


class _Worker:
    """Records what one workgroup does with its accumulators; `walk` calls this class's methods.

    Args:
        workgroup: the number of the workgroup.
        fuel: limits the number of iterations of the workgroup's loops.
        tickets: the counters from which dynamic loops of all workgroups take their indices.
    """

    def __init__(self, workgroup: int, fuel: Fuel, tickets: Tickets) -> None:
        self._tickets = tickets
        self.workgroup, self.iterate = workgroup, fuel.burn
        self.steps: list[Step] = []
        self._tile: OutputTile = ()

    def accumulate(self, loop: Loop, env: Environment, start: int, stop: int) -> bool:
        """Collect a loop over consecutive k tiles as one operation; False if that is impossible.

        If a k tile is padding, the result is False, and `walk` executes the iterations one by one.
        """
        product = loop.accumulation
        if product is None or stop <= start:
            return False
        env[loop.index] = stop - 1
        last = product.iteration(env)
        env[loop.index] = start
        first = product.iteration(env)
        if not (first[-1] and last[-1]):
            return False
        self._products(product, first, stop - start)
        return True

    def work(self, work: Work, env: Environment) -> Iterator[Event]:
        """Collect one operation; yield an event only before a `TakeTicket` operation.

        A ticket is a loop index from an atomic counter.

        `_replayed` orders all other operations.
        """
        match op := work.node.op:
            case InitAccumulator():
                self.steps.append(partial(_Replay.zero, name=op.accumulator))
            case MultiplyAccumulate():
                self._products(work, work.iteration(env), 1)
            case SendPartial() | AccumulatePartial():
                self._send(work, op, env)
            case ReceivePartial() | CollectPartial():
                self._receive(work, op, env)
            case AddPartial():
                (slot,) = work.slot(env)
                places = ((slot, 0, work.output(env)),)
                self.steps.append(partial(_Replay.receive, name=op.accumulator, places=places))
            case Epilogue():
                *numbers, exists = work.tile(env)
                if exists:
                    share, _ = work.share(env)
                    at = {"tile": _first(numbers, work.span), "share": share}
                    self.steps.append(partial(_Replay.finish, name=op.accumulator, **at))
            case TakeTicket():
                yield Event(Point.TICKET)
                self._tickets.take(work, env)
            case _:
                pass

    def _products(self, work: Work, at: tuple[int, ...], count: int) -> None:
        *both, exists = at
        *batch, m, k = both[: len(both) // 2]
        self._tile = _first((*batch, m, both[-1]), work.span)
        if exists and isinstance(work.node.op, MultiplyAccumulate):
            name = work.node.op.accumulator
            self.steps.append(partial(_Replay.products, name=name, first=k, end=k + count))

    def _send(self, work: Work, op: SendPartial | AccumulatePartial, env: Environment) -> None:
        (slot,) = work.slot(env)
        turn = 0
        if isinstance(op, AccumulatePartial):
            turn, _ = work.senders(env)
        elif op.turn:
            (raised,) = work.raised(env)
            turn = raised - 1
        place = slot, turn, self._tile
        self.steps.append(partial(_Replay.send, name=op.accumulator, place=place))

    def _receive(self, work: Work, op: ReceivePartial | CollectPartial, env: Environment) -> None:
        (slot,) = work.slot(env)
        if isinstance(op, CollectPartial):
            first, count = work.senders(env)
        else:
            (raised,) = work.raised(env)
            first, count = raised - 1, 1
        places = [(slot, turn, self._tile) for turn in range(first, first + count)]
        self.steps.append(partial(_Replay.receive, name=op.accumulator, places=places))


def _first(tile: Sequence[int], span: tuple[int, int]) -> OutputTile:
    """The number of the first unit tile (largest tile that divides every tile shape) in a tile.

    Args:
        tile: the tile's number in its product's grid of tiles of the same shape.
        span: number of unit tiles that the tile covers along m and along n.
    """
    *batch, m, n = tile
    return (*batch, m * span[0], n * span[1])
