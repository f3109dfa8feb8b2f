"""Emits the computation of derived tables, and of parameters that are read from tables.

A kernel computes derived tables in shared memory, from tables in global memory. One warp computes
one table: prefix sums, or a sort.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from sympy import Expr

from codegen.targets.nvptx.sm_80.instructions import I32, I64
from codegen.targets.nvptx.sm_80.row_reductions import RowReductionWalker
from coordgraph.control import lowered as ops
from coordgraph.control.resolve import Node
from coordgraph.coordinates.dimensions import Workitem
from coordgraph.integers import symbols_of, tables_in
from coordgraph.tables import SORTS, Table

__all__ = ["TableWalker"]

WARP = 32
"""Number of lanes of a warp. Each lane computes one entry of a table at a time."""


class TableWalker(RowReductionWalker):
    """Emits the operations on tables, in which a warp computes 32 entries at a time."""

    given: dict[str, Any]
    """The kernel's arguments, by name."""
    shared: Any
    """The kernel's dynamic shared memory."""

    def _entry(self, table: str, place: ir.Value) -> ir.Value:
        """Emit a load of entry number `place` (64 bits) of `table`."""
        return self.builder.load(self._entry_address(table, place), typ=I32, align=4)

    def _entry_address(self, table: str, place: ir.Value) -> ir.Value:
        """The address of an entry of `table`: in shared memory if the kernel computes the table."""
        b, shared = self.builder, f"{table}.shared"
        if shared not in self.offsets:
            return b.gep(self.given[table], [place], source_etype=I32)
        first = ir.Constant(I32, self.offsets[shared])
        whole = b.gep(self.shared, [first], source_etype=ir.IntType(8))
        return b.gep(whole, [b.trunc(place, I32)], source_etype=I32)

    def emit_Tabulate(self, node: Node, op: ops.Tabulate) -> None:
        (table,) = (t for t in self.graph.parameters.tables if t.name == op.table)
        (workitem,) = self.graph.coordinates.of_kind(Workitem)
        b, lane = self.builder, self.values[workitem.symbol]
        if op.first:
            lane = b.sub(lane, ir.Constant(I32, op.first))
        count = self.number(table.steps, node)
        count = self.expressions.widen(count, 32, table.steps, node.scope.ranges)
        work = self._sort if table.rule == SORTS else self._add_up
        with b.if_then(b.icmp_unsigned("<", lane, ir.Constant(I32, WARP))), self._branch():
            work(table, node, lane, count)

    def _add_up(self, table: Table, node: Node, lane: ir.Value, count: ir.Value) -> None:
        """Emit the computation of a table of prefix sums.

        Entry 0 is 0, and entry i + 1 is entry i plus the value of the expression `table.step` at i.

        Args:
            table: the table.
            node: the operation, which gives the ranges of parameters.
            lane: the lane of the warp, 0 to 31.
            count: how many values are added up, 32-bit.
        """
        b, zero = self.builder, ir.Constant(I32, 0)
        self._put(table, zero, zero)

        def add(first: ir.Value, carried: ir.Value) -> ir.Value:
            place = b.add(first, lane)
            total = self.ptx.prefix_sum(self._step(table, node, place, count, zero), lane)
            through = b.add(carried, total)
            with b.if_then(b.icmp_unsigned("<", place, count)):
                self._put(table, b.add(place, ir.Constant(I32, 1)), through)
            return self.ptx.of_lane(through, WARP - 1)

        self._each_chunk("steps", count, zero, add)

    def _sort(self, table: Table, node: Node, lane: ir.Value, count: ir.Value) -> None:
        """Emit the computation of a table that lists indices by descending value of `table.step`.

        Each lane has one index, and counts the indices that precede it in that order; the count is
        the position of the lane's index in the table.

        Args:
            table: the table.
            node: the operation, which gives the ranges of parameters.
            lane: the lane of the warp, 0 to 31.
            count: how many indices are sorted, 32-bit.
        """
        b, zero, none = self.builder, ir.Constant(I32, 0), ir.Constant(I32, -1)

        def place(first: ir.Value, before: ir.Value) -> ir.Value:
            own = b.add(first, lane)
            mine = self._step(table, node, own, count, none)

            def compare(other: ir.Value, before: ir.Value) -> ir.Value:
                theirs = self._step(table, node, b.add(other, lane), count, none)
                # A lane past the last index has the value -1, which is less than all others.
                for number in range(WARP):
                    one = self.ptx.of_lane(theirs, number)
                    earlier = b.icmp_unsigned("<", b.add(other, ir.Constant(I32, number)), own)
                    equal = b.and_(b.icmp_signed("==", one, mine), earlier)
                    first_ = b.or_(b.icmp_signed(">", one, mine), equal)
                    before = b.add(before, b.zext(first_, I32))
                return before

            before = self._each_chunk("compared", count, zero, compare)
            with b.if_then(b.icmp_unsigned("<", own, count)):
                self._put(table, before, own)
            return zero

        self._each_chunk("places", count, zero, place)

    def _put(self, table: Table, place: ir.Value, entry: ir.Value) -> None:
        """Emit a store of `entry` at the 32-bit index `place` of `table`, in shared memory."""
        at = self._entry_address(table.name, self.builder.zext(place, I64))
        self.builder.store(entry, at, align=4)

    def _step(
        self, table: Table, node: Node, place: ir.Value, count: ir.Value, missing: ir.Value
    ) -> ir.Value:
        """Emit the value of the expression `table.step` at the 32-bit index `place`.

        The value is `missing` if `place` is not less than `count`.
        """
        assert table.step is not None
        b = self.builder
        exists = b.icmp_unsigned("<", place, count)
        self.values[table.place] = b.select(exists, place, ir.Constant(I32, 0))
        inside = node.scope.ranges.with_index(table.place, table.steps)
        step = self.expressions.number(table.step, inside)
        return b.select(exists, self.expressions.widen(step, 32, table.step, inside), missing)

    def _each_chunk(
        self,
        name: str,
        count: ir.Value,
        start: ir.Value,
        body: Callable[[ir.Value, ir.Value], ir.Value],
    ) -> ir.Value:
        """Emit a loop over chunks of 32 indices, which passes a value to its next iteration.

        Args:
            name: the name of the loop's basic blocks.
            count: how many indices there are, 32-bit.
            start: the value that is passed to the first iteration.
            body: emits an iteration, given the first index of the chunk and the passed value;
                returns the value for the next iteration.

        Returns:
            The value that the last iteration passes on.
        """
        b = self.builder
        before = b.block
        head, done = b.append_basic_block(name), b.append_basic_block(f"{name}.done")
        b.branch(head)
        b.position_at_end(head)
        first, carried = b.phi(I32, "first"), b.phi(I32, "carried")
        first.add_incoming(ir.Constant(I32, 0), before)
        carried.add_incoming(start, before)
        found = body(first, carried)
        following = b.add(first, ir.Constant(I32, WARP))
        first.add_incoming(following, b.block)
        carried.add_incoming(found, b.block)
        b.cbranch(b.icmp_unsigned("<", following, count), head, done)
        b.position_at_end(done)
        return found

    def emit_DeriveParameters(self, node: Node, op: ops.DeriveParameters) -> None:
        parameters, ranges = self.graph.parameters, node.scope.ranges
        for p in parameters.items:
            if p.name in parameters.deferred and p.value is not None:
                if not self._known(p.value):
                    continue  # nothing reads this parameter, so its tables are not computed
                bits = 32 if self.bounds.fits(p.symbol, ranges) else 64
                value = self.expressions.number(p.value, ranges)
                self.values[p.symbol] = self.expressions.widen(value, bits, p.value, ranges)

    def _known(self, value: Expr) -> bool:
        """Whether all tables and symbols that an expression reads have values in this kernel."""
        tables = {t.symbol: t.name for t in self.graph.parameters.tables}
        return all(
            f"{tables[symbol]}.shared" in self.offsets or tables[symbol] in self.given
            if symbol in tables
            else symbol in self.values
            for symbol in symbols_of(value) | tables_in(value)
        )
