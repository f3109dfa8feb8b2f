"""Lowered operations as PTX: one method for each, indices from the coordinate graph."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from codegen.expressions import Expressions
from codegen.nvptx.instructions import F32, I1, I16, I32, I64, Instructions, pointer
from codegen.walker import Fragments, Walker
from coordgraph import CodegenError, KernelGraph
from coordgraph.control import lowered as ops
from coordgraph.control.resolve import Node
from coordgraph.coordinates.dimensions import Shared, Workitem
from coordgraph.tensors import Role, dtype

__all__ = ["KERNEL_NAME", "CudaWalker"]

KERNEL_NAME = "gemm"
GLOBAL, SHARED = 1, 3
MMA_REGISTERS = {"a": 4, "b": 2, "acc": 4}


class CudaWalker(Walker):
    """Builds the LLVM module of a kernel lowered to tensor cores.

    Args:
        graph: a lowered graph.
        watchdog: let waiting kernels trap after a while instead of hanging.
    """

    def __init__(self, graph: KernelGraph, *, watchdog: bool = False) -> None:
        super().__init__(graph)
        self.watchdog = watchdog
        (workitem,) = graph.coordinates.of_kind(Workitem)
        self.threads = workitem.fixed_size
        self.offsets: dict[str, int] = {}
        self.shared_bytes = 0
        for shared in graph.coordinates.of_kind(Shared):
            self.offsets[shared.id] = self.shared_bytes
            self.shared_bytes += shared.fixed_size * self._element(shared.id).bytes

    def build(self) -> ir.Module:
        """Walk the graph twice: the first walk finds which divisors need a multiplier."""
        self._function()
        return self._function()

    def _function(self) -> ir.Module:
        module = ir.Module(KERNEL_NAME)
        module.triple = "nvptx64-nvidia-cuda"
        names = [t.name for t in self.graph.tensors]
        types: list[ir.Type] = [pointer(GLOBAL)] * len(names)
        types += [F32] * len(self.arguments.floats)
        integers = self.arguments.integer_types()
        types += [kind for _, kind in integers]
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), types), KERNEL_NAME)
        function.calling_convention = "ptx_kernel"
        self._annotate(module, function)
        labels = [*names, *self.arguments.floats, *(name for name, _ in integers)]
        given: dict[str, ir.Value] = {}
        for label, argument in zip(labels, function.args, strict=True):
            argument.name = label
            given[label] = argument
        for tensor, argument in zip(self.graph.tensors, function.args, strict=False):
            if tensor.role is Role.INPUT:
                argument.add_attribute("noalias")
        self.given = given
        self.shared = ir.GlobalVariable(
            module, ir.ArrayType(ir.IntType(8), 0), "shared", addrspace=SHARED
        )
        self.shared.align = 1024
        self.shared.type = pointer(SHARED)  # untyped, as every pointer here
        self._body(function)
        return module

    def _annotate(self, module: ir.Module, function: ir.Function) -> None:
        for key, value in (("reqntidx", self.threads), ("minctasm", 1)):
            node = module.add_metadata([function, key, ir.Constant(I32, value)])
            module.add_named_metadata("nvvm.annotations", node)

    def _body(self, function: ir.Function) -> None:
        entry = ir.IRBuilder(function.append_basic_block("entry"))
        self.builder = ir.IRBuilder(function.append_basic_block("start"))
        self.fragments = Fragments(entry)
        self.ptx = Instructions(self.builder)
        self.values.clear()
        self.expressions = Expressions(
            self.builder,
            self.values,
            self._magic,
            self.given,
            self.bounds,
        )
        coordinates = self.graph.coordinates
        for p in self.graph.parameters.items:
            self.values[p.symbol] = self.given[p.name]
        self.values[coordinates.symbol(self.graph.workgroup)] = self.ptx.block()
        (workitem,) = coordinates.of_kind(Workitem)
        self.values[workitem.symbol] = self.ptx.thread()
        start = self.builder.block
        self.run(self.nodes)
        self.builder.ret_void()
        entry.branch(start)

    def _magic(self, divisor: Any) -> Any:
        """A multiplier for launch-time divisors; the first walk only takes note of them."""
        if not self.arguments.uniform(divisor):
            return None
        magic = self.arguments.magic(divisor)
        return magic if magic.multiplier in self.given else None

    def enter_unrolled(self, node: Node) -> None:
        """Copy what a nest of stores or loads reads, so that its addresses stay where they are.

        LLVM would take the parts of them that no loop changes out of the loop over tiles, and keep
        dozens of registers alive through the accumulation.
        """
        read: set[Any] = set()
        for move in node.walk():
            if isinstance(move.op, ops.StoreFragment | ops.AccumulateFragment):
                memory = getattr(move.op, "destination", None) or getattr(move.op, "source", "")
                found = move.place(memory)
                read |= found.values[0].free_symbols | found.guard.free_symbols
        for symbol in sorted(read & self.values.keys(), key=str):
            if not isinstance(self.values[symbol], int):
                self.values[symbol] = self.ptx.opaque(self.values[symbol])

    # Memory

    def _element(self, dim: str) -> Any:
        tensor = getattr(self.graph.coordinates[dim], "tensor", "")
        return dtype(self.graph.tensor(tensor).dtype)

    def _address(self, node: Node, dim: str) -> tuple[ir.Value, Any]:
        """Pointer to an element of a tensor or of shared memory, and its guard."""
        index, guard = self.place(node, dim)
        size = self._element(dim).bytes
        b = self.builder
        if dim in self.offsets:
            narrow = b.trunc(index, I32)
            offset = b.add(b.mul(narrow, ir.Constant(I32, size)), ir.Constant(I32, self.offsets[dim]))
            return b.gep(self.shared, [offset], source_etype=ir.IntType(8)), guard
        offset = b.mul(index, ir.Constant(I64, size))
        return b.gep(self.given[dim], [offset], source_etype=ir.IntType(8)), guard

    def _when(self, guard: Any) -> Any:
        """A context for what happens only where the guard holds."""
        if isinstance(guard, bool):
            guard = ir.Constant(I1, int(guard))
        return self.builder.if_then(guard)

    def emit_CopyElements(self, node: Node, op: ops.CopyElements) -> None:
        source, inside = self._address(node, op.source)
        target, exists = self._address(node, op.destination)
        size = op.width * self._element(op.source).bytes
        if exists is True:
            self._copy(source, target, inside, size, op)
            return
        with self._when(exists):
            self._copy(source, target, inside, size, op)

    def _copy(
        self, source: ir.Value, target: ir.Value, inside: Any, size: int, op: ops.CopyElements
    ) -> None:
        inside = ir.Constant(I1, int(inside)) if isinstance(inside, bool) else inside
        if op.asynchronous and size >= 4:
            read = self.builder.select(inside, ir.Constant(I32, size), ir.Constant(I32, 0))
            self.ptx.copy_async(target, source, size, read)
            return
        if size not in (2, 4):
            raise CodegenError(f"no synchronous copy of {size} bytes")
        value = self.ptx.load_or_zero(source, 8 * size, inside)
        self.builder.store(value, target, align=size)

    def emit_CommitCopies(self, node: Node, op: ops.CommitCopies) -> None:
        self.ptx.commit_copies()

    def emit_WaitCopies(self, node: Node, op: ops.WaitCopies) -> None:
        self.ptx.wait_copies(op.pending)

    def emit_Barrier(self, node: Node, op: ops.Barrier) -> None:
        self.ptx.barrier()

    def emit_SignalFlag(self, node: Node, op: ops.SignalFlag) -> None:
        self.ptx.signal(self._address(node, op.flag)[0])

    def emit_WaitFlag(self, node: Node, op: ops.WaitFlag) -> None:
        self.ptx.wait(self._address(node, op.flag)[0], watchdog=self.watchdog)

    def emit_ClearFlag(self, node: Node, op: ops.ClearFlag) -> None:
        self.ptx.clear(self._address(node, op.flag)[0])

    # Registers

    def _slots(self, node: Node, name: str, dims: tuple[str, ...], width: int) -> list[ir.Value]:
        first = self.register(node, dims, width)
        kind = F32 if name == "acc" else I32
        return [self.fragments.slot(name, first + i, kind) for i in range(width)]

    def _load_slots(self, slots: list[ir.Value]) -> list[ir.Value]:
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
        with self._when(guard):
            self.builder.store(self._packed(values, element.name), address, align=self._align(op, element))

    @staticmethod
    def _align(op: Any, element: Any) -> int:
        return op.width * element.bytes

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
        slots = self._slots(node, op.fragment, op.registers, op.width)
        element = self._element(op.source)
        with self._when(guard):
            loaded = self._unpacked(address, op.width, element)
            for slot, value in zip(slots, loaded, strict=True):
                if op.scale:
                    value = self.builder.fmul(value, self.given[op.scale])
                total = self.builder.fadd(self.builder.load(slot, typ=F32), value)
                self.builder.store(total, slot)

    def _unpacked(self, address: ir.Value, width: int, element: Any) -> list[ir.Value]:
        """Elements in memory as f32."""
        b, align = self.builder, width * element.bytes
        if element.name == "f32":
            kind = F32 if width == 1 else ir.VectorType(F32, width)
            whole = b.load(address, typ=kind, align=align)
            if width == 1:
                return [whole]
            return [b.extract_element(whole, ir.Constant(I32, i)) for i in range(width)]
        if width == 1:
            return [self.ptx.to_f32(b.load(address, typ=I16, align=align), element.name)]
        whole = b.load(address, typ=I32, align=align)
        halves = [b.trunc(whole, I16), b.trunc(b.lshr(whole, ir.Constant(I32, 16)), I16)]
        return [self.ptx.to_f32(half, element.name) for half in halves]
