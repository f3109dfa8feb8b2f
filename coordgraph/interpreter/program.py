"""Programs: a scheduled graph as a tree of steps, whose expressions are Python functions.

The steps come from `coordgraph.control.resolve`, as in code generation, so the interpreter and
generated kernels compute the same indices. An expression is compiled when it is first evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from coordgraph.control.tickets import DynamicFor, TakeTicket, following
from coordgraph.control.timeline import Begin
from coordgraph.errors import EvaluationError
from coordgraph.integers import ceil_div
from coordgraph.interpreter.formulas import Environment, Formula, Slots
from coordgraph.interpreter.indices import free_indices, size_of
from coordgraph.interpreter.lookups import READ, lookups
from coordgraph.interpreter.steps import Branch, DynamicLoop, Let, Loop, Step, Work
from coordgraph.kernel import KernelGraph
from coordgraph.products import product_order, ragged_axes

__all__ = ["Program", "program"]

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
    TakeTicket,
)


class Program:
    """The steps that every workgroup of a scheduled graph executes."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self.slots = Slots()
        self.workgroup = self.slots.add(graph.workgroup.symbol)
        known = (*graph.parameters.items, *graph.parameters.tables)
        self.parameters = {p.name: self.slots.add(p.symbol) for p in known}
        self.grid = Formula([size_of(graph.workgroup)], self.slots)
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

        In a batch, the number of products comes first. If macro tiles have several shapes,
        the numbers count unit tiles: a unit tile is the largest tile that divides every shape.
        """
        coordinates = self.graph.coordinates
        for work in self.work(MultiplyAccumulate):
            *batch, m, k = work.factors[: len(work.factors) // 2]
            axes = zip((m, work.factors[-1], k), ragged_axes(self.graph), strict=True)
            counted = (edge.upstream[0] if edge else number for number, edge in axes)
            sizes = [size_of(coordinates[d]) for d in (*batch, *counted)]
            for axis, (span, tensor) in enumerate(zip(work.span, "AB", strict=True)):
                if span > 1:
                    (edge,) = coordinates.edges_above(work.tiling.index(tensor, axis))
                    extent = size_of(coordinates[edge.upstream[0]])
                    sizes[axis - 3] = ceil_div(extent, Integer(self.graph.tilings.unit[axis]))
            return Formula(sizes, self.slots)
        raise EvaluationError("the graph has no MultiplyAccumulate; start from Gemm.graph()")

    def shapes(self, values: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
        """For each product, its numbers of macro tiles in m, n and k; () if sizes are equal."""
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
        """`scope` with symbols for the indices inside macro tiles, without dimensions `others`."""
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
                case Loop() | DynamicLoop():
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
            case For() | DynamicFor():
                yield self._loop(node)
            case If() | Inside():
                assert node.condition is not None
                yes, no = self._compile(node.body), self._compile(node.orelse)
                yield Branch(Formula([node.condition], self.slots), yes, no)
            case Assign(symbol=symbol):
                assert node.value is not None
                value = Formula([node.value], self.slots)
                yield Let(self.slots.add(symbol), value, ())
            case SetCoordinate(dim=dim):
                bound = () if node.value is None else ((dim, node.value),)
                yield from self._let(bound, node)
            case Locate():
                yield from self._let([*zip(node.op.dims, node.values, strict=True)], node)
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

    def _loop(self, node: Node) -> Step:
        assert node.loop is not None
        self.slots.add(node.loop.symbol)
        if isinstance(node.op, DynamicFor):
            self.slots.add(following(node.op.dim))
            return DynamicLoop(self, node, self._compile(node.body))
        return Loop(self, node, self._compile(node.body))

    def _let(self, bound: Sequence[tuple[str, Expr]], node: Node) -> tuple[Step, ...]:
        """Nested `Let` steps around the body of `node`; `bound` has (dimension, value) pairs."""
        named = [
            (self.slots.add(self.graph.coordinates.symbol(dim)), Formula([value], self.slots))
            for dim, value in bound
        ]
        reads = (Formula([read], self.slots) for read in lookups(self.graph, node))
        lets = (Let(self.slots.add(READ), read, ()) for read in reads)
        body = (*lets, *self._compile(node.body))
        for place, value in reversed(named):
            body = (Let(place, value, body),)
        return body


@lru_cache(maxsize=4)
def program(graph: KernelGraph) -> Program:
    """The program of a scheduled graph, cached; VerifyError if the graph is not scheduled."""
    return Program(graph)
