"""Emits reductions of rows: in a thread's registers, over lanes of a warp, and through memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llvmlite import ir
from sympy import Integer

from codegen.emit.elementwise import ElementwiseEmitter
from codegen.targets.nvptx.sm_80.epilogue_walker import EpilogueWalker
from codegen.targets.nvptx.sm_80.fragment_walker import SINGLE
from codegen.targets.nvptx.sm_80.instructions import F32
from coordgraph.control import row_reductions as ops
from coordgraph.control.lowered import ApplyFragment
from coordgraph.control.resolve import Node
from coordgraph.epilogue.operation import Algebra
from coordgraph.epilogue.reduction import RUNNING, combined

__all__ = ["RowReductionWalker"]

BYTES = 4
"""The size of the result of a row reduction in memory, in bytes: GPUs reduce rows in f32."""
MERGES = 8
"""A schedule barrier follows every MERGES merges of elements into running reductions. Without these
barriers, ptxas first computes for many elements whether their columns are inside D, and spills the
results of these comparisons."""


class RowReductionWalker(EpilogueWalker):
    """Emits the operations of `coordgraph.control.row_reductions`, which compute in f32.

    A running reduction has one or two values, which are consecutive registers of its fragment. The
    result of a row is in the first of these registers.
    """

    _merges = 0
    """Number of merges into running reductions that were emitted so far."""

    @property
    def _algebra(self) -> Algebra:
        """An object that emits arithmetic, `exp` and `log` of f32 values for reductions.

        The fast `exp` suffices: the relative error of this `exp` is at most |a| * 2^-23.5 for an
        argument a, and `logsumexp` adds exp(a), for a <= 0, to a sum of at least 1.
        """
        return Algebra("f32", ElementwiseEmitter(self.builder, gpu=True, fast=True))

    def _row(
        self, node: Node, fragment: str, dims: tuple[str, ...], reduce: str
    ) -> list[ir.AllocaInstr]:
        """The stack slots of the values of a row's running reduction."""
        width = len(RUNNING[reduce].identity)
        first = self.register(node, dims, width)
        return [self.fragments.slot(fragment, first + i, F32) for i in range(width)]

    def _result(self, node: Node, fragment: str, dims: tuple[str, ...]) -> ir.AllocaInstr:
        """The stack slot of a row's result, once `ReduceLanes` has merged the lanes' values."""
        reduces = {op.fragment: op.reduce for op in self.graph.control.of_kind(ops.ReduceLanes)}
        return self._row(node, fragment, dims, reduces[fragment])[0]

    def emit_StartRows(self, node: Node, op: ops.StartRows) -> None:
        """Emit stores of the value of a reduction over no elements, such as 0 for a sum."""
        slots = self._row(node, op.fragment, op.registers, op.reduce)
        nothing = RUNNING[op.reduce].identity
        self._store_slots(slots, (ir.Constant(F32, value) for value in nothing))

    def merge_values(
        self, node: Node, op: ApplyFragment, output: str, values: list[ir.Value]
    ) -> None:
        """Emit the reduction of adjacent elements, without padding, into the state of their row."""
        (reduce,) = (o.reduce for o in op.function.outputs if o.name == output)
        running, known = RUNNING[reduce], list[ir.Value]()
        for place, value in enumerate(values):
            scope = node.scope
            if op.width > 1:
                scope = scope.binding(op.vector, Integer(place))
            guard: Any = self.condition(scope.reverse(op.column).guard, node)
            if guard is False:
                continue
            nothing = ir.Constant(F32, running.identity[0])
            known.append(value if guard is True else self.builder.select(guard, value, nothing))
        if known:
            slots = self._row(node, ops.rows_of(output), op.rows, reduce)
            state = tuple(self._load_slots(slots))
            merged = running.absorb(self._algebra, state, known)
            # `pinned` makes LLVM compute the new state here, before D replaces the sums of these
            # elements. Otherwise LLVM copies all sums, and ptxas serializes wgmma.
            self._store_slots(slots, (self.ptx.pinned(value, SINGLE) for value in merged))
            self._merges += 1
            if self._merges % MERGES == 0:
                self.ptx.schedule_barrier()

    def _store_slots(self, slots: list[ir.AllocaInstr], values: Iterable[ir.Value]) -> None:
        """Emit code that stores each value in its stack slot. LLVM replaces slots by registers."""
        for slot, value in zip(slots, values, strict=True):
            self.builder.store(value, slot)

    def emit_ReduceLanes(self, node: Node, op: ops.ReduceLanes) -> None:
        slots = self._row(node, op.fragment, op.registers, op.reduce)
        for distance in op.distances:
            own = tuple(self._load_slots(slots))
            other = tuple(self.ptx.of_other_lane(x, distance) for x in own)
            self._store_slots(slots, RUNNING[op.reduce].merge(self._algebra, own, other))
        state = tuple(self._load_slots(slots))
        self.builder.store(RUNNING[op.reduce].finish(self._algebra, state), slots[0])

    def emit_CombineRows(self, node: Node, op: ops.CombineRows) -> None:
        slot = self._result(node, op.fragment, op.registers)
        address, _ = self._address(node, op.source)
        other = self.builder.load(address, typ=F32, align=BYTES)
        before = self.builder.load(slot, typ=F32)
        self.builder.store(combined(op.reduce, self._algebra, before, other), slot)

    def emit_StoreRows(self, node: Node, op: ops.StoreRows) -> None:
        value = self.builder.load(self._result(node, op.fragment, op.registers), typ=F32)
        address, guard = self._address(node, op.destination)
        if guard is True:
            self.builder.store(value, address, align=BYTES)
        elif guard is not False:
            with self.builder.if_then(guard):
                self.builder.store(value, address, align=BYTES)
