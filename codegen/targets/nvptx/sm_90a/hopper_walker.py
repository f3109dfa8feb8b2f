"""Emits the asynchronous operations of Hopper: TMA copies, mbarriers and wgmma."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from llvmlite import ir
from sympy import Expr, Integer

from codegen.targets.nvptx.map_arguments import map_argument
from codegen.targets.nvptx.sm_80.emit import CudaWalker
from codegen.targets.nvptx.sm_80.instructions import I1, I16, I32, I64
from codegen.targets.nvptx.sm_90a.wgmma import HopperInstructions
from coordgraph.control import asynchronous as ops
from coordgraph.control.lowered import StoreFragment
from coordgraph.control.resolve import Node
from coordgraph.control.tickets import PassTicket
from coordgraph.control.timeline import Timed
from coordgraph.coordinates.dimensions import Cluster
from coordgraph.elements import WARPGROUP_MMA, dtype
from coordgraph.integers import floor_div, simplify

__all__ = ["HopperWalker"]

OWN_MEMORY = 0x3FFFF
"""Mask for the bits of a shared-memory address that wgmma's matrix descriptors encode. Higher bits
of the address hold the rank of the CTA in its cluster."""
DESCRIPTOR_UNIT = 16
"""The unit, in bytes, of addresses in matrix descriptors (PTX ISA, "Matrix Descriptor Format")."""


class HopperWalker(CudaWalker):
    """A `CudaWalker` that also emits TMA copies, mbarriers, wgmma and setmaxnreg."""

    ptx: HopperInstructions
    """Emits PTX instructions."""
    stalled: ir.AllocaInstr | None = None
    """The counter to which waits for mbarriers add the clock cycles that they take; None if waits
    are not timed."""

    def make_instructions(self) -> HopperInstructions:
        return HopperInstructions(self.builder)

    def begin(self) -> None:
        self.base = self.ptx.same(self.builder.ptrtoint(self.shared, I32))
        """The 32-bit address at which the kernel's dynamic shared memory begins."""

    def _shared(self, node: Node, dim: str) -> ir.Value:
        """The 32-bit shared-memory address of the element that an operation accesses.

        Args:
            node: the operation; its loop indices select the element.
            dim: the dimension that numbers the elements of the shared-memory allocation.
        """
        return self.builder.add(self.base, self._offset(node, dim, 1))

    def _offset(self, node: Node, dim: str, unit: int) -> ir.Value:
        """The offset, from the start of shared memory, of the element that an operation accesses.

        Args:
            node: the operation; its loop indices select the element.
            dim: the dimension that numbers the elements of the shared-memory allocation.
            unit: the unit of the result, in bytes.
        """
        index = node.place(dim).values[0] * self._bytes(dim) + self.offsets[dim]
        place = simplify(floor_div(index.expand(), Integer(unit)), node.scope.ranges)
        return self._narrow(place, node)

    def _descriptor(self, node: Node, dim: str, strides: tuple[int, int], row: int) -> ir.Value:
        """The wgmma matrix descriptor of an operand in shared memory.

        Args:
            node: the operation; its loop indices select the operand's first element.
            dim: the dimension that numbers the elements of the operand in shared memory.
            strides: the leading and the stride byte offset (PTX ISA, "Strides").
            row: number of bytes of a swizzled row: 128, 64 or 32.
        """
        b = self.builder
        own = b.and_(self.base, ir.Constant(I32, OWN_MEMORY))  # remove the bits of the CTA's rank
        first = b.lshr(own, ir.Constant(I32, DESCRIPTOR_UNIT.bit_length() - 1))
        place = b.add(first, self._offset(node, dim, DESCRIPTOR_UNIT))
        return self.ptx.descriptor(place, strides, row)

    def emit_SetRegisters(self, node: Node, op: ops.SetRegisters) -> None:
        self.ptx.set_registers(op.count, grow=op.grow)

    def emit_InitBarrier(self, node: Node, op: ops.InitBarrier) -> None:
        self.ptx.barrier_init(self._shared(node, op.barrier), op.arrivals)

    def emit_PublishBarriers(self, node: Node, op: ops.PublishBarriers) -> None:
        self.ptx.barrier_publish()

    def emit_ExpectBytes(self, node: Node, op: ops.ExpectBytes) -> None:
        size = self._narrow(node.scope.resolve(op.bytes), node)
        self.ptx.barrier_expect(self._shared(node, op.barrier), size)

    def emit_ArriveBarrier(self, node: Node, op: ops.ArriveBarrier) -> None:
        barrier = self._shared(node, op.barrier)
        if op.rank is None:
            self.ptx.barrier_arrive(barrier)
        else:
            rank = self._narrow(node.scope.resolve(op.rank), node)
            self.ptx.barrier_arrive_at(barrier, rank, publish=op.publish)

    def emit_ClusterBarrier(self, node: Node, op: ops.ClusterBarrier) -> None:
        self.ptx.cluster_barrier()

    def emit_AwaitEarlierLaunch(self, node: Node, op: ops.AwaitEarlierLaunch) -> None:
        self.ptx.await_earlier_launch()

    def emit_AllowNextLaunch(self, node: Node, op: ops.AllowNextLaunch) -> None:
        self.ptx.allow_next_launch()

    def emit_PrefetchMap(self, node: Node, op: ops.PrefetchMap) -> None:
        for box in self.boxes[op.tensor]:
            self.ptx.prefetch_map(self._map(op.tensor, box))

    def emit_WaitBarrier(self, node: Node, op: ops.WaitBarrier) -> None:
        parity = self._narrow(node.place(op.phase).values[0], node)
        if op.before:
            parity = self.builder.xor(parity, ir.Constant(I32, 1))
        barrier, slot = self._shared(node, op.barrier), self.stalled
        if slot is None:
            self.ptx.barrier_wait(barrier, parity, cluster=op.cluster)
            return
        cycles = self.builder.load(slot, typ=I32)
        cycles = self.ptx.barrier_wait_timed(barrier, parity, cycles, cluster=op.cluster)
        self.builder.store(cycles, slot)

    def emit_Timed(self, node: Node, op: Timed) -> None:
        slot = self.values[self.graph.coordinates.symbol(op.dim)]
        assert isinstance(slot, ir.AllocaInstr)
        around, self.stalled = self.stalled, slot
        self.run(node.body)
        self.stalled = around

    def _narrow(self, index: Expr, node: Node) -> ir.Value:
        """The value of an index expression at the operation `node`, as a 32-bit LLVM integer."""
        return self.expressions.widen(self.number(index, node), 32, index, node.scope.ranges)

    def _map(self, tensor: str, box: tuple[int, ...]) -> ir.Value:
        """The address of the tensor map that the launch passes for TMA boxes of the shape `box`."""
        number = self.boxes[tensor].index(box)
        return self.builder.ptrtoint(self.given[map_argument(tensor, number)], I64)

    def _written_map(self, node: Node, dim: str) -> ir.Value:
        """The global address of a tensor map that the kernel writes; `dim`'s index selects it."""
        return self.builder.ptrtoint(self._address(node, dim)[0], I64)

    def _map_of(self, node: Node, op: ops.CopyBox | ops.StoreBox) -> ir.Value:
        """The address of the tensor map for the TMA copy `op`."""
        return self._written_map(node, op.map) if op.map else self._map(op.tensor, op.box)

    def emit_DescribeMatrix(self, node: Node, op: ops.DescribeMatrix) -> None:
        b, size = self.builder, self._element(op.tensor).bytes
        (template,) = (self._map(op.tensor, box) for box in self.boxes[op.tensor])

        def wide(expr: Expr, unit: int = 1) -> ir.Value:
            return self.wide(node.scope.resolve(expr * unit), node)

        base = b.ptrtoint(self.given[op.tensor], I64)
        self.ptx.describe(
            self._written_map(node, op.map),
            self._shared(node, op.via),
            template,
            first=b.add(base, wide(op.first, size)),
            extents=[self._narrow(node.scope.resolve(extent), node) for extent in op.extents],
            pitch=wide(op.pitch, size),
        )

    def emit_CopyBox(self, node: Node, op: ops.CopyBox) -> None:
        at = [self._narrow(node.place(dim).values[0], node) for dim in op.source]
        target, barrier = self._shared(node, op.destination), self._shared(node, op.barrier)
        receivers = self._ranks(node, op.receivers) if op.receivers else None
        self.ptx.copy_box(target, self._map_of(node, op), at, barrier, receivers)

    def emit_CopyRun(self, node: Node, op: ops.CopyRun) -> None:
        source, _ = self._address(node, op.source)
        target, barrier = self._shared(node, op.destination), self._shared(node, op.barrier)
        size = op.count * self._element(op.source).bytes
        self.ptx.copy_run(target, self.builder.ptrtoint(source, I64), size, barrier)

    def _ranks(self, node: Node, along: tuple[str, ...]) -> ir.Value:
        """The 16-bit multicast mask of a TMA load: a bit for the rank of each CTA that receives it.

        Args:
            node: the operation, which gives the position of this CTA in the cluster.
            along: the cluster coordinates along which the receivers lie.
        """
        coordinates = self.graph.coordinates
        (cluster,) = coordinates.of_kind(Cluster)
        (edge,) = (e for e in coordinates.edges_above(cluster) if {*along} <= {*e.upstream})
        fixed = {d: node.place(d).values[0] for d in edge.upstream if d not in along}
        mask: ir.Value = ir.Constant(I32, 0)
        for places in product(*(range(coordinates[d].fixed_size) for d in along)):
            known = {**fixed, **dict(zip(along, places, strict=True))}
            (rank,) = coordinates.forward(known, [cluster], node.scope.ranges)
            bit = self.builder.shl(ir.Constant(I32, 1), self._narrow(rank, node))
            mask = self.builder.or_(mask, bit)
        return self.builder.trunc(mask, I16)

    def emit_StoreBox(self, node: Node, op: ops.StoreBox) -> None:
        at = [self._narrow(node.place(dim).values[0], node) for dim in op.destination]
        self.ptx.store_box(self._shared(node, op.source), self._map_of(node, op), at)

    def emit_CommitStores(self, node: Node, op: ops.CommitStores) -> None:
        self.ptx.commit_stores()

    def emit_WaitStores(self, node: Node, op: ops.WaitStores) -> None:
        self.ptx.wait_stores(op.pending)

    def emit_FenceMemory(self, node: Node, op: ops.FenceMemory) -> None:
        self.ptx.fence_memory()

    def emit_FenceShared(self, node: Node, op: ops.FenceShared) -> None:
        self.ptx.fence_shared()

    def emit_StoreFragment(self, node: Node, op: StoreFragment) -> None:
        values = self._load_slots(self._slots(node, op.fragment, op.registers, op.width))
        if op.rank is not None:
            rank = self._narrow(node.scope.resolve(op.rank), node)
            self.ptx.store_at(values, self.sums.kind, self._shared(node, op.destination), rank)
            return
        if not op.form.startswith("stmatrix."):
            super().emit_StoreFragment(node, op)
            return
        element = self._element(op.destination)
        packed = [
            self._packed(self._of_kind([low, high], self.result), element, self.result)
            for low, high in zip(values[::2], values[1::2], strict=True)
        ]
        trans = op.form.endswith(".trans")
        self.ptx.stmatrix(self._shared(node, op.destination), packed, trans=trans)

    def emit_PassTicket(self, node: Node, op: PassTicket) -> None:
        if op.rank is None:
            super().emit_PassTicket(node, op)
            return
        ticket = self.builder.load(self.fragments.slot(op.ticket, 0, I32), typ=I32)
        rank = self._narrow(node.scope.resolve(op.rank), node)
        self.ptx.store_word_at(ticket, self._shared(node, op.destination), rank)

    # The following methods emit wgmma instructions.

    def _accumulators(self, name: str) -> list[ir.AllocaInstr]:
        """The LLVM `alloca` of each register of the accumulator `name`."""
        (first, *_) = (
            op for op in self.graph.control.of_kind(ops.MultiplyShared) if op.accumulator == name
        )
        parts = prod(self.graph.coordinates[dim].fixed_size for dim in first.registers)
        kind = self.sums.type
        return [self.fragments.slot(name, i, kind) for i in range(parts * first.count)]

    def _replace(self, slots: list[ir.AllocaInstr], values: list[ir.Value]) -> None:
        """Emit a store of each of `values` to its slot, the `alloca` of an accumulator register."""
        for slot, value in zip(slots, values, strict=True):
            self.builder.store(value, slot)

    def emit_FenceMultiplies(self, node: Node, op: ops.FenceMultiplies) -> None:
        slots = self._accumulators(op.accumulator)
        self._replace(slots, self.ptx.fence_multiplies(self._load_slots(slots), self.sums.kind))

    def emit_CommitMultiplies(self, node: Node, op: ops.CommitMultiplies) -> None:
        self.ptx.commit_multiplies()

    def emit_WaitMultiplies(self, node: Node, op: ops.WaitMultiplies) -> None:
        slots = self._accumulators(op.accumulator)
        found = self.ptx.wait_multiplies(op.pending, self._load_slots(slots), self.sums.kind)
        self._replace(slots, found)

    def emit_MultiplyShared(self, node: Node, op: ops.MultiplyShared) -> None:
        slots = self._slots(node, op.accumulator, op.registers, op.count)
        a = self._descriptor(node, op.a, op.a_strides, op.rows[0])
        b = self._descriptor(node, op.b, op.b_strides, op.rows[1])
        instruction = dtype(self.graph.gemm.dtype).instruction(WARPGROUP_MMA)
        assert instruction is not None
        transposes = (op.transpose_a, op.transpose_b) if instruction.across_k else ()
        values = self.ptx.multiply(
            op.instruction,
            self._load_slots(slots),
            self.sums.kind,
            a,
            b,
            self._keep(node, op),
            transposes,
        )
        self._replace(slots, values)

    def _keep(self, node: Node, op: ops.MultiplyShared) -> ir.Value:
        """The operand scale-d of wgmma: 1 adds to the accumulator, 0 overwrites the accumulator."""
        fresh: Any = self.condition(node.scope.resolve_condition(op.fresh), node)
        if isinstance(fresh, bool):
            return ir.Constant(I32, int(not fresh))
        return self.builder.zext(self.builder.xor(fresh, ir.Constant(I1, 1)), I32)
