"""Emits epilogue functions: loads of operands, their operations, and stores of further outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llvmlite import ir

from codegen.emit.elementwise import ElementwiseEmitter
from codegen.targets.nvptx.sm_80.fragment_walker import NARROWEST_LOAD, FragmentWalker
from coordgraph.control import lowered as ops
from coordgraph.control.resolve import Node
from coordgraph.elements import DType, dtype
from coordgraph.gemm import read_of, tensor_of
from coordgraph.integers import equal, index_symbol
from coordgraph.tensors import Role

__all__ = ["EpilogueWalker"]

SHARED_DISCOUNT = 8
"""A load of an operand from shared memory is counted as fewer bytes in flight: its number of bytes
divided by SHARED_DISCOUNT. The latency of the load is small, so ptxas issues the load just
before the use of its value."""
FAST_BYTES = 2
"""If elements of D and of all other outputs are floats of 2 bytes, the epilogue may use
approximate instructions."""


class EpilogueWalker(FragmentWalker):
    """Emits `ApplyFragment`: the epilogue function of the elements of D that a thread holds."""

    issued = 0.0
    """The sum of the bytes in flight as which loads of operands so far count; see `_count`."""

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
        # Outputs besides D are stored and reduced before D's values replace the sums. Otherwise
        # LLVM copies all sums before `wgmma.wait_group`, and ptxas then serializes wgmma.
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
        """Emit code that replaces a sum in its register by the epilogue's result.

        The register has the type of the sum. If the result has another type, such as f32 where sums
        are i32, the register holds the bits of the result.

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
        return self.both(there, guard)

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


def _identity(value: Any) -> int:
    """A dictionary key for an index: a Python integer itself, or the identity of an LLVM value."""
    return int(value) if isinstance(value, int) else id(value)
