"""Machine code of the host from LLVM IR, through caches in the process and on disk.

The cache on disk holds the object file that LLVM emits. Its key is the text of the LLVM IR, the
host's triple, processor and features, the version of LLVM and a digest of coordgraph's sources, so
that an object file is loaded only where LLVM would emit the same one. The LLVM IR is generated
each time: that takes a quarter of the time, and the text identifies all that the code depends on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import llvmlite.binding as llvm

import codegen.cache as cache
from codegen.emit.llvm import host_machine, optimize
from codegen.lru import LRUCache

__all__ = ["HostCode", "host_code"]

KEPT_CODES = 64
"""How many compiled modules are certain to be kept in memory for kernels that are made again."""
OBJECT = "kernel.o"
"""The member of a cache entry with the object file."""


@dataclass(frozen=True, eq=False)
class HostCode:
    """Machine code in memory, and the LLVM IR that it is made of.

    Args:
        text: the LLVM IR before optimisation.
        engine: LLVM's execution engine; the code lives as long as the engine.
        from_cache: whether the object file was read from the cache on disk.
    """

    text: str
    engine: llvm.ExecutionEngine
    from_cache: bool

    def address(self, name: str) -> int:
        """The address of a function of the module."""
        return self.engine.get_function_address(name)

    @cached_property
    def assembly(self) -> str:
        """The code in the host's assembly language; the LLVM IR is compiled again for it."""
        machine = host_machine()
        return machine.emit_assembly(_optimized(self.text, machine))


_CODES: LRUCache[str, HostCode] = LRUCache(KEPT_CODES)
"""Compiled modules, by their LLVM IR."""


def _optimized(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """Parse LLVM IR and optimise it, with vectorisation and loop unrolling."""
    return optimize(text, machine, vectorize=True, unroll=True)


def host_code(text: str) -> HostCode:
    """The machine code of a module's LLVM IR; kernels with the same LLVM IR share it."""
    found = _CODES.get(text)
    if found is None:
        found = _CODES.put(text, _from_disk_or_compiled(text))
    return found


def _from_disk_or_compiled(text: str) -> HostCode:
    machine, key = host_machine(), _key(text)
    content = _cached(key)
    if content is not None:
        return HostCode(text, _loaded(content, machine), from_cache=True)
    with cache.building(key):
        content = _cached(key)  # another process may have made it meanwhile
        from_cache = content is not None
        if content is None:
            content = machine.emit_object(_optimized(text, machine))
            cache.store(key, {OBJECT: content})
    return HostCode(text, _loaded(content, machine), from_cache)


def _key(text: str) -> str:
    """The cache key of an object file: everything that LLVM makes it from."""
    return cache.key_of(
        "object file of the host",
        text,
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        str(llvm.llvm_version_info),
    )


def _cached(key: str) -> bytes | None:
    """The object file under a key, if the cache has one."""
    return (cache.load(key) or {}).get(OBJECT)


def _loaded(content: bytes, machine: llvm.TargetMachine) -> llvm.ExecutionEngine:
    """An execution engine with an object file."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(content))
    engine.finalize_object()
    return engine
