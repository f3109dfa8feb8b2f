"""The steps of a workgroup's threads: the operations and elements of memory of each thread.

Control flow of a lowered graph depends on launch parameters, tables and the numbers of workgroup
and thread, not on values that threads exchange. So the steps of every thread are computed before an
interleaving is chosen. The exception is a dynamic loop, whose indices are tickets: its steps are
those of one assignment of tickets, in which workgroups take tickets in turn.

Steps are computed for all threads of a workgroup together: the value of a symbol is an integer, or
an array with an element for each thread. An unrolled loop whose body only accesses memory is one
step: the values of its loop index lie along one more axis of the array, before all other axes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
from sympy import Symbol, sympify

from coordgraph.control.asynchronous import Advance, Counter
from coordgraph.control.declared_effects import effects
from coordgraph.control.effects import (
    WHOLE,
    Access,
    Arrive,
    Asynchronous,
    AwaitFlag,
    AwaitPhase,
    ChangeFlag,
    Converge,
    DrawTicket,
    Effect,
    Initialise,
    Kind,
    Meet,
    TakeFlag,
)
from coordgraph.control.lowered import DeriveParameters, Tabulate
from coordgraph.control.operations import (
    Assign,
    For,
    If,
    Inside,
    Locate,
    Operation,
    Scope,
    SetCoordinate,
)
from coordgraph.control.resolve import Node
from coordgraph.control.tickets import DynamicFor, ReadTicket, following
from coordgraph.coordinates.dimensions import Shared
from coordgraph.errors import VerifyError
from coordgraph.kernel import KernelGraph
from coordgraph.verification.memory_order.compiled_values import Formulas
from coordgraph.verification.memory_order.thread_values import (
    WARP,
    Array,
    TooLarge,
    Value,
    accesses_of,
    accesses_only,
    affordable,
    elected_of,
    is_grid,
    resolved,
    shape_of,
    threads_of,
    uniform,
)

__all__ = ["Place", "Step", "Walk"]

MOST_STEPS = 1 << 14
"""Largest number of steps of a workgroup; a workgroup with more steps counts as an endless loop."""
MOST_ITERATIONS = 1 << 16
"""Largest number of iterations of a workgroup, summed over all its loops that are not unrolled;
with more, the simulation of the launch raises `TooLarge`."""


@dataclass(slots=True)
class Place:
    """The elements that the threads of a workgroup access in one step.

    Args:
        access: the access that the operation declares.
        first: index of the first element; the last axis of the array numbers threads.
        inside: boolean array of the same shape as `first`: True for the elements that a thread does
            access.
        rank: rank, in its cluster, of the workgroup whose shared memory is accessed; None if a
            thread accesses its own workgroup's memory.
    """

    access: Access
    first: Array
    inside: Array
    rank: Value = None


@dataclass(slots=True)
class Step:
    """One operation, for all threads of a workgroup that execute it together.

    Args:
        op: the operation.
        effects: the operation's memory effects.
        mask: for each thread of the workgroup, whether it executes the operation.
        elected: for each thread, whether it executes those of `effects` that follow a `Converge`
            (only one thread of a warp does).
        values: the operands of effects, such as a flag's index, by the position of the effect in
            `effects` and by the operand's name.
        places: the elements of memory that the operation accesses, one entry for each access.
        role: the name of the innermost named scope that contains the operation.
        indices: the indices of the enclosing loops and counters, by dimension.
    """

    op: Operation
    effects: tuple[Effect, ...]
    mask: Array
    elected: Array
    values: dict[tuple[int, str], Value] = field(default_factory=dict[tuple[int, str], Value])
    places: list[Place] = field(default_factory=list[Place])
    role: str = ""
    indices: dict[str, Value] = field(default_factory=dict[str, Value])


class Walk:
    """Computes the steps of one workgroup.

    Args:
        graph: a lowered graph.
        formulas: the graph's index expressions, compiled to functions of NumPy arrays.
        env: the values of parameters, tables, and the numbers of workgroup, rank and threads.
        threads: number of threads of a workgroup.
        tracked: ids of the dimensions of memory whose accesses are checked element by element.
    """

    def __init__(
        self,
        graph: KernelGraph,
        formulas: Formulas,
        env: Mapping[Symbol, Value],
        threads: int,
        tracked: frozenset[str],
    ) -> None:
        self.graph, self.formulas, self.env = graph, formulas, dict(env)
        self.threads, self.tracked = threads, tracked
        self.shared = {memory.id for memory in graph.coordinates.of_kind(Shared)}
        self.steps: list[Step] = []
        self._roles: list[str] = [""]
        self._loops: list[tuple[str, Symbol]] = []
        self._counting: dict[Symbol, Array] = {}
        self._iterations = 0
        self._have_read: dict[str, Array] = {}
        self._here: Operation = graph.control.root

    def run(self, nodes: tuple[Node, ...], mask: Array) -> None:
        """Record the steps in which the threads of `mask` execute `nodes` in order."""
        for node in nodes:
            self._execute(node, mask)

    def value(self, expr: Any, mask: Array) -> Value:
        """Evaluate an expression for the threads of `mask`, as an array with an element per thread.

        The result is a single integer if all threads of `mask` have the same value.
        """
        expr = sympify(expr)
        for table in self.formulas.tables(expr):
            self._read(table, threads_of(mask))
        found = self.formulas.value(expr, self.env)
        if isinstance(found, np.ndarray) and found.ndim:
            return uniform(found, mask)
        if isinstance(found, np.ndarray):  # np.where(c, 1, 2) is an array without axes
            found = found[()]
        return int(found) if not isinstance(found, bool | np.bool_) else bool(found)

    def _execute(self, node: Node, mask: Array) -> None:
        symbol, self._here = self.graph.coordinates.symbol, node.op
        match node.op:
            case For() | DynamicFor():
                self._loop(node, node.op, mask)
            case If() | Inside():
                self._branch(node, mask)
            case Assign() as op:
                assert node.value is not None
                self.env[op.symbol] = self.value(node.value, mask)
            case SetCoordinate(dim=dim):
                if node.value is None:
                    self.run(node.body, mask)
                else:
                    with self._bound(symbol(dim), self.value(node.value, mask)):
                        self.run(node.body, mask)
            case Counter(dim=dim):
                self._loops.append((dim, symbol(dim)))
                self._counting[symbol(dim)] = mask
                with self._bound(symbol(dim), 0):
                    self.run(node.body, mask)
                self._loops.pop()
            case Advance(dim=dim, by=by):
                amount = self.formulas.known(node, "by", partial(node.scope.resolve, by))
                self._advance(symbol(dim), self.value(amount, mask), mask)
            case Locate(dims=dims):
                for dim, value in zip(dims, node.values, strict=True):
                    self.env[symbol(dim)] = self.value(value, mask)
                self.run(node.body, mask)
            case Scope(name=name):
                self._roles.append(name)
                self.run(node.body, mask)
                self._roles.pop()
            case op:
                self._read_for(node, op, mask)
                if found := self.formulas.known(node, "effects", partial(effects, op)):
                    self._record(node, found, mask)
                self.run(node.body, mask)

    def _read_for(self, node: Node, op: Operation, mask: Array) -> None:
        """Record that the threads of `mask` read the tables which `op`'s expressions read.

        If `op` is a `ReadTicket`, also set the next index of the loop whose ticket it reads.
        """
        if isinstance(op, ReadTicket):
            self._follow(node, op, mask)
        parameters = self.graph.parameters
        every = {table.name: table for table in parameters.tables}
        if isinstance(op, Tabulate) and (step := every[op.table].step) is not None:
            for table in self.formulas.tables(step):
                self._read(table, threads_of(mask) & _warp(op.first, self.threads))
        if isinstance(op, DeriveParameters):
            for p in parameters.items:
                if p.name in parameters.deferred and p.value is not None:
                    for table in self.formulas.tables(p.value):
                        self._read(table, threads_of(mask))

    def _read(self, table: str, mask: Array) -> None:
        """Record the first read of a table by the threads of `mask`.

        A table is written once, so later reads of the same thread see the same values.
        """
        before = self._have_read.get(table, np.zeros(self.threads, np.bool_))
        new = mask & ~before
        if not new.any():
            return
        self._have_read[table] = before | new
        shared = f"{table}.shared"
        access = Access(Kind.READ, shared if shared in self.tracked else table, WHOLE)
        step = Step(self._here, (access,), new, new, role=self._roles[-1])
        if access.dim in self.tracked:
            step.places.append(Place(access, np.zeros((1, self.threads), np.int64), new[None]))
        self.steps.append(step)

    def _advance(self, counter: Symbol, by: Value, mask: Array) -> None:
        before = self.env[counter]
        after = before + by
        if not isinstance(after, np.ndarray) and (mask == self._counting[counter]).all():
            self.env[counter] = after
        else:
            self.env[counter] = np.where(mask, after, before)

    @contextmanager
    def _bound(self, symbol: Symbol, value: Value) -> Generator[None, None, None]:
        before = self.env.get(symbol)
        self.env[symbol] = value
        yield
        self.env[symbol] = before
        if before is None:
            del self.env[symbol]

    def _loop(self, node: Node, op: For | DynamicFor, mask: Array) -> None:
        if isinstance(op, DynamicFor):
            self._dynamic(node, op, mask)
            return
        loop = node.loop
        assert loop is not None
        index, stop = self.value(loop.start, mask), self.value(loop.stop, mask)
        if op.unroll and isinstance(index, int) and isinstance(stop, int) and self._at_once(node):
            step = self.value(loop.step, mask)
            count = len(range(index, stop, step)) * prod(shape_of(self.env, mask))
            affordable(count, f"the unrolled iterations over {op.dim}, for all threads,")
            every = np.arange(index, stop, step)
            axes = max([mask.ndim, *(np.ndim(v) for v in self.env.values() if is_grid(v))])
            if every.size == 1:
                with self._bound(loop.symbol, int(every[0])):
                    self.run(node.body, mask)
            elif every.size:
                saved = dict(self.env)
                self.env[loop.symbol] = every.reshape(-1, *(1,) * axes)
                self.run(node.body, mask)
                self.env = saved
            return
        self._loops.append((op.dim, loop.symbol))
        while True:
            going = index < stop
            inside = mask & going if isinstance(going, np.ndarray) else mask
            if not (going if isinstance(going, bool) else inside.any()):
                break
            self._iterate(op.dim)
            with self._bound(loop.symbol, index):
                self.run(node.body, inside)
                index = index + self.value(loop.step, inside)
                if isinstance(index, np.ndarray):
                    index = uniform(index, inside)
        self._loops.pop()

    def _dynamic(self, node: Node, op: DynamicFor, mask: Array) -> None:
        loop = node.loop
        assert loop is not None
        index, stop = self.value(loop.start, mask), self.value(loop.stop, mask)
        self._loops.append((op.dim, loop.symbol))
        while True:
            going = index < stop
            inside = mask & going if isinstance(going, np.ndarray) else mask
            if not (going if isinstance(going, bool) else inside.any()):
                break
            self._iterate(op.dim)
            # without a `ReadTicket` in the body, the loop ends
            with self._bound(loop.symbol, index), self._bound(following(op.dim), stop):
                self.run(node.body, inside)
                index = self.env[following(op.dim)]
                if isinstance(index, np.ndarray):
                    index = uniform(index, inside)
        self._loops.pop()

    def _follow(self, node: Node, op: ReadTicket, mask: Array) -> None:
        """Set the next index of a `DynamicFor`, as if all workgroups took loop indices in turn."""
        size, resolve = self.graph.workgroup.size, node.scope.resolve
        first = self.formulas.known(node, "first", partial(resolve, op.first))
        turn = self.value(node.place(op.turn).values[0], mask)
        ticket = self.env[self.graph.workgroup.symbol] + turn * self.value(size, mask)
        symbol = following(op.dim)
        found = self.value(first, mask) + ticket
        before = self.env[symbol]
        self.env[symbol] = found if mask.all() else np.where(mask, found, before)

    def _iterate(self, dim: str) -> None:
        """Count one iteration of a loop over `dim`; raise `TooLarge` if there are too many."""
        self._iterations += 1
        if self._iterations > MOST_ITERATIONS:
            raise TooLarge(
                f"a workgroup executes more than {MOST_ITERATIONS} iterations of loops, such "
                f"as that over {dim}; choose smaller sizes"
            )

    def _at_once(self, node: Node) -> bool:
        return bool(self.formulas.known(node, "at once", partial(accesses_only, node)))

    def _branch(self, node: Node, mask: Array) -> None:
        assert node.condition is not None
        holds = self.value(node.condition, mask)
        if isinstance(holds, bool | int):
            self.run(node.body if holds else node.orelse, mask)
            return
        for body, part in ((node.body, mask & holds), (node.orelse, mask & ~holds)):
            if body and part.any():
                self.run(body, part)

    def _record(self, node: Node, found: tuple[Effect, ...], mask: Array) -> None:
        if len(self.steps) >= MOST_STEPS:
            raise VerifyError(
                f"a workgroup executes more than {MOST_STEPS} operations, so a loop probably never "
                "ends; correct the bounds of its loops"
            )
        threads = threads_of(mask)
        indices = {dim: self.env[symbol] for dim, symbol in self._loops}
        elected = threads
        if isinstance(found[0], Converge):
            if found[0].first is not None:
                threads = threads & _warp(found[0].first, self.threads)
            elected = elected_of(threads)
        mask = np.asarray(mask & elected)
        step = Step(node.op, found, threads, elected, role=self._roles[-1], indices=indices)
        for number, effect in enumerate(found):
            of_effect = partial(lambda n, e: [*self._numbers(n, e)], node, effect)
            for name, expr in self.formulas.known(node, f"numbers {number}", of_effect):
                step.values[number, name] = self.value(expr, mask)
            for access in accesses_of(effect):
                if access.count and access.dim in self.tracked:
                    step.places.append(self._place(node, access, mask))
            if isinstance(effect, Asynchronous) and effect.barrier:
                count = np.broadcast_to(mask, shape_of(self.env, mask)).reshape(-1, self.threads)
                step.values[number, "times"] = uniform(count.sum(axis=0), elected)
        self.steps.append(step)

    def _numbers(self, node: Node, effect: Effect) -> Iterator[tuple[str, Any]]:
        """Yield (name, expression) for each number that an effect needs.

        The name is one for `Step.values`: `place` for the index of the effect's barrier or flag,
        `value` for the value of a flag; or `parity`, `expected` (bytes), `rank` or `count`.
        """
        match effect:
            case Asynchronous(barrier=barrier) | Initialise(barrier=barrier) if barrier:
                yield "place", node.place(barrier).values[0]
            case Arrive(barrier=barrier, expected=expected, rank=rank):
                yield "place", node.place(barrier).values[0]
                if expected is not None:
                    yield "expected", node.scope.resolve(expected)
                if rank is not None:
                    yield "rank", node.scope.resolve(rank)
            case AwaitPhase(barrier=barrier, phase=phase):
                yield "place", node.place(barrier).values[0]
                yield "parity", node.place(phase).values[0]
            case Meet(identifier=identifier) if identifier is not None:
                yield "place", node.scope.resolve(identifier)
            case ChangeFlag(flag=flag, turn=turn, value=value):
                yield "place", node.place(flag).values[0]
                if value is not None:
                    yield "value", node.place(turn).values[0] + 1 if turn else resolved(node, value)
            case AwaitFlag(flag=flag, turn=turn, value=value):
                yield "place", node.place(flag).values[0]
                yield "value", node.place(turn).values[0] + 1 if turn else resolved(node, value)
            case TakeFlag(flag=flag):
                yield "place", node.place(flag).values[0]
            case DrawTicket():
                yield "place", node.place(effect.counter).values[0]
                yield "count", node.scope.resolve(effect.count)
            case _:
                return

    def _place(self, node: Node, access: Access, mask: Array) -> Place:
        if access.count == WHOLE:
            return Place(access, np.zeros((1, self.threads), np.int64), threads_of(mask)[None])
        found = node.place(access.dim)
        first = self.formulas.value(found.values[0], self.env)
        # Unless the operation computes a guard, accesses to shared memory are not skipped as
        # padding: an index outside the memory is a fault, which the module `races` reports.
        padded = access.dim not in self.shared
        inside = self.formulas.value(found.guard, self.env) if padded else True
        if access.guard:
            guard = node.place(access.guard).guard
            inside = np.logical_and(inside, self.formulas.value(guard, self.env))
        if access.lanes < WARP:
            inside = np.logical_and(inside, np.arange(self.threads) % WARP < access.lanes)
        rank = None
        if access.rank is not None:
            resolve = partial(node.scope.resolve, access.rank)
            rank = self.value(self.formulas.known(node, "rank", resolve), mask)
        full = np.broadcast_shapes(np.shape(first), np.shape(inside), mask.shape)
        inside = np.broadcast_to(mask & inside, full).reshape(-1, self.threads)
        first = np.broadcast_to(first, full).reshape(-1, self.threads)
        return Place(access, first, inside, rank)


def _warp(first: int, threads: int) -> Array:
    """Mask of the threads of the warp whose first thread has the number `first`."""
    return np.arange(threads) // WARP == first // WARP
