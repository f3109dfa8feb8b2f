"""What can stop a launch on the CPU: waits without end, and, in guarded kernels, wrong indices."""

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
    """A walker whose code can leave a workgroup early.

    Args:
        graph: a lowered graph.
        guarded: check every index and every step of a loop.
    """

    def __init__(self, graph: KernelGraph, *, guarded: bool) -> None:
        super().__init__(graph)
        self.guarded = guarded
        self.operations: list[tuple[str, str]] = []
        """Kind and dimension of every operation that can stop a launch, by its number."""
        self.buffers: dict[str, int] = {}
        """Of each buffer of a thread, the offset in bytes."""
        self.given: dict[str, Any] = {}
        """The arguments of the workgroup's function."""
        self.code: LaunchCode

    def tensor_of(self, dim: str) -> str:
        """The tensor whose elements a dimension counts."""
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
        """Wait until the flag at an address equals a value, or is not 0 if no value is given.

        `crowded`: more threads may wait than there are processors, so they yield to others.
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
        """The number of an operation on a dimension, by which an error names it."""
        operation = (node.op.kind, dim)
        if operation not in self.operations:
            self.operations.append(operation)
        return ir.Constant(I64, self.operations.index(operation))

    def _require(self, condition: ir.Value, kind: Fault, node: Node, dim: str, index: Any) -> None:
        """Stop the launch with an error where a condition does not hold."""
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
        """Stop the launch where an index that is no padding is outside its tensor or buffer."""
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
        """Stop a launch whose loop would not end, because its step is not positive."""
        if self.guarded:
            b = self.builder
            dim = getattr(node.op, "dim", "")
            wide = index if index.type == I64 else b.sext(index, I64)
            condition = b.icmp_signed(">", following, index)
            self._require(condition, Fault.LOOP, node, dim, wide)
