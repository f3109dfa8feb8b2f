"""Operations of Hopper's asynchronous units: one method for each, places from the graph."""

from __future__ import annotations

from math import prod
from typing import Any

from llvmlite import ir

from codegen.nvptx.emit import CudaWalker, map_argument
from codegen.nvptx.instructions import F32, I1, I32, I64
from codegen.nvptx.wgmma import HopperInstructions
from coordgraph.control import asynchronous as ops
from coordgraph.control.resolve import Node

__all__ = ["HopperWalker"]


class HopperWalker(CudaWalker):
    """A `CudaWalker` that also knows boxes, barriers, roles and warpgroup multiplications."""

    ptx: HopperInstructions

    def make_instructions(self) -> HopperInstructions:
        return HopperInstructions(self.builder)

    def _number_of(self, address: ir.Value) -> ir.Value:
        return self.builder.ptrtoint(address, I32)

    def _shared(self, node: Node, dim: str) -> ir.Value:
        """A place in shared memory as a 32-bit number."""
        return self._number_of(self._address(node, dim)[0])

    def emit_Counter(self, node: Node, op: ops.Counter) -> None:
        slot = self.fragments.slot(op.dim, len(self.fragments.slots), I32)
        self.builder.store(ir.Constant(I32, 0), slot)
        self.values[self.graph.coordinates.symbol(op.dim)] = slot
        self.run(node.body)

    def emit_Advance(self, node: Node, op: ops.Advance) -> None:
        symbol = self.graph.coordinates.symbol(op.dim)
        slot = self.values[symbol]
        by = self.expressions.widen(self.number(op.by, node), 32, op.by, node.scope.ranges)
        value = self.builder.add(self.builder.load(slot, typ=I32), by, flags=("nuw", "nsw"))
        self.builder.store(value, slot)

    def emit_SetRegisters(self, node: Node, op: ops.SetRegisters) -> None:
        self.ptx.set_registers(op.count, grow=op.grow)

    def emit_InitBarrier(self, node: Node, op: ops.InitBarrier) -> None:
        self.ptx.barrier_init(self._shared(node, op.barrier), op.arrivals)

    def emit_PublishBarriers(self, node: Node, op: ops.PublishBarriers) -> None:
        self.ptx.barrier_publish()

    def emit_ExpectBytes(self, node: Node, op: ops.ExpectBytes) -> None:
        self.ptx.barrier_expect(self._shared(node, op.barrier), op.bytes)

    def emit_ArriveBarrier(self, node: Node, op: ops.ArriveBarrier) -> None:
        self.ptx.barrier_arrive(self._shared(node, op.barrier))

    def emit_WaitBarrier(self, node: Node, op: ops.WaitBarrier) -> None:
        index = node.place(op.phase).values[0]
        ranges = node.scope.ranges
        parity = self.expressions.widen(self.number(index, node), 32, index, ranges)
        if op.before:
            parity = self.builder.xor(parity, ir.Constant(I32, 1))
        self.ptx.barrier_wait(self._shared(node, op.barrier), parity)

    def emit_CopyBox(self, node: Node, op: ops.CopyBox) -> None:
        at: list[ir.Value] = []
        for dim in op.source:
            index = node.place(dim).values[0]
            at.append(
                self.expressions.widen(self.number(index, node), 32, index, node.scope.ranges)
            )
        tensor_map = self.builder.ptrtoint(self.given[map_argument(op.tensor)], I64)
        target = self._shared(node, op.destination)
        self.ptx.copy_box(target, tensor_map, at, self._shared(node, op.barrier))

    # Multiplications

    def _accumulators(self, name: str) -> list[ir.AllocaInstr]:
        """The stack slots of all registers of an accumulator."""
        (first, *_) = (
            op for op in self.graph.control.of_kind(ops.MultiplyShared) if op.accumulator == name
        )
        parts = prod(self.graph.coordinates[dim].fixed_size for dim in first.registers)
        return [self.fragments.slot(name, i, F32) for i in range(parts * first.count)]

    def _replace(self, slots: list[ir.AllocaInstr], values: list[ir.Value]) -> None:
        for slot, value in zip(slots, values, strict=True):
            self.builder.store(value, slot)

    def emit_FenceMultiplies(self, node: Node, op: ops.FenceMultiplies) -> None:
        slots = self._accumulators(op.accumulator)
        self._replace(slots, self.ptx.fence_multiplies(self._load_slots(slots)))

    def emit_CommitMultiplies(self, node: Node, op: ops.CommitMultiplies) -> None:
        self.ptx.commit_multiplies()

    def emit_WaitMultiplies(self, node: Node, op: ops.WaitMultiplies) -> None:
        slots = self._accumulators(op.accumulator)
        self._replace(slots, self.ptx.wait_multiplies(op.pending, self._load_slots(slots)))

    def emit_MultiplyShared(self, node: Node, op: ops.MultiplyShared) -> None:
        slots = self._slots(node, op.accumulator, op.registers, op.count)
        a = self.ptx.descriptor(self._shared(node, op.a), op.a_strides)
        b = self.ptx.descriptor(self._shared(node, op.b), op.b_strides)
        _, shape, kind = op.instruction.split(".")
        values = self.ptx.multiply(
            shape,
            kind,
            self._load_slots(slots),
            a,
            b,
            self._keep(node, op),
            (op.transpose_a, op.transpose_b),
        )
        self._replace(slots, values)

    def _keep(self, node: Node, op: ops.MultiplyShared) -> ir.Value:
        """1 where the accumulator is added to."""
        fresh: Any = self.condition(node.scope.resolve_condition(op.fresh), node)
        if isinstance(fresh, bool):
            return ir.Constant(I32, int(not fresh))
        return self.builder.zext(self.builder.xor(fresh, ir.Constant(I1, 1)), I32)
