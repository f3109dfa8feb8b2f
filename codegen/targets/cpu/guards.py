"""Emit code that stops a launch on the CPU at a deadlock or at an index outside its tensor.

Only kernels that are compiled with `guarded=True` check indices.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from codegen.emit.expressions import Hazards
from codegen.emit.walker import Walker
from codegen.targets.cpu.control_block import LIMITS, STOPPED, Fault
from codegen.targets.cpu.launch_code import LaunchCode
from coordgraph import KernelGraph
from coordgraph.control.operations import For
from coordgraph.control.resolve import Node

__all__ = ["GuardedWalker", "HostHazards"]

I1, I32, I64 = (ir.IntType(n) for n in (1, 32, 64))
POINTER = ir.PointerType()
NESTED = 3
"""The greatest `_depth` of a loop in which unguarded kernels do not test for a stopped launch.

`_depth` counts a loop and the loops nested in this loop. Loops over the elements of a tile have a
depth of at most 3; a test in each iteration would slow them down. The enclosing loops, over k tiles
and segments, have a greater depth, and have the test.
"""


class GuardedWalker(Walker):
    """Emits CPU code that can end a workgroup early, after an error.

    Args:
        graph: a graph that is lowered for the CPU.
        guarded: whether the code checks that every index is inside its tensor, and that divisors
            and loop steps are positive.
        foreign: whether the graph may be wrong, for example edited by hand; then the code does not
            rely on proofs from the graph's sizes.
    """

    def __init__(self, graph: KernelGraph, *, guarded: bool, foreign: bool = False) -> None:
        super().__init__(graph)
        self.guarded, self.foreign = guarded, foreign
        self.operations: list[tuple[str, str]] = []
        """Operations that can stop a launch: (name of the class, dimension that it accesses).

        The position in this list identifies the operation in a launch's error record.
        """
        self.buffers: dict[str, int] = {}
        """The offset in bytes of each buffer in the memory of a thread, by the buffer's name."""
        self.given: dict[str, Any] = {}
        """The arguments of the LLVM function that executes a workgroup, by name."""
        self.code: LaunchCode
        self.node: Node
        """The node of the operation that is being emitted."""

    def emit(self, node: Node) -> None:
        """Emit one operation and the operations in its bodies."""
        outer, self.node = getattr(self, "node", node), node
        super().emit(node)
        self.node = outer

    def enter_iteration(self, node: Node) -> None:
        """Emit a test at the beginning of an iteration: end the workgroup of a stopped launch.

        Inner loops of unguarded kernels have no such test. Guarded kernels have the test in every
        loop, because a wrong graph may have endless inner loops.
        """
        if not self.guarded and _depth(node) <= NESTED:
            return
        b = self.builder
        address = b.gep(self.given["control"], [ir.Constant(I64, STOPPED)], source_etype=I64)
        stopped = b.load_atomic(address, "monotonic", 8, typ=I64)
        with b.if_then(b.icmp_unsigned("!=", stopped, ir.Constant(I64, 0)), likely=False):
            b.ret_void()

    def tensor_of(self, dim: str) -> str:
        """The tensor whose elements the dimension `dim` indexes; '' if `dim` indexes no tensor."""
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

    def require(self, condition: ir.Value, kind: Fault, node: Node, dim: str, index: Any) -> None:
        """Emit code that stops the launch with an error if `condition` is false.

        Args:
            condition: the LLVM i1 value that must be true.
            kind: the kind of the error.
            node: the operation, for the error message.
            dim: the dimension of the index, for the error message.
            index: the 64-bit index, for the error message.
        """
        b = self.builder
        tensor = ir.Constant(I64, self.limits_number(dim))
        with b.if_then(b.not_(condition), likely=False):
            number = self._number(node, dim)
            details = (ir.Constant(I64, kind), self.given["workgroup"], number, tensor, index)
            b.call(self.code.fail, [self.given["control"], *details])
            b.ret_void()

    def limits_number(self, dim: str) -> int:
        """The row of `ControlBlock.limits` with the index bounds of a tensor or a derived table.

        A derived table is computed from the tables that a call passes.

        The result is -1 for a buffer, which has no row, and for a dimension that indexes no tensor.

        Args:
            dim: the dimension of the tensor or buffer, or the name of the table.
        """
        names = [t.name for t in self.graph.tensors]
        names += [t.name for t in self.graph.parameters.tables if t.derived]
        found = self.tensor_of(dim) if dim in self.graph.coordinates else dim
        return names.index(found) if dim not in self.buffers and found in names else -1

    def limits_of(self, number: int) -> tuple[ir.Value, ir.Value]:
        """Emit loads of a tensor's first valid index, and of the index one past its last.

        `number` is the tensor's row in `ControlBlock.limits`, as `limits_number` returns it.
        """
        b = self.builder
        at = b.gep(self.given["control"], [ir.Constant(I64, LIMITS)], source_etype=I64)
        words = b.load(at, typ=POINTER)
        first, end = (
            b.load(b.gep(words, [ir.Constant(I64, n)], source_etype=I64), typ=I64)
            for n in (2 * number, 2 * number + 1)
        )
        return first, end

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
            first, end = self.limits_of(self.limits_number(dim))
        most = b.sub(end, ir.Constant(I64, width))
        inside = b.and_(b.icmp_signed(">=", index, first), b.icmp_signed("<=", index, most))
        if guard is not True:
            padding = b.not_(ir.Constant(I1, int(guard)) if isinstance(guard, bool) else guard)
            inside = b.or_(inside, padding)
        self.require(inside, Fault.BOUNDS, node, dim, index)

    def check_advance(self, node: Node, index: ir.Value, following: ir.Value) -> None:
        """Emit code that stops the launch at a loop step that is not positive, an endless loop."""
        if self.guarded:
            b = self.builder
            dim = getattr(node.op, "dim", "")
            wide = index if index.type == I64 else b.sext(index, I64)
            condition = b.icmp_signed(">", following, index)
            self.require(condition, Fault.LOOP, node, dim, wide)


class HostHazards(Hazards):
    """Checks divisors and table indices of CPU kernels, because a division by 0 ends the process.

    A guarded kernel stops the launch at a divisor that is not positive and at an index outside a
    table. Other kernels divide by 1 instead, and do not check indices of tables.

    Args:
        walker: the walker that emits the kernel.
    """

    def __init__(self, walker: GuardedWalker) -> None:
        self.walker = walker
        self.unproved = walker.guarded or walker.foreign

    def natural(self, value: ir.Value, *, chosen: bool) -> ir.Value:
        """Return the dividend; a guarded kernel stops the launch if the dividend is negative."""
        walker = self.walker
        if walker.guarded and chosen:
            positive = walker.builder.icmp_signed(">=", value, ir.Constant(value.type, 0))
            walker.require(positive, Fault.NEGATIVE, walker.node, "", value)
        return value

    def divisor(self, value: ir.Value, *, chosen: bool) -> ir.Value:
        """Emit the divisor to use: `value`, or 1 if `value` is not positive.

        A guarded kernel stops the launch if `value` is not positive.
        """
        walker, b, one = self.walker, self.walker.builder, ir.Constant(value.type, 1)
        positive = b.icmp_signed(">=", value, one)
        if walker.guarded and chosen:
            walker.require(positive, Fault.DIVISION, walker.node, "", value)
        return b.select(positive, value, one)

    def entry(self, table: str, place: ir.Value, *, chosen: bool) -> ir.Value:
        """Emit the index to load: `place`, or 0 if a guarded kernel finds it outside the table."""
        walker, b, zero = self.walker, self.walker.builder, ir.Constant(I64, 0)
        number = walker.limits_number(table)
        if not walker.guarded or number < 0:
            return place
        _, end = walker.limits_of(number)
        inside = b.and_(b.icmp_signed(">=", place, zero), b.icmp_signed("<", place, end))
        if chosen:
            walker.require(inside, Fault.TABLE, walker.node, table, place)
        return b.select(inside, place, zero)


def _depth(node: Node) -> int:
    """The greatest depth of loops nested in an operation; a loop counts itself, if not unrolled."""
    loop = isinstance(node.op, For) and not node.op.unroll
    return loop + max(map(_depth, (*node.body, *node.orelse)), default=0)
