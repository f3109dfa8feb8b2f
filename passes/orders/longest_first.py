"""`LongestFirst` orders groups of different k by descending number of k tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from sympy import Expr, Symbol

from coordgraph import KernelGraph
from coordgraph.control.operations import Locate, Operation
from coordgraph.coordinates.dimensions import MacroTileNumber
from coordgraph.coordinates.edges import Permute, Ragged
from coordgraph.integers import Load, index_symbol, load
from coordgraph.products import product_order, ragged_edge
from coordgraph.tables import SORTS, Table, place_of
from passes.base import Pass
from passes.kit import accumulation_loop, depth_is_data

__all__ = ["LongestFirst"]

ORDER = "order"
"""The name of the table that lists the groups in descending order of their number of k tiles."""


@dataclass(frozen=True)
class LongestFirst(Pass):
    """Visit the output tiles of groups with large k before those of groups with small k.

    If each workgroup takes the next tile as soon as it is idle, the end times of workgroups then
    differ by the time of a tile with small k instead of one with large k: the rule "longest
    processing time first" (R. L. Graham, Bounds on multiprocessing timing anomalies, SIAM J. Appl.
    Math. 17, 1969). The pass is for graphs whose groups have different k. Before: no edge computes
    `group` and the tile numbers. After (the schedule will compute `rank` instead of `group`)::

        group --Permute(order)--> rank

    The table `order` lists the groups in descending order of their number of k tiles. Output tiles
    and iterations are numbered in this order; the addresses of the groups' elements do not change.
    """

    name = "longest-first"
    establishes = ("problem",)

    def why_not(self, graph: KernelGraph) -> str | None:
        if not depth_is_data(graph):
            return (
                "all output tiles have equally many k tiles; leave this pass out, or use it on "
                "groups that have their own k"
            )
        if product_order(graph):
            return "groups are in the order of their k already; leave out this second longest-first"
        return None

    def apply(self, graph: KernelGraph) -> KernelGraph:
        parted = [e for e in graph.coordinates.edges if isinstance(e, Ragged) and _tiles(graph, e)]
        names = {edge.table for edge in parted}
        loop = ragged_edge(graph, accumulation_loop(graph).dim)
        assert loop is not None
        (deep,) = (t for t in graph.parameters.tables if t.name == loop.table)
        group = graph.coordinates[loop.downstream[0]]
        with graph.edit(str(self)) as e:
            c = e.coordinates
            rank = c.add(MacroTileNumber(c.fresh("rank"), group.size, note="products, deep first"))
            assert group.size is not None
            assert deep.step is not None
            key = cast(Expr, deep.step.xreplace({deep.place: place_of(ORDER)}))
            note = "groups, those with most k tiles first"
            order = Table(ORDER, group.size, group.size - 1, key, note, SORTS)
            e.parameters = replace(e.parameters, tables=_sorted(e.parameters.tables, order, names))
            for edge in parted:
                below = (rank.id, *edge.downstream[1:])
                c.disconnect(edge)
                c.connect(replace(edge, downstream=below))
            c.connect(Permute(group.id, rank.id, ORDER))
            to_rank = _reader(names, group.symbol, rank.symbol)
            e.control = e.control.rewrite(lambda op: _rewritten(op, to_rank, rank.id))
        return e.graph


def _tiles(graph: KernelGraph, edge: Ragged) -> bool:
    """Whether the entries of a `Ragged` edge's table count output tiles of groups, not elements."""
    return any(t.name == edge.table and t.derived for t in graph.parameters.tables)


def _sorted(tables: tuple[Table, ...], order: Table, names: set[str]) -> tuple[Table, ...]:
    """The tables of the kernel, with `order` added and some prefix sums changed.

    The prefix sums `names` then add up the groups in the order that `order` lists.

    Args:
        tables: all tables of the kernel.
        order: the table that lists the groups in descending order of their number of k tiles.
        names: names of the tables of prefix sums that count tiles of groups.
    """
    given = tuple(t for t in tables if not t.derived)
    derived = (
        replace(t, step=t.step.xreplace({t.place: load(order.symbol, t.place)}))
        if t.name in names and t.step is not None
        else t
        for t in tables
        if t.derived
    )
    return (*given, order, *derived)


def _reader(names: set[str], group: Symbol, rank: Symbol) -> Callable[[Expr], Expr]:
    """A function that rewrites reads of tables at a group's number to reads at the group's rank.

    Args:
        names: names of the tables whose reads are rewritten.
        group, rank: the symbols of a group's number and of its rank.
    """
    tables = {index_symbol(name) for name in names}

    def change(expr: Expr) -> Expr:
        entries = [cast(Expr, e) for e in expr.atoms(Load) if e.args[0] in tables]
        return cast(Expr, expr.xreplace({e: e.xreplace({group: rank}) for e in entries}))

    return change


def _rewritten(op: Operation, to_rank: Callable[[Expr], Expr], rank: str) -> Operation:
    """`op` with `to_rank` applied to every expression in its fields.

    A `Locate`, an operation that computes coordinates, also computes the coordinate `rank`.
    """
    changed: dict[str, Any] = {}
    for name, value in op.details.items():
        if isinstance(value, Expr):
            changed[name] = to_rank(value)
        elif isinstance(value, tuple):
            each: tuple[Any, ...] = value
            changed[name] = tuple(to_rank(x) if isinstance(x, Expr) else x for x in each)
    if isinstance(op, Locate):
        changed["dims"] = (rank, *op.dims)
    return replace(op, **changed)
