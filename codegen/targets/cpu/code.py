"""Machine code of the host from LLVM IR, through caches in the process and on disk.

The cache on disk holds the object file that LLVM emits. The cache key of the file is a digest of
the LLVM IR, the host's triple, processor and features, the version of LLVM and coordgraph's
sources, so that an object file is loaded only if LLVM would emit the same one. The LLVM IR is
generated for every kernel, even for a kernel in the cache: generation takes a quarter of the
compilation time, and only the IR's text identifies everything that the machine code depends on.
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
"""How many of the most recently used compiled modules are kept in memory, for kernels with equal
LLVM IR."""
QUICK_LEVEL = 1
"""LLVM's optimisation level (0 to 3) for guarded kernels, which check every index."""
OBJECT = "kernel.o"
"""The name of the file with the machine code of a CPU kernel, in an entry of the disk cache."""


@dataclass(frozen=True, eq=False)
class HostCode:
    """Machine code in memory, and the LLVM IR that was compiled to it.

    Args:
        text: the LLVM IR before optimisation.
        engine: LLVM's execution engine, which owns the machine code.
        from_cache: whether the object file was read from the cache on disk.
        quick: whether LLVM optimised the code less, to save compile time.
    """

    text: str
    engine: llvm.ExecutionEngine
    from_cache: bool
    quick: bool = False

    def address(self, name: str) -> int:
        """The address of the compiled function `name`."""
        return self.engine.get_function_address(name)

    @cached_property
    def assembly(self) -> str:
        """The machine code as assembly text, for which the LLVM IR is compiled again."""
        machine = _machine(self.quick)
        return machine.emit_assembly(_optimized(self.text, machine, self.quick))


_CODES: LRUCache[tuple[str, bool], HostCode] = LRUCache(KEPT_CODES)
"""LRU cache of compiled modules, by their LLVM IR and the argument `quick` of `host_code`."""


def _machine(quick: bool) -> llvm.TargetMachine:
    return host_machine(QUICK_LEVEL if quick else 3)


def _optimized(text: str, machine: llvm.TargetMachine, quick: bool) -> llvm.ModuleRef:
    """Parse LLVM IR and optimise it, with vectorisation and loop unrolling unless `quick`."""
    level = QUICK_LEVEL if quick else 3
    return optimize(text, machine, vectorize=not quick, unroll=not quick, level=level)


def host_code(text: str, *, quick: bool = False) -> HostCode:
    """The machine code of the LLVM IR `text`; kernels with the same LLVM IR share the code.

    Args:
        text: the LLVM IR.
        quick: whether to optimise less, which saves compile time, for code that runs only a few
            times.
    """
    found = _CODES.get((text, quick))
    if found is None:
        found = _CODES.put((text, quick), _from_disk_or_compiled(text, quick))
    return found


def _from_disk_or_compiled(text: str, quick: bool) -> HostCode:
    machine, key = _machine(quick), _key(text, quick)
    content = _cached(key)
    if content is not None:
        return HostCode(text, _loaded(content, machine), True, quick)
    with cache.building(key):
        content = _cached(key)  # another process may have stored the object file meanwhile
        from_cache = content is not None
        if content is None:
            content = machine.emit_object(_optimized(text, machine, quick))
            cache.store(key, {OBJECT: content})
    return HostCode(text, _loaded(content, machine), from_cache, quick)


def _key(text: str, quick: bool = False) -> str:
    """The cache key of an object file: a digest of all inputs from which LLVM makes the file."""
    return cache.key_of(
        "object file of the host" + ", compiled quickly" * quick,
        text,
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        str(llvm.llvm_version_info),
    )


def _cached(key: str) -> bytes | None:
    """The object file that the disk cache has under `key`, or None."""
    return (cache.load(key) or {}).get(OBJECT)


def _loaded(content: bytes, machine: llvm.TargetMachine) -> llvm.ExecutionEngine:
    """An LLVM execution engine that has loaded the object file `content`."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(content))
    engine.finalize_object()
    return engine
