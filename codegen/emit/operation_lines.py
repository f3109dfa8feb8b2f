"""Debug locations that tie LLVM instructions to the operations of a control graph.

The line number of an instruction is the number of its operation: its position in preorder, where
the kernel itself is 0. LLVM keeps locations through optimisation, and writes them as `.loc` into
PTX. Locations change no instruction.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from coordgraph.control.resolve import Node

__all__ = ["OperationLines", "operation_of_lines"]

_LOC = re.compile(r"\s*\.loc\s+\d+\s+(\d+)")
_DEBUG = re.compile(r"\s*(\.loc|\.file|\.section|\$L__tmp\d+:|\$L__func_(begin|end)\d+:|\$L__tmp)")
DEBUG_VERSION = 3
"""Version of LLVM's debug metadata format."""


class OperationLines:
    """Sets debug locations, so that each LLVM instruction names the operation that it came from.

    Args:
        nodes: the nodes of the control graph in the kernel's body, in order.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        walked = (node for root in nodes for node in root.walk())
        self.numbers = {id(node): number for number, node in enumerate(walked, start=1)}
        self._scope: Any = None
        self._locations: dict[int, Any] = {}

    @contextmanager
    def at(self, builder: ir.IRBuilder, node: Node) -> Generator[None]:
        """Give the instructions that `builder` appends next the debug location of `node`."""
        before = builder.debug_metadata
        builder.debug_metadata = self._location(builder, self.numbers[id(node)])
        try:
            yield
        finally:
            builder.debug_metadata = before

    def _location(self, builder: ir.IRBuilder, number: int) -> Any:
        module, function = builder.module, builder.function
        if self._scope is None:
            self._scope = _subprogram(module, function)
        if number not in self._locations:
            self._locations[number] = module.add_debug_info(
                "DILocation", {"line": number, "column": 1, "scope": self._scope}
            )
        return self._locations[number]


def _subprogram(module: ir.Module, function: ir.Function) -> Any:
    """Give an LLVM function the debug metadata that line numbers need; return its DISubprogram."""
    add = module.add_debug_info
    file = add("DIFile", {"filename": "operations", "directory": "."})
    unit = add(
        "DICompileUnit",
        {
            "language": ir.DIToken("DW_LANG_C"),
            "file": file,
            "producer": "coordgraph",
            "isOptimized": True,
            "emissionKind": ir.DIToken("DebugDirectivesOnly"),
        },
        is_distinct=True,
    )
    kind = add("DISubroutineType", {"types": module.add_metadata([])})
    found = add(
        "DISubprogram",
        {
            "name": function.name,
            "file": file,
            "line": 0,
            "type": kind,
            "unit": unit,
            "spFlags": ir.DIToken("DISPFlagDefinition"),
        },
        is_distinct=True,
    )
    function.set_metadata("dbg", found)
    module.add_named_metadata("llvm.dbg.cu", unit)
    warning, version = (ir.Constant(ir.IntType(32), number) for number in (2, DEBUG_VERSION))
    flag = [warning, "Debug Info Version", version]
    module.add_named_metadata("llvm.module.flags", module.add_metadata(flag))
    return found


def operation_of_lines(ptx: str) -> Iterator[tuple[str, int]]:
    """The lines of a PTX text without debug directives, each with the number of its operation.

    The number is 0 for a line that belongs to no operation, such as a declaration.
    """
    number = 0
    for line in ptx.splitlines():
        if found := _LOC.match(line):
            number = int(found[1])
        elif not _DEBUG.match(line):
            yield line, number
