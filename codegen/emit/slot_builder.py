"""`SlotBuilder`: an LLVM IR builder that keeps the values of stack slots within a basic block."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

__all__ = ["SlotBuilder"]


class SlotBuilder(ir.IRBuilder):
    """An LLVM IR builder that accesses each stack slot about twice in a basic block.

    Within a block, a load from a stack slot (an `alloca`) returns the value that the block last
    stored in the slot or loaded from it. Only the last value of each slot is stored, before the
    block's terminator. LLVM would remove the other accesses too, but a kernel would have thousands
    of them: wgmma reads and writes each accumulator in every step along k. The address of a slot
    must not be used otherwise.

    LLVM's pass `mem2reg` numbers registers in another order if a slot with several stores has only
    one left. So that the PTX does not depend on this class, one overwritten value of each slot is
    stored, too.
    """

    def __init__(self, block: ir.Block) -> None:
        super().__init__(block)
        self._of: ir.Block = block
        """The block that the values of slots are valid in."""
        self._values: dict[ir.AllocaInstr, ir.Value] = {}
        """The current value of each slot that the block has stored or loaded."""
        self._stored: dict[ir.AllocaInstr, ir.Value] = {}
        """The values that the block has stored, but for which no store is emitted yet."""
        self._overwritten: set[ir.AllocaInstr] = set()
        """The slots for which a store of an overwritten value is emitted."""

    def load(self, ptr: Any, name: str = "", align: Any = None, typ: Any = None) -> Any:
        """The current value of a stack slot, or a load from any other address."""
        if not isinstance(ptr, ir.AllocaInstr):
            return super().load(ptr, name, align, typ)
        values = self._known()
        if ptr not in values:
            values[ptr] = super().load(ptr, name, align, typ)
        return values[ptr]

    def store(self, value: Any, ptr: Any, align: Any = None) -> Any:
        """Set the value of a stack slot, or emit a store to any other address."""
        if not isinstance(ptr, ir.AllocaInstr):
            return super().store(value, ptr, align)
        self._known()[ptr] = value
        if ptr in self._stored and ptr not in self._overwritten:
            self._overwritten.add(ptr)
            super().store(self._stored[ptr], ptr)
        self._stored[ptr] = value
        return None

    def _known(self) -> dict[ir.AllocaInstr, ir.Value]:
        """The values of slots that are known in the current block."""
        if self._of is not self.block:
            assert not self._stored, "the builder left a block that has no terminator yet"
            self._of = self.block
            self._values.clear()
        return self._values

    def _set_terminator(self, term: Any) -> Any:
        if self._of is self.block:
            for slot, value in self._stored.items():
                super().store(value, slot)
            self._stored.clear()
        return super()._set_terminator(term)
