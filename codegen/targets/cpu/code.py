"""Compiles LLVM IR to machine code of this CPU; modules with the same text are compiled once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import llvmlite.binding as llvm

from codegen.emit.llvm import host_machine, optimize
from codegen.lru import LRUCache

__all__ = ["HostCode", "host_code"]

KEPT_CODES = 64
"""How many compiled modules are certain to be kept in memory for kernels that are made again."""


@dataclass(frozen=True, eq=False)
class HostCode:
    """The machine code of one LLVM module.

    Attributes:
        text: the LLVM IR that the code is compiled from.
        engine: LLVM's execution engine, which owns the memory of the code.
    """

    text: str
    engine: llvm.ExecutionEngine

    def address(self, name: str) -> int:
        """The address of a function of the module."""
        return self.engine.get_function_address(name)

    @cached_property
    def assembly(self) -> str:
        """The code as assembly text; it is generated at the first use of this property."""
        machine = host_machine()
        return machine.emit_assembly(_optimized(self.text, machine))


_CODES: LRUCache[str, HostCode] = LRUCache(KEPT_CODES)
"""Compiled modules, by their LLVM IR."""


def _optimized(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """Parse LLVM IR and optimise it, with vectorisation and loop unrolling."""
    return optimize(text, machine, vectorize=True, unroll=True)


def host_code(text: str) -> HostCode:
    """Compile a module's LLVM IR, or return the code that was compiled from the same text."""
    found = _CODES.get(text)
    if found is None:
        machine = host_machine()
        engine = llvm.create_mcjit_compiler(_optimized(text, machine), machine)
        engine.finalize_object()
        found = _CODES.put(text, HostCode(text, engine))
    return found
