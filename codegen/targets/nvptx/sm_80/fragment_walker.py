"""Emits moves between memory and a thread's registers, and the operations on registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from codegen.emit.elements import Arithmetic
from codegen.emit.walker import Walker
from codegen.targets.nvptx.sm_80.instructions import F32, I32, I64, Instructions
from coordgraph import CodegenError, KernelGraph
from coordgraph.control import lowered as ops
from coordgraph.control.asynchronous import MultiplyShared
from coordgraph.control.operations import Operation, SetCoordinate
from coordgraph.control.resolve import Node
from coordgraph.coordinates.dimensions import Shared
from coordgraph.elements import DTYPES, DType, dtype
from coordgraph.tensors import Role

__all__ = ["BARRIER_BYTES", "NARROWEST_LOAD", "SINGLE", "FragmentWalker"]

SINGLE = DTYPES["f32"]
"""The type f32, to which 16-bit floats are converted for arithmetic."""
MMA_REGISTERS = {"a": 4, "b": 2, "acc": 4}
"""Number of 32-bit registers of a thread for each fragment of one `mma.sync` (PTX ISA, "Matrix
fragments")."""
BARRIER_BYTES = 8
"""The size of an mbarrier in shared memory, in bytes."""
LEAST_BYTES_IN_FLIGHT = 4
"""The smallest value of `bytes_in_flight`, the number of bytes of operands that a thread loads
before it uses them."""
NARROWEST_LOAD = 4
"""A load of fewer than NARROWEST_LOAD bytes is counted as NARROWEST_LOAD bytes in flight, since the
load's address and guard take registers too."""
WIDEST_LOAD, WIDE_DISCOUNT = 16, 8
"""A load of WIDEST_LOAD bytes is counted as WIDEST_LOAD / WIDE_DISCOUNT = 2 bytes in flight: wide
loads of consecutive addresses share the registers of one address."""
PREDICATED_DISCOUNT = 2
"""Predicated loads of partial sums are counted as half as many bytes in flight: the lowering has
limited the number of loads that are executed together."""


class FragmentWalker(Walker):
    """Emits operations on fragments; a subclass provides arguments and shared memory.

    Args:
        graph: a lowered graph.
        bytes_in_flight: the number of bytes of operands, or of partial sums, that a thread loads
            before it uses them.
    """

    def __init__(self, graph: KernelGraph, bytes_in_flight: int) -> None:
        super().__init__(graph)
        self.bytes_in_flight = bytes_in_flight
        self.loaded = 0.0
        self.predicate: Any = True
        """The condition of operations that are emitted without a branch: a bool or an LLVM i1."""
        products = (graph.control.of_kind(k) for k in (ops.MultiplyFragments, MultiplyShared))
        self.accumulators = {op.accumulator for each in products for op in each}
        self.offsets: dict[str, int] = {}
        """The offset, in bytes, of each shared-memory dimension in the kernel's shared memory."""
        self.given: dict[str, ir.Value] = {}
        """The kernel's arguments, by name."""
        self.shared: ir.GlobalVariable
        """The kernel's dynamic shared memory."""
        self.ptx: Instructions
        """Emits PTX instructions."""
        self.sums: Arithmetic
        """Emits arithmetic in the accumulator's type."""

    def _if(self, node: Node) -> None:
        """Emit a conditional operation, by predicated loads if it only adds loaded values.

        Other conditional operations need a branch. ptxas moves the predicated loads of several
        operations ahead of all additions; after a branch, a load would wait for earlier loads.
        """
        inner = (n.op for n in node.walk() if n is not node)
        if node.orelse or not all(map(self._needs_no_branch, inner)):
            super()._if(node)
            return
        assert node.condition is not None
        outer = self.predicate
        self.predicate = self.both(outer, self.condition(node.condition, node))
        with self._branch():
            self.run(node.body)
        self.predicate = outer

    def _needs_no_branch(self, op: Operation) -> bool:
        """Whether a conditional with this operation needs no branch: its loads are predicated."""
        if isinstance(op, ops.AccumulateFragment):
            return op.source not in self.offsets
        return isinstance(op, SetCoordinate)

    def both(self, one: Any, other: Any) -> Any:
        """The conjunction of two conditions, each of which is a bool or an LLVM i1."""
        if isinstance(one, bool):
            return other if one else False
        if isinstance(other, bool):
            return one if other else False
        return self.builder.and_(one, other)

    # The following methods find element types and addresses.

    def _element(self, dim: str) -> DType:
        """The element type of a tensor or of a shared-memory dimension."""
        found = self.graph.coordinates[dim]
        if element := getattr(found, "element", ""):
            return dtype(element)
        return dtype(self.graph.tensor(getattr(found, "tensor", "")).dtype)

    def _bytes(self, dim: str) -> int:
        """The size in bytes of an element of a tensor or of shared memory; 8 for an mbarrier."""
        found = self.graph.coordinates[dim]
        if isinstance(found, Shared) and found.barriers:
            return BARRIER_BYTES
        return self._element(dim).bytes

    def _address(self, node: Node, dim: str) -> tuple[ir.Value, Any]:
        """The pointer to an element along `dim`, and its guard, which is false for padding."""
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

    # The following methods emit operations on registers.

    def _slots(
        self, node: Node, name: str, dims: tuple[str, ...], width: int
    ) -> list[ir.AllocaInstr]:
        """The stack slots of `width` registers of a fragment; LLVM promotes slots to registers."""
        return self._slots_from(name, self.register(node, dims, width), width)

    def _slots_from(self, name: str, first: int, width: int) -> list[ir.AllocaInstr]:
        """The stack slots of the registers `first` to `first + width - 1` of a fragment."""
        kind = self.sums.type if name in self.accumulators else I32
        return [self.fragments.slot(name, first + i, kind) for i in range(width)]

    def _load_slots(self, slots: list[ir.AllocaInstr]) -> list[ir.Value]:
        """Emit loads of the current values of registers from their stack slots."""
        return [self.builder.load(slot, typ=slot.allocated_type) for slot in slots]

    def emit_ZeroFragment(self, node: Node, op: ops.ZeroFragment) -> None:
        for slot in self._slots(node, op.fragment, op.registers, op.width):
            self.builder.store(self.sums.zero, slot)

    def emit_LoadFragment(self, node: Node, op: ops.LoadFragment) -> None:
        if not op.form.startswith("ldmatrix.x4"):
            raise CodegenError(
                f"LoadFragment has the form '{op.form}', but kernels load fragments only by "
                "ldmatrix.x4 and ldmatrix.x4.trans; lower the graph with LowerToTensorCores"
            )
        address, _ = self._address(node, op.source)
        values = self.ptx.ldmatrix(address, trans=op.form.endswith(".trans"))
        slots = self._slots(node, op.fragment, op.registers, len(values))
        for slot, value in zip(slots, values, strict=True):
            self.builder.store(value, slot)

    def emit_MultiplyFragments(self, node: Node, op: ops.MultiplyFragments) -> None:
        a = self._slots(node, op.a, op.a_registers, MMA_REGISTERS["a"])
        b = self._slots(node, op.b, op.b_registers, MMA_REGISTERS["b"])
        acc = self._slots(node, op.accumulator, op.registers, MMA_REGISTERS["acc"])
        operands = [self._load_slots(x) for x in (a, b, acc)]
        for slot, value in zip(acc, self.ptx.mma(op.instruction, *operands), strict=True):
            self.builder.store(value, slot)
        small = dtype(self.graph.gemm.dtype).is_small_float
        if small and self.bytes_in_flight <= LEAST_BYTES_IN_FLIGHT:
            # Hopper has `mma.sync` only of wider floats. ptxas converts 8-bit floats, and otherwise
            # converts many fragments before it multiplies them.
            self.ptx.schedule_barrier()

    def emit_StoreFragment(self, node: Node, op: ops.StoreFragment) -> None:
        address, guard = self._address(node, op.destination)
        values = self._load_slots(self._slots(node, op.fragment, op.registers, op.width))
        kind = self.result if self._is_output(op.destination) else self.sums.kind
        values = self._of_kind(values, kind)
        self._write(values, self._element(op.destination), kind, address, guard)

    def _write(
        self, values: list[ir.Value], element: DType, kind: DType, address: ir.Value, guard: Any
    ) -> None:
        """Emit one store of adjacent elements, unless `guard` is false (padding).

        Args:
            values: the values of the elements.
            element: the element type in memory, to which the values are converted.
            kind: the type of the values.
            address: the pointer to the first element.
            guard: the condition under which the elements are stored.
        """
        packed, size = self._packed(values, element, kind), len(values) * element.bytes
        if guard is True:
            self.builder.store(packed, address, align=size)
        elif guard is not False:
            self.ptx.store_if(packed, address, 8 * size, guard)

    def emit_ReduceFragment(self, node: Node, op: ops.ReduceFragment) -> None:
        address, guard = self._address(node, op.destination)
        if guard is not True or self._element(op.destination) != self.sums.kind:
            raise CodegenError(
                f"ReduceFragment adds to '{op.destination}', but kernels for GPUs can add only to "
                f"{self.sums.kind} elements, none of which is padding; lower the graph with "
                "LowerToTensorCores or LowerToHopper"
            )
        values = self._load_slots(self._slots(node, op.fragment, op.registers, op.width))
        self.ptx.reduce(address, values, self.sums.kind, vector=op.form == "vector")

    def _is_output(self, dim: str) -> bool:
        """Whether `dim` is D, or shared memory through which D is stored."""
        tensor = getattr(self.graph.coordinates[dim], "tensor", "")
        return bool(tensor) and self.graph.tensor(tensor).role is Role.OUTPUT

    @property
    def result(self) -> DType:
        """The type of the epilogue's result in registers, before it is converted to D's type."""
        gemm = self.graph.gemm
        return dtype(gemm.epilogue.kinds(gemm.accumulator, gemm.out_dtype or gemm.dtype).result)

    def _of_kind(self, values: list[ir.Value], kind: DType) -> list[ir.Value]:
        """Reinterpret the bits of accumulator registers as values of the type `kind`."""
        if kind == self.sums.kind:
            return values
        number = Arithmetic(self.builder, kind).type
        if kind.bits < self.sums.kind.bits:
            word = ir.IntType(self.sums.kind.bits)
            values = [self.builder.trunc(self.builder.bitcast(x, word), number) for x in values]
        return [self.builder.bitcast(value, number) for value in values]

    def _packed(self, values: list[ir.Value], element: DType, kind: DType) -> ir.Value:
        """Convert values to an element type, and pack them as they are stored in memory.

        Values of another type than `element` are converted to f32, and from f32 to `element`.

        Args:
            values: the values.
            element: the element type in memory.
            kind: the type of the values.
        """
        if element == kind:
            return self._vector(values)
        rounded = [Arithmetic(self.builder, SINGLE).convert(v, kind) for v in values]
        if element == SINGLE:
            return self._vector(rounded)
        if len(rounded) == 1:
            return self.ptx.from_f32(rounded[0], element)
        low, high = rounded
        return self.ptx.pack_f32(low, high, element)

    def _vector(self, values: list[ir.Value]) -> ir.Value:
        """An LLVM vector of the values, which have one type; a single value stays a scalar."""
        if len(values) == 1:
            return values[0]
        kind = ir.VectorType(values[0].type, len(values))
        vector: ir.Value = ir.Constant(kind, ir.Undefined)
        for i, value in enumerate(values):
            vector = self.builder.insert_element(vector, value, ir.Constant(I32, i))
        return vector

    def emit_AccumulateFragment(self, node: Node, op: ops.AccumulateFragment) -> None:
        address, inside = self._address(node, op.source)
        guard = self.both(self.predicate, inside)
        if guard is False:
            return
        slots = self._slots(node, op.fragment, op.registers, op.width)
        element = self._element(op.source)
        size = op.width * element.bytes
        whole = self._read(address, 8 * size, guard)
        for slot, value in zip(slots, self._unpacked(whole, element), strict=True):
            total = self.sums.add(self.builder.load(slot, typ=self.sums.type), value)
            self.builder.store(self.ptx.pinned(total, self.sums.kind), slot)
        self._count(max(size, NARROWEST_LOAD), 1 if self.predicate is True else PREDICATED_DISCOUNT)

    def _count(self, size: float, discount: int = 1) -> None:
        """Count an issued load, and emit a fence once `bytes_in_flight` are in flight.

        ptxas moves no load across the fence, so no registers are needed for later loads. ptxas may
        still delay the arithmetic, and keep all loaded values in registers until then; if
        `bytes_in_flight` is LEAST_BYTES_IN_FLIGHT, a schedule barrier prevents this.

        Args:
            size: the number of bytes that the load counts as.
            discount: the number by which this number of bytes is divided.
        """
        self.loaded += (size // WIDE_DISCOUNT if size == WIDEST_LOAD else size) / discount
        if self.loaded >= self.bytes_in_flight:
            self.loaded = 0.0
            self.ptx.fence()
            if self.bytes_in_flight <= LEAST_BYTES_IN_FLIGHT:
                self.ptx.schedule_barrier()

    def _read(self, address: ir.Value, bits: int, guard: Any) -> ir.Value:
        """Emit a load of an integer of `bits` bits, whose value is 0 if `guard` is false."""
        if guard is False:
            return ir.Constant(ir.IntType(bits), 0)
        if guard is True:
            return self.builder.load(address, typ=ir.IntType(bits), align=bits // 8)
        return self.ptx.load_or_zero(address, bits, guard)

    def _unpacked(
        self, whole: ir.Value, element: DType, kind: DType | None = None
    ) -> list[ir.Value]:
        """Split a loaded integer into elements, lowest bits first, and convert them.

        Args:
            whole: the integer, of as many bits as the elements have together.
            element: the element type in memory.
            kind: the type to convert to; None means the accumulator's type.
        """
        numbers = self.sums if kind is None else Arithmetic(self.builder, kind)
        b, part = self.builder, ir.IntType(element.bits)
        values: list[ir.Value] = []
        for shift in range(0, whole.type.width, element.bits):
            moved = b.lshr(whole, ir.Constant(whole.type, shift)) if shift else whole
            bits = b.trunc(moved, part) if part.width < whole.type.width else moved
            values.append(self._number(bits, element, numbers))
        return values

    def _number(self, bits: ir.Value, element: DType, numbers: Arithmetic) -> ir.Value:
        """Emit the conversion of an element from its type in memory to a type for arithmetic.

        Args:
            bits: the bits of the element, as an LLVM integer of the element's width.
            element: the type of the element in memory.
            numbers: emits arithmetic in the type of the result.
        """
        if not element.is_float:
            return numbers.convert(bits, element)
        single = element == SINGLE
        value = self.builder.bitcast(bits, F32) if single else self.ptx.to_f32(bits, element)
        return numbers.convert(value, SINGLE)
