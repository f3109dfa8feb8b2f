"""Programs: a scheduled graph as a tree of steps, whose expressions are Python functions.

The steps come from `coordgraph.control.resolve`, as in code generation, so the interpreter and
generated kernels compute the same indices. An expression is compiled when it is first evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod
from typing import Any

from sympy import Expr, Integer
from sympy.core.basic import Basic

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
from coordgraph.control.timeline import Begin
from coordgraph.coordinates.dimensions import Dimension, MacroTileIndex, User
from coordgraph.coordinates.traverse import Solution
from coordgraph.errors import EvaluationError
from coordgraph.integers import ceil_div
from coordgraph.interpreter.formulas import Elements, Environment, Formula, Slots, linear
from coordgraph.interpreter.indices import bound_below, free_indices, indices_below
from coordgraph.interpreter.lookups import READ, lookups
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
    "program",
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
    """The steps that every workgroup of a scheduled graph executes."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self.slots = Slots()
        self.workgroup = self.slots.add(graph.workgroup.symbol)
        known = (*graph.parameters.items, *graph.parameters.tables)
        self.parameters = {p.name: self.slots.add(p.symbol) for p in known}
        self.grid = Formula([_size(graph.workgroup)], self.slots)
        self._loads: dict[str, LoadTile] = {}
        self._in_tile: dict[tuple[int, frozenset[str]], tuple[Scoped, Scoped]] = {}
        self.nodes = resolve(graph.control.root.body, graph.scope())
        self.steps = self._compile(self.nodes)

    def environment(self, values: Mapping[str, Any], workgroup: int = 0) -> Environment:
        """The initial values of all symbols for one workgroup.

        Args:
            values: the parameters' values and the tables' entries, by name.
            workgroup: the number of the workgroup.
        """
        env = [0] * len(self.slots)
        for name, value in values.items():
            env[self.parameters[name]] = value
        env[self.workgroup] = workgroup
        return env

    @cached_property
    def tiles(self) -> Formula:
        """Formula for the numbers of macro tiles in m, n and k.

        In a batch, the number of products comes before them. If macro tiles have several shapes,
        the numbers count unit tiles: a unit tile is the largest tile that divides every shape.
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
        raise EvaluationError("the graph has no MultiplyAccumulate; start from Gemm.graph()")

    def shapes(self, values: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
        """Each product's numbers of macro tiles in m, n and k; empty if all products are equal."""
        ragged = ragged_axes(self.graph)
        tiles = self.tiles(self.environment(values))[-3:]
        found = [edge and [b - a for a, b in pairwise(values[edge.table])] for edge in ragged]
        count = max((len(steps) for steps in found if steps), default=0)
        each = (steps or [size] * count for steps, size in zip(found, tiles, strict=True))
        shapes = [*zip(*each, strict=True)]
        if shapes and not any(map(prod, shapes)):
            # If all groups are empty, schedules still run one tile of padding along each axis whose
            # extent differs between groups (a ragged axis).
            shapes[-1] = tuple(1 if e else n for e, n in zip(ragged, shapes[-1], strict=True))
        places = values[order.table] if (order := product_order(self.graph)) else range(len(shapes))
        return tuple(shape for _, shape in sorted(zip(places, shapes, strict=True)))

    def in_tile(self, scope: Scoped, others: frozenset[str]) -> Scoped:
        """Extend `scope` by symbols for indices inside macro tiles, except dimensions `others`."""
        key = (id(scope), others)
        if key not in self._in_tile:
            dims = free_indices(self.graph.coordinates, scope.known, others)
            self._in_tile[key] = (scope, scope.hardware(d.id for d in dims))
        return self._in_tile[key][1]

    def work(self, kind: type[Operation]) -> Iterator[Work]:
        """All `Work` steps whose operation is an instance of `kind`, in program order."""
        for step in self._every():
            if isinstance(step, Work) and isinstance(step.node.op, kind):
                yield step

    def bounds(self) -> Iterator[Basic]:
        """The expressions of all loop bounds, conditions and assigned values, in program order."""
        for step in self._every():
            match step:
                case Loop():
                    yield from step.bounds.roots
                case Branch():
                    yield from step.condition.roots
                case Let():
                    yield from step.value.roots
                case Work():
                    pass

    def _every(self) -> Iterator[Step]:
        stack: list[Step] = list(reversed(self.steps))
        while stack:
            yield (step := stack.pop())
            stack += reversed(step.orelse) if isinstance(step, Branch) else ()
            stack += reversed(step.body) if not isinstance(step, Work) else ()

    def _compile(self, nodes: tuple[Node, ...]) -> tuple[Step, ...]:
        return tuple(step for node in nodes for step in self._step(node))

    def _step(self, node: Node) -> Iterator[Step]:
        match node.op:
            case Scope() | Begin():  # `Begin` marks an activity of a timeline and has no body
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
                if names := " and ".join(name for name in (a, b) if name not in self._loads):
                    raise EvaluationError(f"no LoadTile loads {names}; add one for each")
                yield Work(self, node, (*self._loads[a].tile, *self._loads[b].tile))
            case op if isinstance(op, WORK):
                yield Work(self, node)
            case op:
                raise EvaluationError(
                    f"the interpreter cannot execute the operation {op.kind}; interpret the "
                    "scheduled graph before it is lowered"
                )

    def _let(self, dims: tuple[str, ...], values: tuple[Expr, ...], node: Node) -> tuple[Step, ...]:
        """Nested `Let` steps that set dimensions `dims` to `values`, around the body of `node`."""
        named = [
            (self.slots.add(self.graph.coordinates.symbol(dim)), Formula([value], self.slots))
            for dim, value in zip(dims, values, strict=True)
        ]
        reads = (Formula([read], self.slots) for read in lookups(self.graph, node))
        lets = (Let(self.slots.add(READ), read, ()) for read in reads)
        body = (*lets, *self._compile(node.body))
        for place, value in reversed(named):
            body = (Let(place, value, body),)
        return body


@lru_cache(maxsize=64)
def program(graph: KernelGraph) -> Program:
    """The program of a scheduled graph, cached; VerifyError if the graph is not scheduled."""
    return Program(graph)


class Work:
    """A step that executes one operation, with formulas for its offsets, tile numbers and slot.

    Args:
        program: the program that contains the step.
        node: the operation, and the values of dimensions where it is executed.
        factors: ids of the dimensions that are the tile numbers of A and then of B, for a
            `MultiplyAccumulate`; empty for other operations.
    """

    def __init__(self, program: Program, node: Node, factors: tuple[str, ...] = ()) -> None:
        self.program, self.node, self.factors = program, node, factors
        self._elements: dict[str, Elements] = {}
        self._offsets: dict[str, Formula] = {}
        self._workspaces: dict[Role, User] = {}
        self._solutions: dict[str, Solution] = {}

    def elements(self, user: User) -> Elements:
        """Offsets and mask of the elements of tensor `user` that this operation reads or writes."""
        if user.id not in self._elements:
            graph = self.program.graph.coordinates
            axes = indices_below(graph, user, self.node.scope.known, self._others)
            found = self.solution(user)
            self._elements[user.id] = Elements(
                found.values[0],
                found.guard,
                [graph.symbol(axis) for axis in axes],
                [axis.fixed_size for axis in axes],
                self.program.slots,
            )
        return self._elements[user.id]

    def solution(self, user: User) -> Solution:
        """Expressions for the offset of an element in the tensor `user`, and for its guard."""
        if user.id not in self._solutions:
            self._solutions[user.id] = self.scope.reverse(user.id)
        return self._solutions[user.id]

    @cached_property
    def slot(self) -> Formula:
        """Formula for the number of the workspace slot that this operation writes or reads."""
        return Formula(self._place("slot").values, self.program.slots)

    @cached_property
    def senders(self) -> Formula:
        """Formula for a tuple: the `turn` of a slot's first sender, and the number of senders."""
        first, count = self._place("turn").values[0], getattr(self.node.op, "senders", Integer(1))
        return Formula([first, self.scope.resolve(count)], self.program.slots)

    @cached_property
    def raised(self) -> Formula:
        """Formula for the value of the workspace slot's flag after the partial sum was sent."""
        if "turn" in self.node.op.bindings:
            return Formula([self._place("turn").values[0] + 1], self.program.slots)
        readers = getattr(self.node.op, "readers", Integer(1))
        return Formula([self.scope.resolve(readers)], self.program.slots)

    def workspace(self, role: Role) -> User:
        """The tensor with role `role` that holds this operation's workspace slot or its flag."""
        if role not in self._workspaces:
            self._workspaces[role] = self._find_workspace(role)
        return self._workspaces[role]

    def _find_workspace(self, role: Role) -> User:
        graph = self.program.graph
        (slot,) = self.node.op.bindings["slot"]
        for user in graph.coordinates.of_kind(User):
            if graph.tensor(user.tensor).role is role and slot in graph.coordinates.below(user):
                return user
        raise EvaluationError(f"slot '{slot}' has no tensor of {role.value}; connect one by edges")

    def offset(self, user: User) -> Formula:
        """Formula for the index of the workspace slot's flag in the tensor of flags `user`."""
        if user.id not in self._offsets:
            self._offsets[user.id] = Formula(self.solution(user).values, self.program.slots)
        return self._offsets[user.id]

    @cached_property
    def tile(self) -> Formula:
        """Formula for a tuple: the tile numbers of the operation, then 0 for padding, else 1."""
        found = self._place("tile")
        return Formula([*found.values, found.guard], self.program.slots)

    @cached_property
    def output(self) -> Formula:
        """Formula for the tile numbers, such as (m, n), of the output tile that is computed."""
        names = next(self.program.work(StoreTile)).node.op.bindings["tile"]
        return Formula(self.scope.reverse(*names).values, self.program.slots)

    @cached_property
    def share(self) -> Formula:
        """Formula for (number of the tile's share, number of shares); (0, 1) if it is undivided."""
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
        """The operation's scope, in which symbols stand for the indices inside its macro tiles."""
        return self.program.in_tile(self.node.scope, self._others)

    def _place(self, role: str) -> Solution:
        return self.scope.reverse(*self.node.op.bindings[role])


class Loop:
    """A step that executes the loop `for (index = start; index < stop; index += step)`.

    `start` and `stop` are evaluated once at entry, `step` after every iteration.
    """

    def __init__(self, program: Program, node: Node, body: tuple[Step, ...]) -> None:
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

        An iteration must advance k by one tile and leave m and n unchanged. The guard must be
        linear in the loop's index, so that it holds in all iterations if it holds in the first and
        the last one.
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


LOADING = (LoadTile, MultiplyAccumulate)


@dataclass(frozen=True, eq=False)
class Branch:
    """A step that executes `body` if `condition` holds, else `orelse`."""

    condition: Formula
    body: tuple[Step, ...]
    orelse: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Let:
    """A step that stores `value` at position `place` of the environment, then runs `body`.

    `body` is empty for an `Assign` operation, whose value is read by the steps that follow it.
    """

    place: int
    value: Formula
    body: tuple[Step, ...]


Step = Work | Loop | Branch | Let


def _size(dimension: Dimension) -> Expr:
    if dimension.size is None:
        raise EvaluationError(f"the dimension '{dimension.id}' has no size; give it one")
    return dimension.size
