"""Emits moves between memory and a thread's registers, and the operations on registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llvmlite import ir

from codegen.emit.elements import Arithmetic
from codegen.emit.elementwise import ElementwiseEmitter
from codegen.emit.walker import Walker
from codegen.targets.nvptx.sm_80.instructions import F32, I32, I64, Instructions
from coordgraph import CodegenError, KernelGraph
from coordgraph.control import lowered as ops
from coordgraph.control.asynchronous import MultiplyShared
from coordgraph.control.resolve import Node
from coordgraph.coordinates.dimensions import Shared
from coordgraph.elements import DTYPES, DType, dtype
from coordgraph.gemm import read_of, tensor_of
from coordgraph.integers import equal, index_symbol
from coordgraph.tensors import Role

__all__ = ["BARRIER_BYTES", "SINGLE", "FragmentWalker"]

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
SHARED_DISCOUNT = 8
"""A load of an operand from shared memory is counted as fewer bytes in flight: its number of bytes
divided by SHARED_DISCOUNT. The latency of the load is small, so ptxas issues the load just
before the use of its value."""
FAST_BYTES = 2
"""If elements of D and of all other outputs are floats of 2 bytes, the epilogue may use
approximate instructions."""


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
        self.loaded = self.issued = 0.0
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
                f"ReduceFragment adds to '{op.destination}', but GPUs add {self.sums.kind} only to "
                "memory without padding; lower the graph with LowerToTensorCores or LowerToHopper"
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
        address, guard = self._address(node, op.source)
        if guard is False:
            return
        slots = self._slots(node, op.fragment, op.registers, op.width)
        element = self._element(op.source)
        size = op.width * element.bytes
        whole = self._read(address, 8 * size, guard)
        for slot, value in zip(slots, self._unpacked(whole, element), strict=True):
            total = self.sums.add(self.builder.load(slot, typ=self.sums.type), value)
            self.builder.store(self.ptx.pinned(total, self.sums.kind), slot)
        self._count(max(size, NARROWEST_LOAD))

    def _count(self, size: float) -> None:
        """Count an issued load, and emit a fence once `bytes_in_flight` are in flight.

        ptxas moves no load across the fence, so no registers are needed for later loads. ptxas may
        still delay the arithmetic, and keep all loaded values in registers until then; if
        `bytes_in_flight` is LEAST_BYTES_IN_FLIGHT, a schedule barrier prevents this.

        Args:
            size: the number of bytes that the load counts as.
        """
        self.loaded += size // WIDE_DISCOUNT if size == WIDEST_LOAD else size
        if self.loaded >= self.bytes_in_flight:
            self.loaded = 0.0
            self.ptx.fence()
            if self.bytes_in_flight <= LEAST_BYTES_IN_FLIGHT:
                self.ptx.schedule_barrier()

    def emit_ApplyFragment(self, node: Node, op: ops.ApplyFragment) -> None:
        """Emit an epilogue function: loads of its operands, and its operations on each register."""
        gemm = self.graph.gemm
        out = gemm.out_dtype or gemm.dtype
        emit = ElementwiseEmitter(self.builder, gpu=True, fast=self._fast)
        every = op.function.kinds(gemm.accumulator, out)
        kinds, result_kind = every.operands, every.result
        slots = self._slots(node, op.fragment, op.registers, op.width)
        before = self.issued
        operands: dict[str, list[Any]] = {}
        for operand in (*op.function.scalars, *op.function.tensors):
            tensor, kind = tensor_of(operand.name), kinds[operand.name]
            if operand.is_scalar:
                values = [self.given[operand.name]]
            elif tensor in op.elements:
                values = self._single(tensor, dtype(kind), tensor in op.optional)
            elif tensor in op.sources:
                width = op.widths[op.sources.index(tensor)]
                memory, optional = op.read_from[tensor], tensor in op.optional
                values = self._operand(node, tensor, memory, width, dtype(kind), optional)
            else:
                values = [emit.constant(0, kind)]
            operands[operand.name] = values
        # `ptx.pinned` makes LLVM and ptxas compute one register after another. Otherwise LLVM and
        # ptxas compute many at once, and spill the registers of the temporary values.
        pinned = bool(op.sources) or op.function.registers > 0
        made: dict[str, list[ir.Value]] = {output.name: [] for output in op.function.outputs}
        sums = {
            name: self._slots_from(op.fragment, first, op.width)
            for name, first in self.sums_of(node, op).items()
        }
        emissions: list[Iterator[Any]] = []
        for i in range(len(slots)):
            values = {n: each[i % len(each)] for n, each in operands.items()}
            values |= self.indices_of(node, op, i)
            for name, own in sums.items():
                values[name] = self.builder.load(own[i], typ=self.sums.type)
            emissions.append(op.function.emit(emit, values, gemm.accumulator, out))
            for output, value in next(emissions[-1]).items():
                made[output].append(value)
        # The values of other outputs are used before D's values replace the sums. Otherwise LLVM
        # copies all sums before `wgmma.wait_group`, and ptxas then serializes wgmma.
        self._emit_outputs(node, op, made)
        if op.function.stores_d:
            for slot, emission in zip(slots, emissions, strict=True):
                self._replace_sum(slot, next(emission), dtype(result_kind), pinned=pinned)
        if self.issued > before:
            self._count(self.issued - before)

    def indices_of(self, node: Node, op: ops.ApplyFragment, place: int = 0) -> dict[str, ir.Value]:
        """The indices of an element of D, computed at this point; see `Instructions.anew`."""
        found = super().indices_of(node, op, place)
        return {name: self.ptx.anew(value) for name, value in found.items()}

    def _replace_sum(
        self, slot: ir.AllocaInstr, result: ir.Value, kind: DType, *, pinned: bool
    ) -> None:
        """Emit a store of an epilogue's result in the register of the sum.

        The register has the type of the sum. The bits of a result of another type, such as an f32
        beside i32 sums, are stored in it.

        Args:
            slot: the stack slot of the register.
            result: the result.
            kind: the type of the result.
            pinned: whether LLVM must compute the result here.
        """
        if kind.bits < self.sums.kind.bits:
            result = self.builder.zext(result, ir.IntType(self.sums.kind.bits))
        if result.type != self.sums.type:
            result = self.builder.bitcast(result, self.sums.type)
        self.builder.store(self.ptx.pinned(result, self.sums.kind) if pinned else result, slot)

    def _emit_outputs(
        self, node: Node, op: ops.ApplyFragment, values: Mapping[str, list[ir.Value]]
    ) -> None:
        """Emit stores and reductions of the values of the epilogue's outputs besides D.

        Args:
            node: the node of the operation `op` in the control graph.
            op: the operation that applies the epilogue.
            values: for each output, its values for `op.width` adjacent elements of a row of D.
        """
        gemm = self.graph.gemm
        kinds = op.function.kinds(gemm.accumulator, gemm.out_dtype or gemm.dtype).outputs
        for tensor in op.stores:
            address, guard = self._address(node, tensor)
            kind = dtype(kinds[tensor])
            self._write(values[tensor], self._element(tensor), kind, address, guard)
        for output in op.reduces:
            self.merge_values(node, op, output, values[output])

    def merge_values(
        self, node: Node, op: ops.ApplyFragment, output: str, values: list[ir.Value]
    ) -> None:
        """Hook for subclasses: emits the reduction of values of an output that reduces rows.

        Args:
            node: the node of the operation `op` in the control graph.
            op: the operation that applies the epilogue.
            output: the output.
            values: the output's values for `op.width` adjacent elements of a row of D.
        """

    @property
    def _fast(self) -> bool:
        """Whether approximate instructions suffice: all outputs are 16-bit floats."""
        outputs = (t for t in self.graph.tensors if t.role is Role.OUTPUT)
        kinds = [dtype(t.dtype) for t in outputs]
        return all(kind.is_float and kind.bytes == FAST_BYTES for kind in kinds)

    def _operand(
        self, node: Node, tensor: str, memory: str, width: int, kind: DType, optional: bool
    ) -> list[Any]:
        """Emit loads of adjacent elements of an operand; 0 for padding or an operand not passed.

        Loaded values are reused, so an operand that does not vary along an axis is loaded once for
        all registers along that axis.

        Args:
            node: the operation; its loop indices select the elements.
            tensor: the operand.
            memory: the dimension of the shared or global memory that holds the operand.
            width: how many elements are loaded.
            kind: the type in which the epilogue computes with the elements.
            optional: whether a launch may leave the operand out.
        """
        found = node.place(memory)
        index = self.number(found.values[0], node)
        guard = self.condition(found.guard, node)
        key = ("operand", memory, width, *map(_identity, (index, guard)))
        known = self.expressions.printed
        if key not in known:
            element = self._element(tensor)
            size = width * element.bytes
            address, _ = self._address(node, memory)
            there = self._if_given(tensor, guard) if optional else guard
            whole = self._read(address, 8 * size, there)
            known[key] = (self._unpacked(whole, element, kind), index, guard)
            share = 1 if memory == tensor else SHARED_DISCOUNT
            self.issued += max(size, NARROWEST_LOAD) / share
        return known[key][0]

    def _if_given(self, tensor: str, guard: Any) -> Any:
        """The condition that `guard` is true and the launch passes the optional operand."""
        symbol = index_symbol(read_of(tensor))
        there = self.expressions.condition(equal(symbol, 1), self.ranges)
        if isinstance(guard, bool):
            return there if guard else False
        return self.builder.and_(there, guard)

    def _single(self, tensor: str, kind: DType, optional: bool) -> list[Any]:
        """The value of an operand with a single element, in a list, of type `kind`.

        The first use emits the load. If `optional`, a launch may leave the operand out; the
        value is then 0.
        """
        key = ("element", tensor)
        known = self.expressions.printed
        if key not in known:
            element = self._element(tensor)
            guard = self._if_given(tensor, True) if optional else True
            whole = self._read(self.given[tensor], element.bits, guard)
            known[key] = self._unpacked(whole, element, kind)
        return known[key]

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


def _identity(value: Any) -> int:
    """A dictionary key for an index: a Python integer itself, or the identity of an LLVM value."""
    return int(value) if isinstance(value, int) else id(value)
