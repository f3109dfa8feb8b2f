"""Emits LLVM IR for lowered operations on the CPU: one method for each kind of operation.

The LLVM function `gemm` executes one workgroup; its last argument is the workgroup's number.
`launch_code` adds the function `run`, which calls `gemm` for one workgroup after another. A guarded
kernel also ends the launch at an index outside its tensor, or a loop step that is below 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from llvmlite import ir

from codegen.emit.elements import Arithmetic
from codegen.emit.elementwise import KINDS, ElementwiseEmitter
from codegen.emit.expressions import Expressions
from codegen.emit.shared_memory import allocations
from codegen.emit.stamps import stamp_words, store_words
from codegen.emit.walker import Fragments
from codegen.targets.cpu.clocks import HostClocks
from codegen.targets.cpu.elements import Elements
from codegen.targets.cpu.flags import FlagWalker
from codegen.targets.cpu.guards import HostHazards
from codegen.targets.cpu.launch_code import LaunchCode, call_intrinsic
from coordgraph import CodegenError, KernelGraph
from coordgraph.control import lowered as ops
from coordgraph.control.resolve import Node
from coordgraph.control.timeline import RECORD_WORDS, Stamp
from coordgraph.coordinates.dimensions import Shared, Workitem
from coordgraph.elements import DType, dtype
from coordgraph.epilogue.operation import Algebra
from coordgraph.epilogue.reduction import IDENTITIES, combined
from coordgraph.gemm import read_of, tensor_of
from coordgraph.integers import index_symbol
from coordgraph.tensors import Role

__all__ = ["KERNEL_NAME", "LINE", "RUN_NAME", "HostWalker"]

KERNEL_NAME, RUN_NAME = "gemm", "run"
I1, I8, I32, I64 = (ir.IntType(n) for n in (1, 8, 32, 64))
POINTER, VOID = ir.PointerType(), ir.VoidType()
LINE = 64
"""Size in bytes of a cache line and of the widest vector registers. Buffers are aligned to it."""


class HostWalker(FlagWalker):
    """Builds the LLVM module of a kernel for the CPU.

    Args:
        graph: a graph that `LowerToHost` has lowered.
        triple: LLVM's target triple of the CPU, such as `x86_64-unknown-linux-gnu`.
        guarded: whether the code stops the launch if an index is outside its tensor or buffer.
        foreign: whether the graph may be wrong, so that proofs from its sizes may be wrong too. The
            guarded and the unguarded code of such a graph compute the same indices.
    """

    widest = True
    derives = False

    def __init__(
        self, graph: KernelGraph, triple: str = "", *, guarded: bool = False, foreign: bool = False
    ) -> None:
        if graph.coordinates.of_kind(Workitem):
            raise CodegenError(
                "the graph was lowered for a GPU; lower the scheduled graph with LowerToHost "
                "instead"
            )
        super().__init__(graph, guarded=guarded, foreign=foreign)
        self.triple = triple
        self.accumulator = dtype(graph.gemm.accumulator)
        self.buffer_bytes = 0
        element = self.accumulator.bytes
        memory = graph.coordinates.of_kind(Shared)
        for _, names, size in allocations(memory, lambda shared: shared.fixed_size * element):
            self.buffers |= dict.fromkeys(names, self.buffer_bytes)
            self.buffer_bytes += -(-size // LINE) * LINE

    @property
    def parameters(self) -> list[str]:
        """The names of the integer arguments of the emitted kernel function `gemm`, in order."""
        return [scalar.name for scalar in self.arguments.scalars.values()]

    @property
    def tables(self) -> list[str]:
        """Names of the tables that the caller of `gemm` computes from other tables, and passes."""
        return [t.name for t in self.graph.parameters.tables if t.derived]

    def _entry(self, table: str, place: ir.Value) -> ir.Value:
        """Emit a load of the entry of `table` at the 64-bit index `place`."""
        address = self.builder.gep(self.given[table], [place], source_etype=I32)
        return self.builder.load(address, typ=I32, align=4)

    def build(self) -> ir.Module:
        """Build the LLVM module: `gemm` executes one workgroup, `run` executes many on a thread."""
        module = ir.Module(KERNEL_NAME)
        module.triple = self.triple
        tensors, floats = [t.name for t in self.graph.tensors], self.arguments.floats
        tensors += self.tables
        types: list[Any] = [POINTER] * (len(tensors) + 3)
        types += [KINDS[kind] for kind in self.arguments.float_kinds.values()]
        types += [I64] * (len(self.parameters) + 1)
        function = ir.Function(module, ir.FunctionType(VOID, types), KERNEL_NAME)
        function.attributes.add("nounwind")
        function.attributes.add("noinline")
        names = ["control", "slot", *tensors, "buffers", *floats, *self.parameters, "workgroup"]
        self.given: dict[str, Any] = {}
        for name, argument in zip(names, function.args, strict=True):
            argument.name = name
            self.given[name] = argument
        # C and D are not `noalias`, because they may be the same array. The workspace is not
        # `noalias`, because other threads write it.
        alone = [t.name for t in self.graph.tensors if t.role in (Role.INPUT, Role.TABLE)]
        for name in (*alone, *self.tables, "buffers"):
            self.given[name].add_attribute("noalias")
        self.code = LaunchCode(module, self.triple)
        self._body(function)
        self.code.run(function, RUN_NAME)
        return module

    def _body(self, function: ir.Function) -> None:
        entry = ir.IRBuilder(function.append_basic_block("entry"))
        self.builder = ir.IRBuilder(function.append_basic_block("start"))
        self.fragments = Fragments(entry)
        self.elements = Elements(self.builder, self.accumulator)
        self.sums = Arithmetic(self.builder, self.accumulator)
        self.values.clear()
        self.expressions = Expressions(
            self.builder,
            self.values,
            lambda _: None,
            self.given,
            self.bounds,
            widest=True,
            tables={t.name: partial(self._entry, t.name) for t in self.graph.parameters.tables},
            hazards=HostHazards(self),
        )
        for p in self.graph.parameters.items:
            self.values[p.symbol] = self.given[p.name]
        self.values[self.graph.workgroup.symbol] = self.given["workgroup"]
        start = self.builder.block
        self.run(self.nodes)
        self.builder.ret_void()
        entry.branch(start)

    # The following method emits records of a timeline.

    def emit_Stamp(self, node: Node, op: Stamp) -> None:
        """Emit the stores of a timeline record's words."""
        own = self.given["control"], self.given["slot"]
        clocks = HostClocks(self.builder, self.fragments, self.triple, *own)
        words = stamp_words(self, node, op, clocks)
        address, _ = self._address(node, op.destination, RECORD_WORDS)
        store_words(self.builder, words, address)

    # The following methods emit addresses, loads and stores.

    def _kind(self, dim: str) -> DType:
        """The element type of the buffer or tensor whose dimension is `dim`."""
        if dim in self.buffers:
            return self.accumulator
        return dtype(self.graph.tensor(self.tensor_of(dim)).dtype)

    def _address(self, node: Node, dim: str, width: int = 1) -> tuple[ir.Value, Any]:
        """A pointer to the element that `node` accesses along `dim`, and its guard.

        The guard is false if the element is padding. A guarded kernel checks that the `width`
        elements from this one on are inside their tensor or buffer.
        """
        index, guard = self.place(node, dim)
        b = self.builder
        if self.guarded:
            self.check_bounds(node, dim, index, guard, width)
        if dim in self.buffers:
            offset = ir.Constant(I64, self.buffers[dim])
            base = b.gep(self.given["buffers"], [offset], source_etype=I8, inbounds=True)
        else:
            base = self.given[self.tensor_of(dim)]
        size = ir.IntType(self._kind(dim).bits)
        return b.gep(base, [index], source_etype=size, inbounds=guard is True), guard

    def _when(self, guard: Any) -> Any:
        """A context manager: code that is emitted in it is executed only if `guard` is true."""
        if isinstance(guard, bool):
            guard = ir.Constant(I1, int(guard))
        return self.builder.if_then(guard)

    def _read(self, address: ir.Value, dim: str, guard: Any) -> ir.Value:
        """Emit a load of an element; the value is zero if `guard` is false (padding)."""
        if guard is True:
            return self.elements.load(address, self._kind(dim))
        slot = self.fragments.slot("read", 0, self.sums.type)
        self.builder.store(self.sums.zero, slot)
        with self._when(guard):
            self.builder.store(self.elements.load(address, self._kind(dim)), slot)
        return self.builder.load(slot, typ=self.sums.type)

    def _write(self, value: ir.Value, address: ir.Value, dim: str, guard: Any) -> None:
        """Emit a store of an element, which does nothing if `guard` is false (padding)."""
        if guard is True:
            self.elements.store(value, address, self._kind(dim))
            return
        with self._when(guard):
            self.elements.store(value, address, self._kind(dim))

    def emit_CopyElements(self, node: Node, op: ops.CopyElements) -> None:
        """Emit a copy of one element; if the source is padding, zero is stored."""
        self._one(op.width)
        source, readable = self._address(node, op.source)
        target, writable = self._address(node, op.destination)
        if self._finished(op):
            value = Elements(self.builder, self.result).load(source, self.result)
            with self._when(writable):
                kind = self._kind(op.destination)
                Elements(self.builder, self.result).store(value, target, kind)
            return
        self._write(self._read(source, op.source, readable), target, op.destination, writable)

    def _finished(self, op: ops.CopyElements) -> bool:
        """Whether `op` stores values that the epilogue computed in another format than the sums.

        `op` then copies from accumulators to an output. The buffer of accumulators then holds the
        bits of these values, which must not be converted as numbers of the sums' type.
        """
        if op.source not in self.buffers or op.destination in self.buffers:
            return False
        output = self.graph.tensor(self.tensor_of(op.destination)).role is Role.OUTPUT
        return output and self._as_bits(self.result)

    def _as_bits(self, made: DType) -> bool:
        """Whether the buffer of accumulators holds results of type `made` as their bits.

        Otherwise it holds them as numbers of the accumulators' type. It holds bits if `made` is a
        float and the sums are integers, if `made` is an integer and the sums are floats, and if
        `made` is an 8-bit float.
        """
        return made.is_small_float or made.is_float != self.accumulator.is_float

    @property
    def result(self) -> DType:
        """The type of the epilogue's result, before its conversion to the element type of D."""
        gemm = self.graph.gemm
        return dtype(gemm.epilogue.kinds(gemm.accumulator, gemm.out_dtype or gemm.dtype).result)

    def emit_FillElements(self, node: Node, op: ops.FillElements) -> None:
        """Emit a store of one element: zero, or the identity of a reduction, as -inf for `max`."""
        self._one(op.width)
        target, writable = self._address(node, op.destination)
        if not op.reduce:
            self._write(self.sums.zero, target, op.destination, writable)
            return
        kind = self._kind(op.destination)
        with self._when(writable):
            first = ir.Constant(KINDS[kind.name], IDENTITIES[op.reduce])
            Elements(self.builder, kind).store(first, target, kind)

    @staticmethod
    def _one(width: int) -> None:
        """Raise CodegenError unless `width` is 1; LLVM itself vectorises element-wise CPU code."""
        if width != 1:
            raise CodegenError(
                f"an operation has width={width}, but the CPU target supports only width=1; lower "
                "the graph with LowerToHost"
            )

    # The following methods emit operations on registers.

    def _type(self, width: int) -> Any:
        scalar = self.sums.type
        return scalar if width == 1 else ir.VectorType(scalar, width)

    def _slot(self, node: Node, name: str, dims: tuple[str, ...], width: int) -> ir.Value:
        number = self.register(node, dims, 1)
        return self.fragments.slot(f"{name}.{width}", number, self._type(width))

    def _splat(self, value: ir.Value, width: int) -> ir.Value:
        if width == 1:
            return value
        b, empty = self.builder, ir.Constant(self._type(width), ir.Undefined)
        first = b.insert_element(empty, value, ir.Constant(I32, 0))
        mask = ir.Constant(ir.VectorType(I32, width), [0] * width)
        return b.shuffle_vector(first, empty, mask)

    def emit_LoadFragment(self, node: Node, op: ops.LoadFragment) -> None:
        """Emit a load of a vector from a buffer, or a broadcast of one element to every lane."""
        vector = op.width > 1 and op.form != "broadcast"
        address, guard = self._address(node, op.source, op.width if vector else 1)
        if not vector:
            value = self._splat(self._read(address, op.source, guard), op.width)
        else:
            value = self.builder.load(
                address, typ=self._vector(op.source, op.width, guard), align=self._align(op.width)
            )
        self.builder.store(value, self._slot(node, op.fragment, op.registers, op.width))

    def emit_StoreFragment(self, node: Node, op: ops.StoreFragment) -> None:
        """Emit a store of a vector to a buffer, or of one element to a buffer or tensor."""
        address, guard = self._address(node, op.destination, op.width)
        slot = self._slot(node, op.fragment, op.registers, op.width)
        value = self.builder.load(slot, typ=self._type(op.width))
        if op.width == 1:
            self._write(value, address, op.destination, guard)
            return
        self._vector(op.destination, op.width, guard)
        self.builder.store(value, address, align=self._align(op.width))

    def _vector(self, dim: str, width: int, guard: Any) -> Any:
        """The LLVM type of a vector of `width` elements.

        Raises:
            CodegenError: `dim` is no buffer, or the access has a guard.
        """
        if dim not in self.buffers or guard is not True:
            raise CodegenError(
                f"a vector access uses '{dim}', but on the CPU it may use only buffers, without a "
                "guard; lower the graph with LowerToHost"
            )
        return self._type(width)

    def _align(self, width: int) -> int:
        return min(LINE, width * self.accumulator.bytes)

    def emit_ReduceFragment(self, node: Node, op: ops.ReduceFragment) -> None:
        """Emit an atomic addition of one accumulator element to memory."""
        self._one(op.width)
        address, guard = self._address(node, op.destination)
        value = self.builder.load(
            self._slot(node, op.fragment, op.registers, op.width), typ=self._type(1)
        )
        with self._when(guard):
            self.sums.atomic_add(address, value)

    def emit_AccumulateFragment(self, node: Node, op: ops.AccumulateFragment) -> None:
        """Emit an addition of one element in memory to an accumulator element."""
        self._one(op.width)
        address, guard = self._address(node, op.source)
        slot = self._slot(node, op.fragment, op.registers, op.width)
        value = self._read(address, op.source, guard)
        total = self.sums.add(self.builder.load(slot, typ=self._type(1)), value)
        self.builder.store(total, slot)

    def emit_ApplyFragment(self, node: Node, op: ops.ApplyFragment) -> None:
        """Emit the operations of an epilogue function, for one element of D."""
        self._one(op.width)
        gemm, b = self.graph.gemm, self.builder
        out = gemm.out_dtype or gemm.dtype
        emit = ElementwiseEmitter(b, gpu=False, fast=False)
        kinds = op.function.kinds(gemm.accumulator, out).operands
        slot = self._slot(node, op.fragment, op.registers, op.width)
        values: dict[str, Any] = {**self.indices_of(node, op)}
        for name, number in self.sums_of(node, op).items():
            own = self.fragments.slot(f"{op.fragment}.1", number, self._type(1))
            values[name] = b.load(own, typ=self._type(1))
        for operand in (*op.function.scalars, *op.function.tensors):
            tensor, kind = tensor_of(operand.name), kinds[operand.name]
            if operand.is_scalar:
                values[operand.name] = self.given[operand.name]
            elif tensor in (*op.sources, *op.elements):
                values[operand.name] = self._operand(node, tensor, kind, op)
            else:
                values[operand.name] = emit.constant(0, kind)
        outputs, result = op.function.emit(emit, values, gemm.accumulator, out)
        self._store_outputs(node, op, outputs)
        made = dtype(op.function.kinds(gemm.accumulator, out).result)
        if self._as_bits(made):
            if made.bits < self.accumulator.bits:
                result = b.zext(result, ir.IntType(self.accumulator.bits))
            result = b.bitcast(result, self._type(1))
        else:
            result = Arithmetic(b, self.accumulator).convert(result, made)
        b.store(result, slot)

    def _store_outputs(self, node: Node, op: ops.ApplyFragment, values: Mapping[str, Any]) -> None:
        """Emit stores of the epilogue's outputs besides D, except to padding.

        An output that reduces rows is loaded, combined with the new value, and stored.

        Args:
            node: the node of the operation `op` in the control graph.
            op: the operation that applies the epilogue.
            values: the values of the outputs, by name.
        """
        gemm = self.graph.gemm
        kinds = op.function.kinds(gemm.accumulator, gemm.out_dtype or gemm.dtype).outputs
        emit = ElementwiseEmitter(self.builder, gpu=False, fast=False)
        for output in op.function.outputs:
            tensor, value = output.name, values[output.name]
            address, guard = self._address(node, tensor)
            with self._when(guard):
                elements = Elements(self.builder, dtype(kinds[tensor]))
                if output.reduce:
                    before = elements.load(address, self._kind(tensor))
                    on = Algebra(kinds[tensor], emit)
                    value = combined(output.reduce, on, before, value)
                elements.store(value, address, self._kind(tensor))

    def _operand(self, node: Node, tensor: str, kind: str, op: ops.ApplyFragment) -> Any:
        """Emit a load of an element of an epilogue operand; 0 for padding or an operand not passed.

        Args:
            node: the node of the operation `op` in the control graph.
            tensor: the tensor of the operand.
            kind: the type of the loaded value.
            op: the operation that applies the epilogue.
        """
        b = self.builder
        if tensor in op.elements:
            address, guard = self.given[tensor], True
        else:
            address, guard = self._address(node, tensor)
        if tensor in op.optional:
            given = self.values[index_symbol(read_of(tensor))]
            there = b.icmp_unsigned("!=", given, ir.Constant(given.type, 0))
            guard = (
                there if guard is True else b.and_(there, guard) if guard is not False else guard
            )
        elements = Elements(b, dtype(kind))
        if guard is True:
            return elements.load(address, self._kind(tensor))
        slot = self.fragments.slot(f"read.{kind}", 0, KINDS[kind])
        b.store(ir.Constant(KINDS[kind], 0), slot)
        with self._when(guard):
            b.store(elements.load(address, self._kind(tensor)), slot)
        return b.load(slot, typ=KINDS[kind])

    def emit_MultiplyFragments(self, node: Node, op: ops.MultiplyFragments) -> None:
        """Emit a multiplication and addition of vectors.

        `fma.f32x16` rounds once, `multiply-add.f32x16` twice; `multiply-add.i32x16` wraps at 2^32.
        """
        instruction, _, shape = op.instruction.partition(".")
        lanes = int(shape.partition("x")[2])
        names = ((op.a, op.a_registers), (op.b, op.b_registers), (op.accumulator, op.registers))
        slots = [self._slot(node, name, registers, lanes) for name, registers in names]
        a, b, total = (self.builder.load(slot, typ=self._type(lanes)) for slot in slots)
        match instruction:
            case "fma":
                suffix = f"f{self.accumulator.bits}"
                name = f"llvm.fma.{suffix}" if lanes == 1 else f"llvm.fma.v{lanes}{suffix}"
                result = call_intrinsic(self.builder, name, self._type(lanes), [a, b, total])
            case "multiply-add":
                result = self.sums.add(total, self.sums.multiply(a, b))
            case _:
                raise CodegenError(
                    f"the CPU has no instruction '{op.instruction}'; use fma or multiply-add"
                )
        self.builder.store(result, slots[2])
