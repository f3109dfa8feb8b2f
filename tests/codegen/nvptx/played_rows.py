"""Simulated reductions of rows: which elements of D each result of a lowered kernel includes."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from sympy import Integer, Symbol

from coordgraph import KernelGraph
from coordgraph.control import row_reductions as ops
from coordgraph.control.asynchronous import Advance, Counter
from coordgraph.control.lowered import ApplyFragment
from coordgraph.control.operations import Assign, For, If, Inside, Locate, SetCoordinate
from coordgraph.control.resolve import Node, resolve
from coordgraph.coordinates.dimensions import Cluster, WarpNumber, Workitem
from coordgraph.gemm import OFFSETS
from coordgraph.integers import evaluate, index_symbol
from coordgraph.verification.memory_order.compiled_values import Formulas

__all__ = ["PlayedRows"]

Array = npt.NDArray[Any]
OURS = (
    ops.StartRows,
    ops.ReduceLanes,
    ops.CombineRows,
    ops.StoreRows,
    ApplyFragment,
    Advance,
)
"""The operations that `PlayedRows` simulates, besides loops, branches and coordinates."""


class PlayedRows:
    """Executes the reductions of rows of a lowered graph, for all threads of all workgroups.

    Instead of a value, a reduction has a number for each element of a row of D: how often the
    reduction includes that element.

    Args:
        graph: the graph, which a GPU lowering returned.
        sizes: values of the size parameters, and of `workgroups` if the graph has it.
        offsets: for groups along m, the row at which each group starts, then the row at which the
            last group ends.
    """

    def __init__(
        self, graph: KernelGraph, sizes: Mapping[str, int], offsets: Sequence[int] | None = None
    ) -> None:
        self.graph, self.columns = graph, sizes["n"]
        given = {p.name for p in graph.parameters.given}
        known = {**sizes, "read_c": 0}
        tables = {} if offsets is None else {OFFSETS: offsets}
        values = graph.parameters.launch({k: v for k, v in known.items() if k in given}, tables)
        named = (*graph.parameters.items, *graph.parameters.tables)
        self.parameters: dict[Symbol, Any] = {p.symbol: values[p.name] for p in named}
        for table in graph.parameters.tables:
            self.parameters[table.symbol] = np.asarray(values[table.name])
        (workitem,) = graph.coordinates.of_kind(Workitem)
        self.threads = workitem.fixed_size
        self.formulas = Formulas()
        self.rows: dict[tuple[str, int], tuple[int, Array]] = {}
        """For each written element of an output that reduces rows, by (name of the output, offset
        of the element in it): the row of D that the element reduces, and how often the element
        includes each column of that row."""
        size = graph.coordinates[graph.workgroup.id].size
        assert size is not None
        ranks = [dim.fixed_size for dim in graph.coordinates.of_kind(Cluster)]
        nodes = resolve(graph.control.root.body, graph.scope())
        self.relevant: dict[int, bool] = {}
        for workgroup, rank in product(
            range(int(evaluate(size, self.parameters))), range(ranks[0] if ranks else 1)
        ):
            self._begin(workgroup, rank)
            self._run(nodes, np.ones(self.threads, bool))

    def _begin(self, workgroup: int, rank: int) -> None:
        every = np.arange(self.threads)
        self.env: dict[Symbol, Any] = {
            **self.parameters,
            index_symbol(self.graph.workgroup.id): workgroup,
            index_symbol("workitem"): every,
            **{dim.symbol: rank for dim in self.graph.coordinates.of_kind(Cluster)},
            **{dim.symbol: every // 32 for dim in self.graph.coordinates.of_kind(WarpNumber)},
        }
        self.fragments: dict[tuple[str, int], tuple[Array, Array]] = {}
        self.memory: dict[tuple[str, int], tuple[int, Array]] = {}

    def _value(self, expr: Any) -> Array:
        """The values of an expression for all threads."""
        return np.broadcast_to(self.formulas.value(expr, self.env), (self.threads,))

    def _is_relevant(self, node: Node) -> bool:
        if id(node) not in self.relevant:
            self.relevant[id(node)] = isinstance(node.op, OURS) or any(
                self._is_relevant(inner) for inner in (*node.body, *node.orelse)
            )
        return self.relevant[id(node)]

    def _run(self, nodes: tuple[Node, ...], mask: Array) -> None:
        for node in nodes:
            if isinstance(node.op, Assign):
                self.env[node.op.symbol] = self._value(node.value)
            elif mask.any() and self._is_relevant(node):
                self._execute(node, mask)

    @contextmanager
    def _bound(self, dim: str, value: Any) -> Generator[None, None, None]:
        symbol = self.graph.coordinates.symbol(dim)
        before = self.env.get(symbol)
        self.env[symbol] = value
        yield
        self.env[symbol] = before

    def _execute(self, node: Node, mask: Array) -> None:
        match node.op:
            case For(dim=dim):
                loop = node.loop
                assert loop is not None
                index, stop = self._value(loop.start), self._value(loop.stop)
                while (inside := mask & (index < stop)).any():
                    self.env[loop.symbol] = int(index[0]) if node.op.unroll else index
                    step = self._value(loop.step)
                    self._run(node.body, inside)
                    index = index + step
            case If() | Inside():
                condition = self._value(node.condition).astype(bool)
                self._run(node.body, mask & condition)
                self._run(node.orelse, mask & ~condition)
            case SetCoordinate(dim=dim):
                if node.value is None:
                    self._run(node.body, mask)
                    return
                with self._bound(dim, self._value(node.value)):
                    self._run(node.body, mask)
            case Locate(dims=dims):
                for dim, value in zip(dims, node.values, strict=True):
                    self.env[self.graph.coordinates.symbol(dim)] = self._value(value)
                self._run(node.body, mask)
            case Counter(dim=dim):
                with self._bound(dim, np.zeros(self.threads, int)):
                    self._run(node.body, mask)
            case Advance(dim=dim, by=by):
                symbol = self.graph.coordinates.symbol(dim)
                more = self.env[symbol] + self._value(node.scope.resolve(by))
                self.env[symbol] = np.where(mask, more, self.env[symbol])
            case _:
                handler = getattr(self, f"do_{node.op.kind}", None)
                if handler is None:
                    self._run(node.body, mask)
                else:
                    handler(node, node.op, mask)

    def _register(self, node: Node, name: str, dims: tuple[str, ...]) -> tuple[str, int]:
        number = 0
        for dim in dims:
            index = int(self._value(node.scope.known[dim])[0])
            number = number * self.graph.coordinates[dim].fixed_size + index
        return name, number

    def do_StartRows(self, node: Node, op: ops.StartRows, mask: Array) -> None:
        key = self._register(node, op.fragment, op.registers)
        rows, sets = np.full(self.threads, -1), np.zeros((self.threads, self.columns), int)
        if key in self.fragments:
            before = self.fragments[key]
            rows, sets = np.where(mask, rows, before[0]), np.where(mask[:, None], sets, before[1])
        self.fragments[key] = rows, sets

    def do_ApplyFragment(self, node: Node, op: ApplyFragment, mask: Array) -> None:
        for output, place in product(op.reduces, range(op.width)):
            scope = node.scope
            if op.width > 1:
                scope = scope.binding(op.vector, Integer(place))
            row = self._value(scope.reverse("D.0").values[0])
            column = self._value(scope.reverse("D.1").values[0])
            inside = mask & self._value(scope.reverse(op.column).guard).astype(bool)
            key = self._register(node, ops.rows_of(output), op.rows)
            self._check_rows(key, row, mask)
            threads = np.flatnonzero(inside)
            self.fragments[key][1][threads, column[threads]] += 1

    def _check_rows(self, key: tuple[str, int], row: Array, mask: Array) -> None:
        """Check that a register has elements of one row only."""
        rows, _ = self.fragments[key]
        assert ((rows == row) | (rows == -1))[mask].all(), f"{key} mixes rows"
        rows[mask] = row[mask]

    def do_ReduceLanes(self, node: Node, op: ops.ReduceLanes, mask: Array) -> None:
        assert (mask.reshape(-1, 32).all(1) == mask.reshape(-1, 32).any(1)).all()
        key = self._register(node, op.fragment, op.registers)
        for distance in op.distances:
            rows, sets = self.fragments[key]
            other = np.arange(self.threads) ^ distance
            self._check_rows(key, rows[other], mask)
            self.fragments[key] = rows, np.where(mask[:, None], sets + sets[other], sets)

    def do_StoreRows(self, node: Node, op: ops.StoreRows, mask: Array) -> None:
        place = node.place(op.destination)
        where = mask & self._value(place.guard).astype(bool)
        index = self._value(place.values[0])
        rows, sets = self.fragments[self._register(node, op.fragment, op.registers)]
        shared = op.destination not in {t.name for t in self.graph.tensors}
        memory = self.memory if shared else self.rows
        written = set[int]()
        for thread in np.flatnonzero(where):
            key = op.destination, int(index[thread])
            assert key[1] not in written
            assert shared or key not in self.rows, f"{key} is written twice"
            written.add(key[1])
            memory[key] = int(rows[thread]), sets[thread].copy()

    def do_CombineRows(self, node: Node, op: ops.CombineRows, mask: Array) -> None:
        index = self._value(node.place(op.source).values[0])
        key = self._register(node, op.fragment, op.registers)
        for thread in np.flatnonzero(mask):
            row, found = self.memory[op.source, int(index[thread])]
            rows, sets = self.fragments[key]
            assert row == rows[thread], "results of different rows are combined"
            sets[thread] += found
