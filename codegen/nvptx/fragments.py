"""Addresses, and fragments: what moves between memory and a thread's registers, as PTX."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from codegen.nvptx.instructions import F32, I32, I64, Instructions
from codegen.walker import Walker
from coordgraph import CodegenError, KernelGraph
from coordgraph.control import lowered as ops
from coordgraph.control.asynchronous import MultiplyShared
from coordgraph.control.resolve import Node
from coordgraph.coordinates.dimensions import Shared
from coordgraph.tensors import dtype

__all__ = ["BARRIER_BYTES", "FragmentWalker"]

MMA_REGISTERS = {"a": 4, "b": 2, "acc": 4}
BARRIER_BYTES = 8
NARROWEST_LOAD = 4
"""What a load counts at least, in bytes: narrow ones need an address and a guard too."""
WIDEST_LOAD, WIDE_DISCOUNT = 16, 8


class FragmentWalker(Walker):
    """Emits what is done to registers; where they come from and go to, a subclass lays out.

    Args:
        graph: a lowered graph.
        bytes_in_flight: what a thread loads of C or of a partial before the sums are due.
    """

    def __init__(self, graph: KernelGraph, bytes_in_flight: int) -> None:
        super().__init__(graph)
        self.bytes_in_flight = bytes_in_flight
        self.loaded = 0
        products = (graph.control.of_kind(k) for k in (ops.MultiplyFragments, MultiplyShared))
        self.accumulators = {op.accumulator for each in products for op in each}
        self.offsets: dict[str, int] = {}
        """Where tiles and barriers begin in shared memory, in bytes."""
        self.given: dict[str, ir.Value] = {}
        """The kernel's arguments."""
        self.shared: ir.GlobalVariable
        self.ptx: Instructions

    # Memory

    def _element(self, dim: str) -> Any:
        found = self.graph.coordinates[dim]
        if element := getattr(found, "element", ""):
            return dtype(element)
        return dtype(self.graph.tensor(getattr(found, "tensor", "")).dtype)

    def _bytes(self, dim: str) -> int:
        """Bytes of an element."""
        found = self.graph.coordinates[dim]
        if isinstance(found, Shared) and found.barriers:
            return BARRIER_BYTES
        return self._element(dim).bytes

    def _address(self, node: Node, dim: str) -> tuple[ir.Value, Any]:
        """Pointer to an element of a tensor or of shared memory, and its guard."""
        index, guard = self.place(node, dim)
        size = self._bytes(dim)
        b = self.builder
        if dim in self.offsets:
            narrow = b.trunc(index, I32)
            offset = b.add(
                b.mul(narrow, ir.Constant(I32, size)), ir.Constant(I32, self.offsets[dim])
            )
            return b.gep(self.shared, [offset], source_etype=ir.IntType(8)), guard
        offset = b.mul(index, ir.Constant(I64, size))
        return b.gep(self.given[dim], [offset], source_etype=ir.IntType(8)), guard

    # Registers

    def _slots(
        self, node: Node, name: str, dims: tuple[str, ...], width: int
    ) -> list[ir.AllocaInstr]:
        first, kind = self.register(node, dims, width), F32 if name in self.accumulators else I32
        return [self.fragments.slot(name, first + i, kind) for i in range(width)]

    def _load_slots(self, slots: list[ir.AllocaInstr]) -> list[ir.Value]:
        return [self.builder.load(slot, typ=slot.allocated_type) for slot in slots]

    def emit_ZeroFragment(self, node: Node, op: ops.ZeroFragment) -> None:
        for slot in self._slots(node, op.fragment, op.registers, op.width):
            self.builder.store(ir.Constant(F32, 0.0), slot)

    def emit_ScaleFragment(self, node: Node, op: ops.ScaleFragment) -> None:
        for slot in self._slots(node, op.fragment, op.registers, op.width):
            value = self.builder.load(slot, typ=F32)
            self.builder.store(self.builder.fmul(value, self.given[op.scale]), slot)

    def emit_LoadFragment(self, node: Node, op: ops.LoadFragment) -> None:
        if not op.form.startswith("ldmatrix.x4"):
            raise CodegenError(f"no form '{op.form}' of LoadFragment on this target")
        address, _ = self._address(node, op.source)
        values = self.ptx.ldmatrix(address, trans=op.form.endswith(".trans"))
        slots = self._slots(node, op.fragment, op.registers, len(values))
        for slot, value in zip(slots, values, strict=True):
            self.builder.store(value, slot)

    def emit_MultiplyFragments(self, node: Node, op: ops.MultiplyFragments) -> None:
        a = self._slots(node, op.a, op.a_registers, MMA_REGISTERS["a"])
        b = self._slots(node, op.b, op.b_registers, MMA_REGISTERS["b"])
        acc = self._slots(node, op.accumulator, op.registers, MMA_REGISTERS["acc"])
        kind = op.instruction.rsplit(".", 1)[1]
        operands = [self._load_slots(x) for x in (a, b, acc)]
        for slot, value in zip(acc, self.ptx.mma(kind, *operands), strict=True):
            self.builder.store(value, slot)

    def emit_StoreFragment(self, node: Node, op: ops.StoreFragment) -> None:
        address, guard = self._address(node, op.destination)
        values = self._load_slots(self._slots(node, op.fragment, op.registers, op.width))
        element = self._element(op.destination)
        packed, size = self._packed(values, element.name), op.width * element.bytes
        if guard is True:
            self.builder.store(packed, address, align=size)
        elif guard is not False:
            self.ptx.store_if(packed, address, 8 * size, guard)

    def emit_ReduceFragment(self, node: Node, op: ops.ReduceFragment) -> None:
        address, guard = self._address(node, op.destination)
        if guard is not True or self._element(op.destination).name != "f32":
            raise CodegenError("only f32 that are no padding are added to memory on this target")
        values = self._load_slots(self._slots(node, op.fragment, op.registers, op.width))
        self.ptx.reduce(address, values, vector=op.form == "vector")

    def _packed(self, values: list[ir.Value], kind: str) -> ir.Value:
        """Accumulator values as they lie in memory."""
        if kind == "f32":
            if len(values) == 1:
                return values[0]
            vector: ir.Value = ir.Constant(ir.VectorType(F32, len(values)), ir.Undefined)
            for i, value in enumerate(values):
                vector = self.builder.insert_element(vector, value, ir.Constant(I32, i))
            return vector
        if len(values) == 1:
            return self.ptx.from_f32(values[0], kind)
        low, high = values
        return self.ptx.pack_f32(low, high, kind)

    def emit_AccumulateFragment(self, node: Node, op: ops.AccumulateFragment) -> None:
        address, guard = self._address(node, op.source)
        if guard is False:
            return
        slots = self._slots(node, op.fragment, op.registers, op.width)
        element = self._element(op.source)
        size = op.width * element.bytes
        whole = self._read(address, 8 * size, guard)
        for slot, value in zip(slots, self._unpacked(whole, element), strict=True):
            if op.scale:
                value = self.builder.fmul(value, self.given[op.scale])
            total = self.builder.fadd(self.builder.load(slot, typ=F32), value)
            self.builder.store(self.ptx.pinned(total), slot)
        # Wide loads from one base need registers for what they bring and for nothing else.
        self.loaded += size // WIDE_DISCOUNT if size == WIDEST_LOAD else max(size, NARROWEST_LOAD)
        if self.loaded >= self.bytes_in_flight:
            self.loaded = 0
            self.ptx.fence()

    def _read(self, address: ir.Value, bits: int, guard: Any) -> ir.Value:
        """So many bits of memory as an integer, zero where they are padding."""
        if guard is True:
            return self.builder.load(address, typ=ir.IntType(bits), align=bits // 8)
        return self.ptx.load_or_zero(address, bits, guard)

    def _unpacked(self, whole: ir.Value, element: Any) -> list[ir.Value]:
        """The elements that an integer holds, lowest first, as f32."""
        b, part = self.builder, ir.IntType(element.bits)
        values: list[ir.Value] = []
        for shift in range(0, whole.type.width, element.bits):
            moved = b.lshr(whole, ir.Constant(whole.type, shift)) if shift else whole
            bits = b.trunc(moved, part) if part.width < whole.type.width else moved
            values.append(
                b.bitcast(bits, F32) if element.bits == 32 else self.ptx.to_f32(bits, element.name)
            )
        return values
