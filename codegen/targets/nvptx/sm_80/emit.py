"""Emits the LLVM module of a kernel for tensor cores: one method for each kind of operation."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from llvmlite import ir
from sympy import And, Dummy

from codegen.emit.arguments import KERNEL_NAME
from codegen.emit.elements import Arithmetic
from codegen.emit.elementwise import KINDS
from codegen.emit.expressions import Expressions
from codegen.emit.shared_memory import allocations
from codegen.emit.slot_builder import SlotBuilder
from codegen.emit.stamps import stamp_words, store_words
from codegen.emit.walker import Fragments
from codegen.targets.nvptx.map_arguments import boxes_of, map_argument
from codegen.targets.nvptx.sm_80.fragment_walker import BARRIER_BYTES
from codegen.targets.nvptx.sm_80.instructions import I1, I32, I64, Instructions, pointer
from codegen.targets.nvptx.sm_80.tabulate import TableWalker
from coordgraph import CodegenError, KernelGraph
from coordgraph.control import lowered as ops
from coordgraph.control import row_reductions as rows
from coordgraph.control import tickets
from coordgraph.control.resolve import Node
from coordgraph.control.timeline import Stamp
from coordgraph.coordinates.dimensions import Cluster, Shared, WarpNumber, Workitem
from coordgraph.elements import dtype
from coordgraph.integers import Load
from coordgraph.tensors import Role

__all__ = ["CudaWalker"]

GLOBAL, SHARED = 1, 3
"""LLVM's address-space numbers for global and for shared memory on NVIDIA GPUs."""
WARP = 32
WIDEST_COPY = 16
"""The largest number of bytes that one cp.async copies."""
SHARED_ALIGN = 1024
"""The alignment of tiles in shared memory: 1024 bytes, the period of the 128-byte swizzle."""
MAP_ALIGN = 128
"""The alignment of tensor maps in shared memory, in bytes (PTX ISA, "tensormap.cp_fenceproxy")."""
TENSOR_MAP = ir.ArrayType(ir.IntType(8), 128)
"""The LLVM type of a CUtensorMap: 128 bytes."""


def _alignment(memory: Shared, size: int) -> int:
    """The alignment in bytes of a shared-memory allocation of `size` bytes.

    The alignment is 8 for mbarriers, 1024 for tiles of a tensor, and for other allocations the
    largest power of two that divides `size`, but at least 16 and at most 128.
    """
    if memory.barriers:
        return BARRIER_BYTES
    return SHARED_ALIGN if memory.tensor else max(min(size & -size, MAP_ALIGN), WIDEST_COPY)


class CudaWalker(TableWalker):
    """Builds the LLVM module of a kernel that `LowerToTensorCores` has lowered.

    Args:
        graph: a lowered graph.
        watchdog: whether the kernel traps, instead of hanging, when a wait takes too long.
        bytes_in_flight: the number of bytes of operands, or of partial sums, that a thread loads
            before it uses them; more bytes take more registers.
    """

    def __init__(
        self, graph: KernelGraph, *, watchdog: bool = False, bytes_in_flight: int = 32
    ) -> None:
        super().__init__(graph, bytes_in_flight)
        self.watchdog = watchdog
        (workitem,) = graph.coordinates.of_kind(Workitem)
        self.threads = workitem.fixed_size
        self.cluster = prod(d.fixed_size for d in graph.coordinates.of_kind(Cluster))
        """How many CTAs a cluster has; a workgroup of the schedule is a cluster."""
        self.shared_bytes = 0
        memory = graph.coordinates.of_kind(Shared)
        found = allocations(memory, lambda shared: shared.fixed_size * self._bytes(shared.id))
        aligned = ((_alignment(home, size), names, size) for home, names, size in found)
        for align, names, size in sorted(aligned, key=lambda place: place[0]):
            first = -(-self.shared_bytes // align) * align
            self.offsets |= dict.fromkeys(names, first)
            self.shared_bytes = first + size
        copies = graph.control.of_kind(ops.CopyElements)
        self.narrow = any(c.width * self._bytes(c.source) < WIDEST_COPY for c in copies)
        self.boxes = boxes_of(graph)

    def build(self) -> ir.Module:
        """Build the LLVM module of the kernel."""
        module = ir.Module(KERNEL_NAME, context=ir.Context())
        module.triple = "nvptx64-nvidia-cuda"
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), []), KERNEL_NAME)
        self.function.calling_convention = "ptx_kernel"
        self.function.type = pointer(0)  # an opaque pointer, like every pointer in the module
        self._annotate(module, self.function)
        self.given = {}
        for tensor in self.graph.tensors:
            argument = self._add_argument(tensor.name, pointer(GLOBAL))
            if tensor.role is Role.INPUT:
                argument.add_attribute("noalias")
        for tensor, boxes in self.boxes.items():
            for number in range(len(boxes)):
                # TMA reads the tensor map in parameter memory, so it is a __grid_constant__.
                name = map_argument(tensor, number)
                argument = self._add_argument(name, TENSOR_MAP.as_pointer())
                argument.attributes.align = 64
                set.update(argument.attributes, ("byval", '"nvvm.grid_constant"'))
        for name, kind in self.arguments.float_kinds.items():
            self._add_argument(name, KINDS[kind])
        for name, kind in self.arguments.integer_types():
            self._add_argument(name, kind)
        self.shared = ir.GlobalVariable(
            module, ir.ArrayType(ir.IntType(8), 0), "shared", addrspace=SHARED
        )
        self.shared.align = SHARED_ALIGN
        self.shared.type = pointer(SHARED)
        self._body(self.function)
        return module

    def _add_argument(self, name: str, kind: ir.Type) -> ir.Argument:
        """Append an argument to the kernel; emitting an operation may add further arguments."""
        argument = ir.Argument(self.function, kind, name)
        self.function.args = (*self.function.args, argument)
        self.given[name] = argument
        return argument

    def _annotate(self, module: ir.Module, function: ir.Function) -> None:
        """Add NVVM annotations: threads of a CTA, and the size of a cluster."""
        notes = {"reqntidx": self.threads, "minctasm": 1}
        if self.cluster > 1:
            notes |= {"cluster_dim_x": self.cluster, "cluster_dim_y": 1, "cluster_dim_z": 1}
        for key, value in notes.items():
            node = module.add_metadata([function, key, ir.Constant(I32, value)])
            module.add_named_metadata("nvvm.annotations", node)

    def _body(self, function: ir.Function) -> None:
        """Emit the body of the kernel: the operations that each thread executes."""
        entry = ir.IRBuilder(function.append_basic_block("entry"))
        self.builder = SlotBuilder(function.append_basic_block("start"))
        self.fragments = Fragments(entry)
        self.ptx = self.make_instructions()
        self.sums = Arithmetic(self.builder, dtype(self.graph.gemm.accumulator))
        self.values.clear()
        self.expressions = Expressions(
            self.builder,
            self.values,
            self._magic,
            self.given,
            self.bounds,
            tables={t.name: partial(self._entry, t.name) for t in self.graph.parameters.tables},
        )
        coordinates = self.graph.coordinates
        for p in self.graph.parameters.items:
            if p.name in self.given:
                self.values[p.symbol] = self.given[p.name]
        workgroup = coordinates.symbol(self.graph.workgroup)
        self.values[workgroup] = self.ptx.block() if self.cluster == 1 else self.ptx.cluster()
        for rank in coordinates.of_kind(Cluster):
            self.values[rank.symbol] = self.ptx.rank()
        (workitem,) = coordinates.of_kind(Workitem)
        self.values[workitem.symbol] = self.ptx.thread()
        for warp in coordinates.of_kind(WarpNumber):
            lanes = ir.Constant(I32, self.threads // warp.fixed_size)
            number = self.builder.udiv(self.values[workitem.symbol], lanes)
            self.values[warp.symbol] = self.ptx.same(number)
        self.begin()
        start = self.builder.block
        self.run(self.nodes)
        self.builder.ret_void()
        entry.branch(start)

    def begin(self) -> None:
        """Hook for subclasses: called before the first operation is emitted."""

    def make_instructions(self) -> Instructions:
        """Make the object that emits PTX instructions; subclasses override this method."""
        return Instructions(self.builder)

    def _magic(self, divisor: Any) -> Any:
        """The multiplier and shift for division by `divisor`; None if the divisor may vary.

        For a divisor that is constant during a launch, the host computes multiplier and shift. The
        first division by a divisor adds both to the kernel's arguments.
        """
        if not self.arguments.uniform(divisor):
            return None
        magic = self.arguments.magic(divisor)
        if magic.multiplier not in self.given:
            self._add_argument(magic.multiplier, I64)
            self._add_argument(magic.shift, I64)
        return magic

    def enter_unrolled(self, node: Node) -> None:
        """Hide from LLVM the values that addresses of unrolled loads and stores depend on.

        Otherwise LLVM hoists the loop-invariant parts of these addresses out of the loop over
        tiles, and keeps them in dozens of registers during the accumulation. LLVM would hoist parts
        of the indices with which an epilogue computes, too.
        """
        read: set[Any] = set()
        for move in node.walk():
            match move.op:
                case ops.StoreFragment(destination=memory) | ops.AccumulateFragment(source=memory):
                    read |= self._place_symbols(move, memory)
                case ops.ApplyFragment():
                    column = (move.op.column,) if move.op.reduces else ()
                    memories = (*move.op.read_from.values(), *move.op.stores)
                    for dim in (*memories, *column, *move.op.along):
                        read |= self._place_symbols(move, dim)
                case rows.StoreRows(destination=memory) | rows.CombineRows(source=memory):
                    read |= self._place_symbols(move, memory)
                case _:
                    pass
        self._hide(read)

    @staticmethod
    def _place_symbols(node: Node, dim: str) -> set[Any]:
        """The symbols in the index along `dim`, except symbols that only select a table's entry."""
        found = node.place(dim)
        parts = (found.values[0], found.guard)
        # Each table read is replaced by a new symbol, so that the symbols in its index disappear.
        # Constants would not do: if two reads became equal constants, a divisor that is the
        # difference of the two reads would become 0.
        loads = {x for part in parts for x in part.atoms(Load)}
        reads = {x: Dummy(integer=True, nonnegative=True) for x in loads}
        return {symbol for part in parts for symbol in part.xreplace(reads).free_symbols}

    def _hide(self, symbols: set[Any]) -> None:
        """Make the values of symbols opaque to LLVM's optimiser, in the current scope."""
        for symbol in sorted(symbols & self.values.keys(), key=str):
            value = self.values[symbol]
            if not isinstance(value, int | ir.AllocaInstr):
                self.values[symbol] = self.ptx.opaque(value)

    # The following method emits records of a timeline.

    def emit_Stamp(self, node: Node, op: Stamp) -> None:
        words = stamp_words(self, node, op, self.ptx)
        address, _ = self._address(node, op.destination)
        store_words(self.builder, words, address)

    # The following methods emit copies, barriers and operations on flags.

    def _when(self, guard: Any) -> Any:
        """A context manager: code that is emitted in it is executed only if `guard` is true."""
        if isinstance(guard, bool):
            guard = ir.Constant(I1, int(guard))
        return self.builder.if_then(guard)

    def emit_CopyElements(self, node: Node, op: ops.CopyElements) -> None:
        with self._scoped():
            if self.narrow:
                # A tile takes many narrow copies, and a thread has too few registers for the
                # addresses of all copies at once, so LLVM must not compute them in advance.
                self._hide(self._place_symbols(node, op.source))
            self._copy_elements(node, op)

    def _copy_elements(self, node: Node, op: ops.CopyElements) -> None:
        """Emit the copy `op`, guarded if the destination may be padding."""
        source, inside = self._address(node, op.source)
        target, exists = self._address(node, op.destination)
        size = op.width * self._element(op.source).bytes
        whole, found = (And.make_args(node.place(d).guard) for d in (op.destination, op.source))
        if {*found} <= {*whole}:
            inside = True  # the destination's guard implies the source's guard
        if exists is True:
            self._copy(source, target, inside, size, op)
            return
        with self._when(exists):
            self._copy(source, target, inside, size, op)

    def _copy(
        self, source: ir.Value, target: ir.Value, inside: Any, size: int, op: ops.CopyElements
    ) -> None:
        """Emit a copy of `size` bytes; it stores zeros if `inside` is false (padding)."""
        if size == WIDEST_COPY and not op.asynchronous:
            self.builder.store(self._wide(source, inside), target, align=size)
            return
        inside = ir.Constant(I1, int(inside)) if isinstance(inside, bool) else inside
        if op.asynchronous and size >= 4:
            read = self.builder.select(inside, ir.Constant(I32, size), ir.Constant(I32, 0))
            self.ptx.copy_async(target, source, size, read)
            return
        if size not in (1, 2, 4):
            raise CodegenError(
                f"a synchronous copy moves {size} bytes; lower it to copies of 1, 2, 4 or "
                f"{WIDEST_COPY} bytes"
            )
        value = self.ptx.load_or_zero(source, 8 * size, inside)
        self.builder.store(value, target, align=size)

    def _wide(self, source: ir.Value, inside: Any) -> ir.Value:
        """Emit a load of `WIDEST_COPY` bytes; the value is zeros if `inside` is false (padding)."""
        kind = ir.VectorType(I32, WIDEST_COPY // 4)
        if inside is True:
            return self.builder.load(source, typ=kind, align=WIDEST_COPY)
        before = self.builder.block
        with self.builder.if_then(inside):
            loaded = self.builder.load(source, typ=kind, align=WIDEST_COPY)
            loading = self.builder.block
        found = self.builder.phi(kind)
        found.add_incoming(ir.Constant(kind, None), before)
        found.add_incoming(loaded, loading)
        return found

    def emit_FillElements(self, node: Node, op: ops.FillElements) -> None:
        size = op.width * self._element(op.destination).bytes
        kind = ir.IntType(8 * size) if size < 4 else ir.VectorType(I32, size // 4)
        target, exists = self._address(node, op.destination)
        with self._when(exists):
            self.builder.store(ir.Constant(kind, None), target, align=size)

    def emit_CommitCopies(self, node: Node, op: ops.CommitCopies) -> None:
        self.ptx.commit_copies()

    def emit_WaitCopies(self, node: Node, op: ops.WaitCopies) -> None:
        self.ptx.wait_copies(op.pending)

    def emit_Barrier(self, node: Node, op: ops.Barrier) -> None:
        if op.workitems:
            which, ranges = node.scope.resolve(op.identifier), node.scope.ranges
            number = self.expressions.widen(self.number(which, node), 32, which, ranges)
            self.ptx.barrier_of(number, op.workitems)
        else:
            self.ptx.barrier()

    def emit_SignalFlag(self, node: Node, op: ops.SignalFlag) -> None:
        flag, value = self._address(node, op.flag)[0], self.raised(node, op.turn, op.readers)
        self.ptx.signal(flag, value, f"{op.order}.{op.scope}")

    def emit_WaitFlag(self, node: Node, op: ops.WaitFlag) -> None:
        flag, value = self._address(node, op.flag)[0], self.raised(node, op.turn, op.senders)
        self.ptx.wait(flag, value, f"{op.order}.{op.scope}", watchdog=self.watchdog)

    def emit_RaiseFlag(self, node: Node, op: ops.RaiseFlag) -> None:
        self.ptx.count(self._address(node, op.flag)[0], f"{op.order}.{op.scope}")

    def emit_TakeFlag(self, node: Node, op: ops.TakeFlag) -> None:
        flag, order = self._address(node, op.flag)[0], f"{op.order}.{op.scope}"
        self.ptx.take(flag, order, watchdog=self.watchdog)

    def emit_ClearFlag(self, node: Node, op: ops.ClearFlag) -> None:
        self.ptx.clear(self._address(node, op.flag)[0])

    # The following methods emit operations on tickets.

    def emit_FetchTicket(self, node: Node, op: tickets.FetchTicket) -> None:
        counter, last = self._address(node, op.counter)[0], self.last_ticket(node, op.count)
        self.builder.store(self.ptx.ticket(counter, last), self.fragments.slot(op.ticket, 0, I32))

    def emit_PassTicket(self, node: Node, op: tickets.PassTicket) -> None:
        ticket = self.builder.load(self.fragments.slot(op.ticket, 0, I32), typ=I32)
        self.builder.store(ticket, self._address(node, op.destination)[0], align=4)

    def emit_ReadTicket(self, node: Node, op: tickets.ReadTicket) -> None:
        ticket = self.builder.load(self._address(node, op.source)[0], typ=I32, align=4)
        self.follow(node, op.dim, op.first, self.ptx.same(ticket))
