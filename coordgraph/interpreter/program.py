"""Programs: a scheduled graph with its expressions compiled, ready to be walked.

The steps come from `coordgraph.control.resolve`, which code generation walks too, so an index here
is the index there. What a walk does not ask for is never worked out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod
from typing import Any, Protocol

from sympy import Expr, Integer

from coordgraph.control.operations import (
    AccumulatePartial,
    AddPartial,
    Assign,
    AwaitPartial,
    CollectPartial,
    Epilogue,
    For,
    If,
    InitAccumulator,
    Inside,
    LoadTile,
    Locate,
    MultiplyAccumulate,
    Operation,
    ReceivePartial,
    Scope,
    SendPartial,
    SetCoordinate,
    StoreTile,
)
from coordgraph.control.resolve import Node, resolve
from coordgraph.control.scope import Scoped
from coordgraph.coordinates.dimensions import Dimension, MacroTileIndex, User
from coordgraph.coordinates.traverse import Solution
from coordgraph.errors import EvaluationError
from coordgraph.integers import ceil_div
from coordgraph.interpreter.events import Event
from coordgraph.interpreter.formulas import Elements, Environment, Formula, Slots, linear
from coordgraph.interpreter.indices import bound_below, free_indices, indices_below
from coordgraph.kernel import KernelGraph
from coordgraph.products import product_order, ragged_axes
from coordgraph.tensors import Role
from coordgraph.tilings import Tiling

__all__ = [
    "Branch",
    "Let",
    "Loop",
    "Program",
    "Step",
    "Work",
    "Worker",
    "program",
    "walk",
]

WORK = (
    InitAccumulator,
    LoadTile,
    MultiplyAccumulate,
    SendPartial,
    ReceivePartial,
    AwaitPartial,
    AddPartial,
    AccumulatePartial,
    CollectPartial,
    Epilogue,
    StoreTile,
)


class Program:
    """The steps of one workgroup, and the slots of their symbols."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self.slots = Slots()
        self.workgroup = self.slots.add(graph.workgroup.symbol)
        known = (*graph.parameters.items, *graph.parameters.tables)
        self.parameters = {p.name: self.slots.add(p.symbol) for p in known}
        self.grid = Formula([_size(graph.workgroup)], self.slots)
        self._loads: dict[str, LoadTile] = {}
        self._in_tile: dict[tuple[int, frozenset[str]], tuple[Scoped, Scoped]] = {}
        self.steps = self._compile(resolve(graph.control.root.body, graph.scope()))

    def environment(self, values: Mapping[str, Any], workgroup: int = 0) -> Environment:
        """The symbols of one workgroup, given parameters' values and tables' entries."""
        env = [0] * len(self.slots)
        for name, value in values.items():
            env[self.parameters[name]] = value
        env[self.workgroup] = workgroup
        return env

    @cached_property
    def tiles(self) -> Formula:
        """The number of tiles in m, n and k; before them that of products in a batch.

        Where there are several shapes, the tiles that divide all of them are counted.
        """
        coordinates = self.graph.coordinates
        for work in self.work(MultiplyAccumulate):
            *batch, m, k = work.factors[: len(work.factors) // 2]
            axes = zip((m, work.factors[-1], k), ragged_axes(self.graph), strict=True)
            counted = (edge.upstream[0] if edge else number for number, edge in axes)
            sizes = [_size(coordinates[d]) for d in (*batch, *counted)]
            for axis, (span, tensor) in enumerate(zip(work.span, "AB", strict=True)):
                if span > 1:
                    (edge,) = coordinates.edges_above(work.tiling.index(tensor, axis))
                    extent = _size(coordinates[edge.upstream[0]])
                    sizes[axis - 3] = ceil_div(extent, Integer(self.graph.tilings.unit[axis]))
            return Formula(sizes, self.slots)
        raise EvaluationError("nothing accumulates in this graph")

    def shapes(self, values: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
        """The numbers of tiles of each product in m, n and k, where they are data."""
        ragged = ragged_axes(self.graph)
        tiles = self.tiles(self.environment(values))[-3:]
        found = [edge and [b - a for a, b in pairwise(values[edge.table])] for edge in ragged]
        count = max((len(steps) for steps in found if steps), default=0)
        each = (steps or [size] * count for steps, size in zip(found, tiles, strict=True))
        shapes = [*zip(*each, strict=True)]
        if shapes and not any(map(prod, shapes)):
            # One tile of padding along the axes that groups part.
            shapes[-1] = tuple(1 if e else n for e, n in zip(ragged, shapes[-1], strict=True))
        places = values[order.table] if (order := product_order(self.graph)) else range(len(shapes))
        return tuple(shape for _, shape in sorted(zip(places, shapes, strict=True)))

    def in_tile(self, scope: Scoped, others: frozenset[str]) -> Scoped:
        """A scope in which the indices inside tiles stand for themselves, but for those of others.

        One for all operations of a place, so that what was simplified for one helps the next.
        """
        key = (id(scope), others)
        if key not in self._in_tile:
            dims = free_indices(self.graph.coordinates, scope.known, others)
            self._in_tile[key] = (scope, scope.hardware(d.id for d in dims))
        return self._in_tile[key][1]

    def work(self, kind: type[Operation]) -> Iterator[Work]:
        """The steps that do an operation of a kind."""
        stack: list[Step] = list(reversed(self.steps))
        while stack:
            step = stack.pop()
            if isinstance(step, Work):
                if isinstance(step.node.op, kind):
                    yield step
            else:
                stack += reversed(step.body)
                if isinstance(step, Branch):
                    stack += reversed(step.orelse)

    def _compile(self, nodes: tuple[Node, ...]) -> tuple[Step, ...]:
        return tuple(step for node in nodes for step in self._step(node))

    def _step(self, node: Node) -> Iterator[Step]:
        match node.op:
            case Scope():
                yield from self._compile(node.body)
            case For():
                assert node.loop is not None
                self.slots.add(node.loop.symbol)
                yield Loop(self, node, self._compile(node.body))
            case If() | Inside():
                assert node.condition is not None
                yes, no = self._compile(node.body), self._compile(node.orelse)
                yield Branch(Formula([node.condition], self.slots), yes, no)
            case Assign(symbol=symbol):
                assert node.value is not None
                value = Formula([node.value], self.slots)
                yield Let(self.slots.add(symbol), value, ())
            case SetCoordinate() if node.value is None:
                yield from self._compile(node.body)
            case SetCoordinate():
                assert node.value is not None
                yield from self._let((node.op.dim,), (node.value,), node)
            case Locate():
                yield from self._let(node.op.dims, node.values, node)
            case LoadTile(tensor=tensor):
                self._loads[tensor] = node.op
                yield Work(self, node)
            case MultiplyAccumulate(a=a, b=b):
                missing = [name for name in (a, b) if name not in self._loads]
                if missing:
                    raise EvaluationError(f"{' and '.join(missing)} multiplied but not loaded")
                yield Work(self, node, (*self._loads[a].tile, *self._loads[b].tile))
            case op if isinstance(op, WORK):
                yield Work(self, node)
            case op:
                raise EvaluationError(
                    f"{op.kind} has no meaning here: interpret the scheduled graph, not what "
                    "lowering made of it"
                )

    def _let(self, dims: tuple[str, ...], values: tuple[Expr, ...], node: Node) -> tuple[Step, ...]:
        """The body, after each dimension's symbol has its value."""
        named = [
            (self.slots.add(self.graph.coordinates.symbol(dim)), Formula([value], self.slots))
            for dim, value in zip(dims, values, strict=True)
        ]
        body = self._compile(node.body)
        for place, value in reversed(named):
            body = (Let(place, value, body),)
        return body


@lru_cache(maxsize=64)
def program(graph: KernelGraph) -> Program:
    """The program of a graph, compiled once.

    Raises:
        VerifyError: no schedule has tied the graph to workgroups.
    """
    return Program(graph)


class Work:
    """An operation in its place; `factors` are the tile numbers of A and B where it multiplies."""

    def __init__(self, program: Program, node: Node, factors: tuple[str, ...] = ()) -> None:
        self.program, self.node, self.factors = program, node, factors
        self._elements: dict[str, Elements] = {}
        self._offsets: dict[str, Formula] = {}
        self._workspaces: dict[Role, User] = {}

    def elements(self, user: User) -> Elements:
        """The elements of a tensor's tile here, by the indices inside the tile."""
        if user.id not in self._elements:
            graph = self.program.graph.coordinates
            axes = indices_below(graph, user, self.node.scope.known, self._others)
            found = self._scope.reverse(user.id)
            self._elements[user.id] = Elements(
                found.values[0],
                found.guard,
                [graph.symbol(axis) for axis in axes],
                [axis.fixed_size for axis in axes],
                self.program.slots,
            )
        return self._elements[user.id]

    @cached_property
    def slot(self) -> Formula:
        """The number of the slot that is sent or received."""
        return Formula(self._place("slot").values, self.program.slots)

    @cached_property
    def senders(self) -> Formula:
        """The turn of the first of those who add to the slot, and how many they are."""
        first, count = self._place("turn").values[0], getattr(self.node.op, "senders", Integer(1))
        return Formula([first, self._scope.resolve(count)], self.program.slots)

    @cached_property
    def raised(self) -> Formula:
        """What the slot's flag is when it is sent."""
        if "turn" in self.node.op.bindings:
            return Formula([self._place("turn").values[0] + 1], self.program.slots)
        readers = getattr(self.node.op, "readers", Integer(1))
        return Formula([self._scope.resolve(readers)], self.program.slots)

    def workspace(self, role: Role) -> User:
        """The tensor of this role in which the slot lies."""
        if role not in self._workspaces:
            self._workspaces[role] = self._find_workspace(role)
        return self._workspaces[role]

    def _find_workspace(self, role: Role) -> User:
        graph = self.program.graph
        (slot,) = self.node.op.bindings["slot"]
        for user in graph.coordinates.of_kind(User):
            if graph.tensor(user.tensor).role is role and slot in graph.coordinates.below(user):
                return user
        raise EvaluationError(f"no tensor of {role.value} lies above the slot '{slot}'")

    def offset(self, user: User) -> Formula:
        """Where the slot's own element (its flag) lies in a tensor."""
        if user.id not in self._offsets:
            found = self._scope.reverse(user.id)
            self._offsets[user.id] = Formula(found.values, self.program.slots)
        return self._offsets[user.id]

    @cached_property
    def tile(self) -> Formula:
        """The tile numbers that the operation binds, then whether they are not padding."""
        found = self._place("tile")
        return Formula([*found.values, found.guard], self.program.slots)

    @cached_property
    def output(self) -> Formula:
        """The numbers of the output tile that is worked on here."""
        names = next(self.program.work(StoreTile)).node.op.bindings["tile"]
        return Formula(self._scope.reverse(*names).values, self.program.slots)

    @cached_property
    def share(self) -> Formula:
        """Which share of the tile that the operation binds is meant, of how many: 0, 1 for all."""
        graph, known = self.program.graph.coordinates, self.node.scope.known
        number, count = Integer(0), Integer(1)
        op = self.node.op
        tensor = op.output if isinstance(op, Epilogue) else getattr(op, "tensor", "")
        for axis in graph.of_kind(MacroTileIndex, tensor=tensor):
            for dim in bound_below(graph, axis, known):
                size = _size(graph[dim])
                number, count = number * size + known[dim], count * size
        return Formula([number, count], self.program.slots)

    @cached_property
    def iteration(self) -> Formula:
        """What is multiplied: the numbers of both tiles, then whether they are not padding."""
        found = self.multiplied
        return Formula([*found.values, found.guard], self.program.slots)

    @cached_property
    def multiplied(self) -> Solution:
        """The numbers of both tiles as expressions."""
        return self._scope.reverse(*self.factors)

    @cached_property
    def tiling(self) -> Tiling:
        """The shape of the tiles that the operation is on."""
        return self.program.graph.tilings.of_operation(self.node.op)

    @cached_property
    def span(self) -> tuple[int, int]:
        """How many of the tiles that the program counts such a tile is, in m and n."""
        tilings = self.program.graph.tilings
        return tilings.span(self.tiling) if len(tilings) > 1 else (1, 1)

    @cached_property
    def _others(self) -> frozenset[str]:
        """The elements of tiles of other shapes."""
        tilings = self.program.graph.tilings
        return tilings.others(self.tiling) if len(tilings) > 1 else frozenset()

    @property
    def _scope(self) -> Scoped:
        return self.program.in_tile(self.node.scope, self._others)

    def _place(self, role: str) -> Solution:
        return self._scope.reverse(*self.node.op.bindings[role])


class Loop:
    """`for (index = start; index < stop; index += step)`, start and stop worked out at entry."""

    def __init__(self, program: Program, node: Node, body: tuple[Step, ...]) -> None:
        loop = node.loop
        assert loop is not None
        self.program, self.node, self.body, self.symbol = program, node, body, loop.symbol
        self.index = program.slots.of(loop.symbol)
        self.bounds = Formula([loop.start, loop.stop], program.slots)
        self.step = Formula([loop.step], program.slots)
        self._unit = loop.step == 1

    @cached_property
    def accumulation(self) -> Work | None:
        """The product of this loop, if all that the loop does is to add the k tiles in order.

        That is so where it holds nothing but the loads and one `MultiplyAccumulate`, and where,
        by derivatives, k advances by one with the index while m and n stay. The guard must be
        linear in the index, so that what holds at both ends holds between them.
        """
        products = [s for s in self.body if isinstance(s, Work) and s.factors]
        if not self._unit or len(products) != 1:
            return None
        if not all(isinstance(s, Work) and isinstance(s.node.op, LOADING) for s in self.body):
            return None
        (product,) = products
        found, symbol = product.multiplied, self.symbol
        # What is simplified for every index of the loop holds for the next one as well.
        moves = [(value.xreplace({symbol: symbol + 1}) - value).expand() for value in found.values]
        batch = [0] * (len(moves) // 2 - 2)
        wanted = [*batch, 0, 1, *batch, 1, 0]
        return product if moves == wanted and linear(found.guard, symbol) else None


LOADING = (LoadTile, MultiplyAccumulate)


@dataclass(frozen=True, eq=False)
class Branch:
    """One of two bodies."""

    condition: Formula
    body: tuple[Step, ...]
    orelse: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Let:
    """A value for a symbol, worked out before the body (or what follows) reads it."""

    place: int
    value: Formula
    body: tuple[Step, ...]


Step = Work | Loop | Branch | Let


class Worker(Protocol):
    """What a walk is for: numbers, or a record of what would be done."""

    def accumulate(self, loop: Loop, env: Environment, start: int, stop: int) -> bool:
        """Do a whole loop at once; False asks to walk it."""
        ...

    def work(self, work: Work, env: Environment) -> Iterator[Event]:
        """Do one operation, stopping before everything that other workgroups can see."""
        ...


def walk(steps: tuple[Step, ...], env: Environment, worker: Worker) -> Iterator[Event]:
    """Run steps for one workgroup; stops at every event."""
    for step in steps:
        match step:
            case Work():
                yield from worker.work(step, env)
            case Let():
                (env[step.place],) = step.value(env)
                yield from walk(step.body, env, worker)
            case Branch():
                yield from walk(step.body if step.condition(env)[0] else step.orelse, env, worker)
            case Loop():
                index, stop = step.bounds(env)
                if worker.accumulate(step, env, index, stop):
                    continue
                while index < stop:
                    env[step.index] = index
                    yield from walk(step.body, env, worker)
                    env[step.index] = index
                    (advance,) = step.step(env)
                    if advance < 1:
                        raise EvaluationError(f"the loop over {step.symbol} steps by {advance}")
                    index += advance


def _size(dimension: Dimension) -> Expr:
    if dimension.size is None:
        raise EvaluationError(f"'{dimension.id}' needs a size")
    return dimension.size
