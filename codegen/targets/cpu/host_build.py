"""`Build` compiles a CPU kernel to machine code, with or without checks of indices."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from codegen.emit.elements import scalar_type
from codegen.targets.cpu.code import HostCode, host_code
from codegen.targets.cpu.emit import RUN_NAME, HostWalker
from codegen.targets.cpu.machine import host
from coordgraph import KernelGraph
from coordgraph.tensors import dtype

__all__ = ["Build"]


@dataclass(frozen=True)
class Build:
    """Machine code of a CPU kernel, with the properties that its launches need.

    Attributes:
        code: the machine code.
        run: the compiled function `run`, which executes workgroups.
        operations: (kind, dimension) of each operation that can stop a launch, by its number.
        buffer_bytes: size of one thread's buffers, in bytes.
        parameters: the names of the integer arguments of `run`, in order.
    """

    code: HostCode
    run: Any
    operations: tuple[tuple[str, str], ...]
    buffer_bytes: int
    parameters: list[str]

    @classmethod
    def of(cls, lowered: KernelGraph, *, guarded: bool, foreign: bool) -> Build:
        """Compile a lowered graph.

        Args:
            lowered: the graph.
            guarded: whether the code checks every index.
            foreign: whether the graph may be wrong, so that range proofs may be wrong too.
        """
        walker = HostWalker(lowered, host().triple, guarded=guarded, foreign=foreign)
        code = host_code(str(walker.build()), quick=guarded)
        run = _prototype(walker)(code.address(RUN_NAME))
        operations = tuple(walker.operations)
        return cls(code, run, operations, walker.buffer_bytes, walker.parameters)


def _prototype(walker: HostWalker) -> Any:
    """The ctypes type of the function `run`; ctypes releases Python's GIL during a call."""
    pointers = [ctypes.c_void_p] * (len(walker.graph.tensors) + len(walker.tables) + 1)
    scalars = [scalar_type(dtype(kind)) for kind in walker.arguments.float_kinds.values()]
    integers = [ctypes.c_int64] * len(walker.parameters)
    head = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    return ctypes.CFUNCTYPE(None, *head, *pointers, *scalars, *integers)
