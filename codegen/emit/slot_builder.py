"""`SlotBuilder`: an LLVM IR builder that keeps the values of stack slots within a basic block."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

__all__ = ["SlotBuilder"]


class SlotBuilder(ir.IRBuilder):
    """An LLVM IR builder that omits most loads from and stores to stack slots (`alloca`s).

    In a basic block, `load` emits an instruction only if the block has not accessed the slot yet;
    later loads return the slot's current value. `store` only records the value, and the last value
    of each slot is stored before the block's terminator. LLVM would remove the other accesses
    itself, but slowly, since a kernel has thousands of them: wgmma reads and writes each
    accumulator in every step along k. Only `load` and `store` may use the address of a slot.

    If a block stores to a slot several times, one of the overwritten values is stored, too. A slot
    with a single store would get another register number from LLVM's pass `mem2reg`, and the PTX
    would differ from the PTX without this class.
    """

    def __init__(self, block: ir.Block) -> None:
        super().__init__(block)
        self._of: ir.Block = block
        """The basic block that the builder was in when it last accessed a stack slot."""
        self._values: dict[ir.AllocaInstr, ir.Value] = {}
        """The current value of each stack slot that this basic block has stored or loaded."""
        self._stored: dict[ir.AllocaInstr, ir.Value] = {}
        """For each stack slot with a pending store: the value to store at the block's end."""
        self._overwritten: set[ir.AllocaInstr] = set()
        """The stack slots for which a store of an overwritten value has been emitted."""

    def load(self, ptr: Any, name: str = "", align: Any = None, typ: Any = None) -> Any:
        """The current value of a stack slot; for any other address, emit a load."""
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
        """Current values of stack slots in the builder's basic block; empty in a new block."""
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
