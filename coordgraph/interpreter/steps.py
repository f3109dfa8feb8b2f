"""The steps of a program: `Work` on a tile, `Loop`, `DynamicLoop`, `Branch` and `Let`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from sympy import Integer

from coordgraph.control.operations import (
    Epilogue,
    LoadTile,
    MultiplyAccumulate,
    Operation,
)
from coordgraph.control.resolve import Node
from coordgraph.control.scope import Scoped
from coordgraph.control.tickets import DynamicFor, TakeTicket, following
from coordgraph.coordinates.dimensions import Dimension, MacroTileIndex, User
from coordgraph.coordinates.traverse import Solution
from coordgraph.errors import EvaluationError
from coordgraph.interpreter.formulas import Elements, Formula, Slots, linear
from coordgraph.interpreter.indices import bound_below, indices_below, size_of
from coordgraph.kernel import KernelGraph
from coordgraph.tensors import Role
from coordgraph.tilings import Tiling

__all__ = ["Branch", "DynamicLoop", "Let", "Loop", "Step", "Work"]


class Whole(Protocol):
    """Protocol: the attributes and methods of a `Program` that the program's steps use."""

    @property
    def graph(self) -> KernelGraph: ...
    @property
    def slots(self) -> Slots: ...
    def in_tile(self, scope: Scoped, others: frozenset[str]) -> Scoped: ...
    def work(self, kind: type[Operation]) -> Iterator[Work]: ...


class Work:
    """A step that executes one operation, with formulas for its offsets, tile numbers and slot.

    Args:
        program: the program that contains the step.
        node: the operation, and the dimensions whose values are known where it is executed.
        factors: ids of the dimensions that are the tile numbers of A and then of B, for a
            `MultiplyAccumulate`; empty for other operations.
    """

    def __init__(self, program: Whole, node: Node, factors: tuple[str, ...] = ()) -> None:
        self.program, self.node, self.factors = program, node, factors
        self._elements: dict[str, Elements] = {}
        self._offsets: dict[str, Formula] = {}
        self._workspaces: dict[Role, User] = {}
        self._solutions: dict[str, Solution] = {}

    def elements(self, user: Dimension) -> Elements:
        """Offsets and mask of the elements of tensor `user` that this operation reads or writes.

        `user` may also be the dimension of a D that is not stored; offsets then count elements as
        if D were stored.
        """
        if user.id not in self._elements:
            self._elements[user.id] = self._of_tile(user, self.solution(user))
        return self._elements[user.id]

    def indices(self, dim: str, user: Dimension) -> Elements:
        """The index along the dimension `dim` of each element of the tile of the tensor `user`.

        The result has these indices in place of offsets. `user` is a tensor as for `elements`.
        """
        if (key := f"{dim} of {user.id}") not in self._elements:
            self._elements[key] = self._of_tile(user, self.scope.reverse(dim))
        return self._elements[key]

    def _of_tile(self, user: Dimension, found: Solution) -> Elements:
        """The values and the guard of `found` for all elements of the tile of the tensor `user`."""
        graph = self.program.graph.coordinates
        axes = indices_below(graph, user, self.node.scope.known, self._others)
        return Elements(
            found.values[0],
            found.guard,
            [graph.symbol(axis) for axis in axes],
            [axis.fixed_size for axis in axes],
            self.program.slots,
        )

    def solution(self, user: Dimension) -> Solution:
        """An element's offset in tensor `user`, and the condition that it is no padding."""
        if user.id not in self._solutions:
            self._solutions[user.id] = self.scope.reverse(user.id)
        return self._solutions[user.id]

    @cached_property
    def slot(self) -> Formula:
        """Formula for the number of the workspace slot that this operation writes or reads."""
        return Formula(self._place("slot").values, self.program.slots)

    @cached_property
    def senders(self) -> Formula:
        """Formula for (turn of the first partial sum, number of partial sums) of a send or receive.

        Partial sums are sent to a workspace slot one after another; the turn of a partial sum is
        how many were sent to the slot before it. A receive has more than one partial sum if several
        workgroups add their sums to one slot.
        """
        first, count = self._place("turn").values[0], getattr(self.node.op, "senders", Integer(1))
        return Formula([first, self.scope.resolve(count)], self.program.slots)

    @cached_property
    def raised(self) -> Formula:
        """Formula for the value of the workspace slot's flag after the partial sum was sent."""
        if "turn" in self.node.op.bindings:
            return Formula([self._place("turn").values[0] + 1], self.program.slots)
        readers = getattr(self.node.op, "readers", Integer(1))
        return Formula([self.scope.resolve(readers)], self.program.slots)

    @cached_property
    def ticket(self) -> Formula:
        """Formula for (loop index of ticket 0, number of tickets) of a `TakeTicket`.

        A ticket is the value of a shared counter that the workgroup increments; it determines the
        workgroup's next index of a dynamic loop.
        """
        op = self.node.op
        assert isinstance(op, TakeTicket)
        return Formula([self.scope.resolve(x) for x in (op.first, op.count)], self.program.slots)

    @cached_property
    def following(self) -> int:
        """The position in the environment of a dynamic loop's next index, set by `TakeTicket`."""
        op = self.node.op
        assert isinstance(op, TakeTicket)
        return self.program.slots.of(following(op.dim))

    def workspace(self, role: Role) -> User:
        """The tensor with role `role` that holds this operation's workspace slot or its flag."""
        if role not in self._workspaces:
            self._workspaces[role] = self._find_workspace(role)
        return self._workspaces[role]

    def _find_workspace(self, role: Role) -> User:
        graph = self.program.graph
        op = self.node.op
        (slot,) = (op.counter,) if isinstance(op, TakeTicket) else op.bindings["slot"]
        for user in graph.coordinates.of_kind(User):
            inside = {user.id} | graph.coordinates.below(user)
            if graph.tensor(user.tensor).role is role and slot in inside:
                return user
        raise EvaluationError(
            f"no edges connect dimension '{slot}' to a tensor with the role '{role.value}', which "
            "the operation needs; add a tensor with this role and edges from it"
        )

    def offset(self, user: User) -> Formula:
        """Formula for the index of the workspace slot's flag in the tensor of flags `user`."""
        if user.id not in self._offsets:
            self._offsets[user.id] = Formula(self.solution(user).values, self.program.slots)
        return self._offsets[user.id]

    @cached_property
    def tile(self) -> Formula:
        """Formula for a tuple: the operation's tile numbers, then 0 if they are padding, else 1."""
        found = self._place("tile")
        return Formula([*found.values, found.guard], self.program.slots)

    @cached_property
    def finishing(self) -> Work | None:
        """The graph's epilogue for macro tiles of this operation's shape; None without an epilogue.

        `AwaitPartial` names no accumulator, so no shape: then it is the kernel's first epilogue.
        """
        epilogues = [*self.program.work(Epilogue)]
        if not epilogues or not getattr(self.node.op, "accumulator", ""):
            return next(iter(epilogues), None)
        numbers = self.tiling.numbers
        return next((work for work in epilogues if work.tiling.numbers == numbers), epilogues[0])

    @cached_property
    def output(self) -> Formula:
        """Formula for the tile numbers, such as (m, n), of the output tile that is computed.

        They count macro tiles of the shape of `finishing`; there are none without an epilogue.
        """
        names = self.finishing.node.op.bindings["tile"] if self.finishing else ()
        return Formula(self.scope.reverse(*names).values if names else (), self.program.slots)

    @cached_property
    def share(self) -> Formula:
        """Formula for a tuple: which part of its output tile the operation works on, of how many.

        The result is (0, 1) for operations on whole tiles; a reduce-scatter divides tiles into
        parts.
        """
        graph, known = self.program.graph.coordinates, self.node.scope.known
        number, count = Integer(0), Integer(1)
        op = self.node.op
        tensor = op.output if isinstance(op, Epilogue) else getattr(op, "tensor", "")
        for axis in graph.of_kind(MacroTileIndex, tensor=tensor):
            for dim in bound_below(graph, axis, known):
                size = size_of(graph[dim])
                number, count = number * size + known[dim], count * size
        return Formula([number, count], self.program.slots)

    @cached_property
    def iteration(self) -> Formula:
        """Formula for a tuple: tile numbers of A and B, then 0 if one tile is padding, else 1."""
        found = self.multiplied
        return Formula([*found.values, found.guard], self.program.slots)

    @cached_property
    def multiplied(self) -> Solution:
        """Expressions for A's and B's tile numbers, with the condition that neither is padding."""
        return self.scope.reverse(*self.factors)

    @cached_property
    def tiling(self) -> Tiling:
        """The shape and the dimensions of the macro tiles on which this operation works."""
        return self.program.graph.tilings.of_operation(self.node.op)

    @cached_property
    def span(self) -> tuple[int, int]:
        """How many unit tiles in m and n the operation's macro tile covers.

        If macro tiles have several shapes, a unit tile is the largest tile that divides every
        shape.
        """
        tilings = self.program.graph.tilings
        return tilings.span(self.tiling) if len(tilings) > 1 else (1, 1)

    @cached_property
    def _others(self) -> frozenset[str]:
        """Ids of the dimensions that index elements inside macro tiles of other shapes."""
        tilings = self.program.graph.tilings
        return tilings.others(self.tiling) if len(tilings) > 1 else frozenset()

    @property
    def scope(self) -> Scoped:
        """The values that dimensions have where the operation is executed.

        The values of the indices inside the operation's macro tiles are symbols.
        """
        return self.program.in_tile(self.node.scope, self._others)

    def _place(self, role: str) -> Solution:
        return self.scope.reverse(*self.node.op.bindings[role])


class Loop:
    """A step that executes the loop `for (index = start; index < stop; index += step)`.

    `start` and `stop` are evaluated once at entry, `step` after every iteration.
    """

    def __init__(self, program: Whole, node: Node, body: tuple[Step, ...]) -> None:
        loop = node.loop
        assert loop is not None
        self.program, self.node, self.body, self.symbol = program, node, body, loop.symbol
        self.index = program.slots.of(loop.symbol)
        self.bounds = Formula([loop.start, loop.stop], program.slots)
        self.step = Formula([loop.step], program.slots)
        self._unit = loop.step == 1

    @cached_property
    def product(self) -> Work | None:
        """The `MultiplyAccumulate` step of a loop that only loads and sums k tiles, else None.

        The loop's body must be loads and one `MultiplyAccumulate`, and its step must be 1.
        """
        products = [s for s in self.body if isinstance(s, Work) and s.factors]
        loads = all(isinstance(s, Work) and isinstance(s.node.op, LOADING) for s in self.body)
        return products[0] if self._unit and loads and len(products) == 1 else None

    @cached_property
    def accumulation(self) -> Work | None:
        """The loop's `product` if the loop sums consecutive k tiles, else None.

        An iteration must advance k by one tile and leave m and n unchanged. The guard (the
        condition that the tiles are no padding) must be linear in the loop's index, so that it
        holds in all iterations if it holds in the first and the last one.
        """
        if self.product is None:
            return None
        found, symbol = self.product.multiplied, self.symbol
        # The expressions hold for every index in the loop's range, so that index + 1 may be
        # substituted for the index.
        moves = [(value.xreplace({symbol: symbol + 1}) - value).expand() for value in found.values]
        batch = [0] * (len(moves) // 2 - 2)
        wanted = [*batch, 0, 1, *batch, 1, 0]
        return self.product if moves == wanted and linear(found.guard, symbol) else None


class DynamicLoop:
    """A step that executes the loop `for (index = start; index < stop; index = following)`.

    A `Work` step in the body, whose operation is a `TakeTicket`, stores the next index at the
    position `self.following` of the environment.
    """

    def __init__(self, program: Whole, node: Node, body: tuple[Step, ...]) -> None:
        loop = node.loop
        assert loop is not None
        assert isinstance(node.op, DynamicFor)
        self.node, self.body = node, body
        self.index = program.slots.of(loop.symbol)
        self.following = program.slots.of(following(node.op.dim))
        self.bounds = Formula([loop.start, loop.stop], program.slots)


LOADING = (LoadTile, MultiplyAccumulate)


@dataclass(frozen=True, eq=False)
class Branch:
    """A step that executes `body` if `condition` holds, else `orelse`."""

    condition: Formula
    body: tuple[Step, ...]
    orelse: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Let:
    """A step that sets position `place` of an `Environment` to `value`, then runs `body`.

    `body` is empty for an `Assign` operation, whose value is read by the steps that follow it.
    """

    place: int
    value: Formula
    body: tuple[Step, ...]


Step = Work | Loop | DynamicLoop | Branch | Let
