"""Code that stops a launch on the CPU: at deadlocks and, in guarded kernels, at wrong indices."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from codegen.emit.walker import Walker
from codegen.targets.cpu.control_block import LIMITS, Fault
from codegen.targets.cpu.launch_code import LaunchCode
from coordgraph import KernelGraph
from coordgraph.control.resolve import Node

__all__ = ["GuardedWalker"]

I1, I32, I64 = (ir.IntType(n) for n in (1, 32, 64))
POINTER = ir.PointerType()


class GuardedWalker(Walker):
    """A walker whose code can end a workgroup early, after an error.

    Args:
        graph: a graph that is lowered for the CPU.
        guarded: whether the code checks every index and every step of a loop.
    """

    def __init__(self, graph: KernelGraph, *, guarded: bool) -> None:
        super().__init__(graph)
        self.guarded = guarded
        self.operations: list[tuple[str, str]] = []
        """(kind, dimension) of every operation that can stop a launch, by the operation's index."""
        self.buffers: dict[str, int] = {}
        """The offset in bytes of each buffer in the memory of a thread, by the buffer's name."""
        self.given: dict[str, Any] = {}
        """The arguments of the LLVM function that executes a workgroup, by name."""
        self.code: LaunchCode

    def tensor_of(self, dim: str) -> str:
        """The name of the tensor whose elements the dimension `dim` numbers; '' for others."""
        return getattr(self.graph.coordinates[dim], "tensor", "")

    def spin(
        self,
        node: Node,
        flag: str,
        address: ir.Value,
        value: ir.Value | None = None,
        *,
        crowded: bool = False,
    ) -> None:
        """Emit a wait until the flag at an address equals a value, or is not 0.

        Args:
            node: the operation that waits.
            flag: the dimension of the flags.
            address: the address of the flag.
            value: the value that ends the wait; None if any value but 0 ends it.
            crowded: whether more threads may wait than there are processors; if so, a waiting
                thread yields its processor to other threads.
        """
        b = self.builder
        any_value, yields = (ir.Constant(I1, int(known)) for known in (value is None, crowded))
        compare = "!=" if value is None else "=="
        value = ir.Constant(I32, 0) if value is None else value
        met = b.icmp_unsigned(compare, b.load_atomic(address, "acquire", 4, typ=I32), value)
        with b.if_then(b.not_(met)):
            shared, number = (self.given["control"], self.given["slot"]), self._number(node, flag)
            wait = (*shared, address, any_value, value, number, yields)
            with b.if_then(b.not_(b.call(self.code.wait, wait)), likely=False):
                b.ret_void()

    def _number(self, node: Node, dim: str) -> ir.Constant:
        """The number by which an error record identifies the operation `node` on `dim`."""
        operation = (node.op.kind, dim)
        if operation not in self.operations:
            self.operations.append(operation)
        return ir.Constant(I64, self.operations.index(operation))

    def _require(self, condition: ir.Value, kind: Fault, node: Node, dim: str, index: Any) -> None:
        """Emit code that stops the launch with an error if `condition` is false.

        Args:
            condition: the LLVM i1 value that must be true.
            kind: the kind of the error.
            node: the operation, for the error message.
            dim: the dimension of the index, for the error message.
            index: the 64-bit index, for the error message.
        """
        b = self.builder
        tensor = ir.Constant(I64, -1 if dim in self.buffers else self._tensor_number(dim))
        with b.if_then(b.not_(condition), likely=False):
            number = self._number(node, dim)
            details = (ir.Constant(I64, kind), self.given["workgroup"], number, tensor, index)
            b.call(self.code.fail, [self.given["control"], *details])
            b.ret_void()

    def _tensor_number(self, dim: str) -> int:
        names = [t.name for t in self.graph.tensors]
        return names.index(self.tensor_of(dim)) if self.tensor_of(dim) in names else -1

    def check_bounds(self, node: Node, dim: str, index: ir.Value, guard: Any, width: int) -> None:
        """Emit code that stops the launch if a non-padding index is outside its tensor or buffer.

        Args:
            node: the operation, for the error message.
            dim: the dimension of the tensor or buffer.
            index: the 64-bit index of the first element.
            guard: the condition that the index is no padding.
            width: how many elements the operation accesses.
        """
        b = self.builder
        if dim in self.buffers:
            shared = self.graph.coordinates[dim]
            first, end = ir.Constant(I64, 0), ir.Constant(I64, shared.fixed_size)
        else:
            words = b.load(
                b.gep(self.given["control"], [ir.Constant(I64, LIMITS)], source_etype=I64),
                typ=POINTER,
            )
            number = 2 * self._tensor_number(dim)
            first, end = (
                b.load(b.gep(words, [ir.Constant(I64, n)], source_etype=I64), typ=I64)
                for n in (number, number + 1)
            )
        last = b.add(index, ir.Constant(I64, width - 1))
        inside = b.and_(b.icmp_signed(">=", index, first), b.icmp_signed("<", last, end))
        if guard is not True:
            padding = b.not_(ir.Constant(I1, int(guard)) if isinstance(guard, bool) else guard)
            inside = b.or_(inside, padding)
        self._require(inside, Fault.BOUNDS, node, dim, index)

    def check_advance(self, node: Node, index: ir.Value, following: ir.Value) -> None:
        """Emit code that stops the launch if a loop's step is not positive, so it would not end."""
        if self.guarded:
            b = self.builder
            dim = getattr(node.op, "dim", "")
            wide = index if index.type == I64 else b.sext(index, I64)
            condition = b.icmp_signed(">", following, index)
            self._require(condition, Fault.LOOP, node, dim, wide)
