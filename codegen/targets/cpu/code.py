"""Machine code of the host: made once for modules with the same text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import llvmlite.binding as llvm

from codegen.emit.llvm import host_machine, optimize
from codegen.lru import LRUCache

__all__ = ["HostCode", "host_code"]

KEPT_CODES = 64


@dataclass(frozen=True, eq=False)
class HostCode:
    """Machine code, which lives as long as its engine, and the LLVM IR it is made of."""

    text: str
    engine: llvm.ExecutionEngine

    def address(self, name: str) -> int:
        """Where a function begins."""
        return self.engine.get_function_address(name)

    @cached_property
    def assembly(self) -> str:
        """The code in the host's assembly language: made when it is asked for."""
        machine = host_machine()
        return machine.emit_assembly(_optimized(self.text, machine))


_CODES: LRUCache[str, HostCode] = LRUCache(KEPT_CODES)


def _optimized(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    return optimize(text, machine, vectorize=True, unroll=True)


def host_code(text: str) -> HostCode:
    """Optimised code of a module's LLVM IR; kernels that are made again share it."""
    found = _CODES.get(text)
    if found is None:
        machine = host_machine()
        engine = llvm.create_mcjit_compiler(_optimized(text, machine), machine)
        engine.finalize_object()
        found = _CODES.put(text, HostCode(text, engine))
    return found
