"""Proofs for all sizes that no index leaves its tensor, the workspace or its table.

The proof of an access follows the edges from the index to the tensor. An edge whose size rule holds
maps indices inside its downstream dimensions to indices inside its upstream dimensions, wherever
the edge's guard (its condition that an index is not padding) is true. The tests check this law for
every class of edge. So it is enough to prove that the indices which loops, assignments and the
hardware give are inside their dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import cast

from sympy import Expr, Symbol
from sympy.core.basic import Basic
from sympy.logic.boolalg import And, Boolean, true

from coordgraph.control.operations import (
    AccumulatePartial,
    AddPartial,
    AwaitPartial,
    CollectPartial,
    Epilogue,
    LoadTile,
    Locate,
    Operation,
    ReceivePartial,
    SendPartial,
    StoreTile,
)
from coordgraph.control.resolve import Node
from coordgraph.control.scope import Scoped
from coordgraph.control.tickets import TakeTicket
from coordgraph.coordinates.dimensions import User
from coordgraph.coordinates.edges import Concatenate, Diagonal, Edge, Ragged
from coordgraph.coordinates.rules import proves
from coordgraph.errors import CoordGraphError
from coordgraph.integers import Load, Ranges, Search, Select, less, nodes_of, simplify
from coordgraph.interpreter.lookups import lookups
from coordgraph.interpreter.program import Program
from coordgraph.interpreter.steps import Work
from coordgraph.kernel import KernelGraph
from coordgraph.tables import Table
from coordgraph.tensors import Role
from coordgraph.verification.symbolic_bounds import Effort, SymbolicBounds

__all__ = ["IndexProofs", "accesses"]


class IndexProofs:
    """Proves for all sizes that the indices of a scheduled graph are inside their dimensions.

    Args:
        graph: a scheduled graph.
        program: the graph as the interpreter executes it.
        questions: the largest number of inequalities that all proofs together ask `Ranges` to
            prove; accesses that have no proof when this number is reached count as unproved.
    """

    def __init__(self, graph: KernelGraph, program: Program, questions: int) -> None:
        self.graph, self.program = graph, program
        self._sizes = graph.parameters.ranges(definitions=True)
        self._rules: dict[Edge, bool] = {}
        self._bounds: dict[int, SymbolicBounds] = {}
        self._effort = Effort(questions)
        # holds the objects whose ids are keys of `_bounds`, because ids are unique among live
        # objects only
        self._kept: list[Ranges | Scoped] = []

    def bounds(self, ranges: Ranges) -> SymbolicBounds:
        """The `SymbolicBounds` (a prover of inequalities) for `ranges`; made once per object."""
        if id(ranges) not in self._bounds:
            self._kept.append(ranges)
            self._bounds[id(ranges)] = SymbolicBounds(
                ranges, self._definitions, self._found, self._effort
            )
        return self._bounds[id(ranges)]

    @cached_property
    def _definitions(self) -> dict[Symbol, Expr]:
        return {p.symbol: p.value for p in self.graph.parameters.items if p.value is not None}

    @cached_property
    def _found(self) -> dict[Symbol, tuple[Expr, ...]]:
        """For each symbol that holds the result of a binary search in a table: its upper bounds."""
        ends: dict[Symbol, set[Expr]] = {}
        for root in self.program.nodes:
            for node in root.walk():
                if isinstance(node.op, Locate):
                    for dim, value in zip(node.op.dims, node.values, strict=True):
                        symbol = self.graph.coordinates.symbol(dim)
                        count = value.args[1] if isinstance(value, Search) else None
                        known = ends.setdefault(symbol, set())
                        known.add(cast(Expr, count) - 1 if count is not None else symbol)
        return {s: tuple(e) for s, e in ends.items() if len(e) == 1 and s not in e}

    def accesses(self) -> Iterator[tuple[str, bool]]:
        """Yield (text of an access to a tensor, whether its index is proved inside the tensor)."""
        found = [(w, user) for w in self.program.work(Operation) for user in accesses(w)]
        # Prove accesses to the workspace last, because their proofs use up most of the budget of
        # inequalities.
        workspace = (Role.PARTIALS, Role.SUMS, Role.FLAGS, Role.COUNTERS)
        for work, user in sorted(
            found, key=lambda pair: self.graph.tensor(pair[1].tensor).role in workspace
        ):
            yield f"{work.node.op.kind} of {user.tensor}", self._access(work, user)

    def without_index(self) -> Iterator[str]:
        """Yield an error for each access whose index no path of the coordinate graph computes."""
        for work in self.program.work(Operation):
            for user in accesses(work):
                try:
                    work.solution(user)
                except CoordGraphError as error:
                    yield f"{work.node.op.kind} of {user.tensor} has no index: {error}"

    def reads(self) -> Iterator[tuple[str, bool]]:
        """Yield (text of a read of a table, whether its index is proved inside the table)."""
        tables = {table.symbol: table for table in self.graph.parameters.tables}
        seen: set[tuple[int, Basic]] = set()
        for node, value in self._values():
            ranges = node.scope.ranges
            for read in nodes_of(value, Load):
                key = id(ranges.about(read)), read
                if key not in seen:
                    seen.add(key)
                    yield f"read of {read}", self._read(read, node.scope, tables, value)
        for table in tables.values():
            if table.step is not None:
                known = self._sizes.with_index(table.place, table.steps)
                for read in nodes_of(table.step, Load):
                    found, place = _table_of(read, tables)
                    inside = found is not None and self._between(place, found.length, known)
                    yield f"read of {read} for {table.name}", inside

    def _values(self) -> Iterator[tuple[Node, Basic]]:
        """Yield (node, expression) for each expression that an operation of the graph evaluates."""
        for root in self.program.nodes:
            for node in root.walk():
                if node.loop is not None:
                    yield from ((node, e) for e in (node.loop.start, node.loop.stop))
                    inside = node.body[0] if node.body else node
                    yield inside, node.loop.step
                values = (node.condition, node.value, *node.values)
                yield from ((node, value) for value in values if value is not None)
                yield from ((node.body[0], read) for read in lookups(self.graph, node))

    def _read(
        self, read: Load, scope: Scoped, tables: Mapping[Symbol, Table], value: Basic
    ) -> bool:
        found, place = _table_of(read, tables)
        if found is None or value.has(Select):
            return False
        return self._between(scope.expand(place), found.length, scope.ranges)

    def _access(self, work: Work, user: User) -> bool:
        """Whether the indices of an access to a tensor are proved to be inside the tensor."""
        scope = work.scope
        try:
            found = work.solution(user)
        except CoordGraphError:
            return False
        above = {name: edge for edge in found.path for name in edge.upstream}
        guard = found.guard
        parts = guard.args if isinstance(guard, And) else () if guard == true else (guard,)
        values = {**scope.known, **found.indices}
        walk = _Path(self, scope, values, above, cast(tuple[Boolean, ...], parts))
        return walk.inside(user.id)

    def keeps_inside(self, edge: Edge) -> bool:
        """Whether the law of index bounds is proved for an edge.

        The law: indices inside the edge's downstream dimensions are mapped to indices inside its
        upstream dimensions, unless they are padding.
        """
        if edge not in self._rules:
            sizes = self.graph.coordinates.sizes(edge)
            proved = all(proves(rule, self._sizes) for rule in edge.size_rule(sizes))
            self._rules[edge] = proved and self._tables_fit(edge)
        return self._rules[edge]

    def _tables_fit(self, edge: Edge) -> bool:
        """Whether the groups or blocks of an edge are proved to lie in its upstream dimension.

        A `Ragged` or `Diagonal` edge reads the bounds of its groups or blocks from a table. Other
        edges have no groups or blocks; for these the result is True.
        """
        coordinates = self.graph.coordinates
        tables = {table.name: table for table in self.graph.parameters.tables}
        if isinstance(edge, Ragged):
            table, whole = tables.get(edge.table), coordinates.size(edge.upstream[0])
            return (
                table is not None
                and whole is not None
                and self._sizes.prove_nonnegative(whole - table.maximum)
            )
        if isinstance(edge, Diagonal):
            table, whole = tables.get(edge.table), coordinates.size(edge.upstream[0])
            if table is None or table.step is None or whole is None or not table.rises:
                return False
            # Each diagonal block must end before the next block begins.
            wanted = edge.extent(edge.rows, table.place) * edge.pitch(table.place)
            fits = simplify((wanted - table.step).expand(), self._sizes) == 0
            return fits and self._sizes.prove_nonnegative(whole - table.maximum)
        return True

    def size(self, dim: str) -> Expr | None:
        """The size of a dimension as an expression; None if the dimension has no size."""
        return self.graph.coordinates.size(dim)

    def _between(self, index: Expr, size: Expr, ranges: Ranges) -> bool:
        bounds = self.bounds(ranges)
        return bounds.at_least_zero(index) and bounds.less(index, size)


class _Path:
    """The edges of one access to a tensor, from the tensor to the indices of loops and hardware.

    Args:
        proofs: proves that indices of the graph are inside their dimensions.
        scope: the indices and ranges of symbols that are known where the accessing operation runs.
        values: the index along each dimension of the path.
        above: for each dimension, the edge that computes the index along the dimension.
        guards: the conditions under which the access happens (its index is not padding).
    """

    def __init__(
        self,
        proofs: IndexProofs,
        scope: Scoped,
        values: dict[str, Expr],
        above: dict[str, Edge],
        guards: tuple[Boolean, ...],
    ) -> None:
        self.proofs, self.scope, self.values = proofs, scope, values
        self.above, self.guards = above, guards
        self._known: dict[str, bool] = {}

    def inside(self, dim: str) -> bool:
        """Whether the index along `dim` is proved to be inside the dimension if all guards hold."""
        if dim not in self._known:
            # False while the proof runs, so that a cyclic path is not proved
            self._known[dim] = False
            # an index is not proved to be inside a dimension whose size is unknown
            if self.proofs.size(dim) is not None:
                self._known[dim] = self._by_edge(dim) or self._directly(dim)
        return self._known[dim]

    def _by_edge(self, dim: str) -> bool:
        edge = self.above.get(dim)
        if edge is None or not self.proofs.keeps_inside(edge):
            return False
        # the edge's guard (its condition for indices that are not padding) implies that the index
        # is below the end of its group
        if isinstance(edge, Ragged):
            segment, index = edge.downstream
            return self.inside(segment) and self._natural(index)
        # for an index after the last group, the edge still gives a valid group number
        if isinstance(edge, Concatenate):
            return dim == edge.upstream[0]
        # the edge's guard implies that row and column are inside the diagonal block
        if isinstance(edge, Diagonal):
            return self.inside(edge.downstream[0])
        return all(self.inside(below) for below in edge.downstream if below in self.values)

    def _natural(self, dim: str) -> bool:
        index = self.scope.expand(self.values[dim])
        return self.proofs.bounds(self.scope.ranges).at_least_zero(index)

    def _directly(self, dim: str) -> bool:
        index, size = self.values.get(dim), self.proofs.size(dim)
        if index is None or size is None:
            return False
        value, size = self.scope.expand(index), self.scope.expand(size)
        bounds = self.proofs.bounds(self.scope.ranges)
        if not bounds.at_least_zero(value):
            return False
        if less(index, size) in self.guards or bounds.less(value, size):
            return True
        if not self.guards:
            return False
        ranges = self.scope.ranges
        for guard in self.guards:
            ranges = ranges.with_guard(self.scope.expand(guard))
        return self.proofs.bounds(ranges).less(value, size)


def accesses(work: Work) -> tuple[User, ...]:
    """The accesses of an operation: a `User` dimension for each tensor that it reads or writes.

    The tensors of the workspace (partial sums and flags) are included.
    """
    match op := work.node.op:
        case LoadTile() | StoreTile():
            return _users(work, op.tensor)
        case Epilogue():
            gemm = work.program.graph.gemm
            # An operand of a single element, which is not one of several products, has no index.
            indexed = (t for t in op.operands if gemm.axes[t] or gemm.is_apart(t))
            return tuple(u for t in (*indexed, *op.stores) for u in _users(work, t))
        case TakeTicket():
            roles = (Role.COUNTERS,)
        case AwaitPartial():
            roles = (Role.FLAGS,)
        case AddPartial():
            roles = (Role.PARTIALS,)
        case SendPartial() | ReceivePartial():
            roles = (Role.PARTIALS, Role.FLAGS)
        case AccumulatePartial() | CollectPartial():
            roles = (Role.SUMS, Role.FLAGS)
        case _:
            return ()
    return tuple(work.workspace(role) for role in roles)


def _users(work: Work, tensor: str) -> tuple[User, ...]:
    return tuple(work.program.graph.coordinates.of_kind(User, tensor=tensor))


def _table_of(read: Basic, tables: Mapping[Symbol, Table]) -> tuple[Table | None, Expr]:
    symbol, place = cast(tuple[Symbol, Expr], read.args)
    return tables.get(symbol), place
