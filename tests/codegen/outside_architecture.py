"""Defines and registers three architectures outside the library, for tests.

`sm_8x` and `sm_9x` have device limits of their own and the library's lowerings. `sm_8y` prefers a
lowering defined here, with an option, an emitter and a function that chooses the plan; for this
lowering A and B must be aligned to 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from codegen.architectures import Architecture, register
from codegen.targets.nvptx.sm_80.emit import CudaWalker
from coordgraph import KernelGraph
from passes.choosing import Plan
from passes.choosing.choosers import Chooser
from passes.lowering import MMA_SYNC, WGMMA, LowerToTensorCores
from passes.lowering.sm_80.architecture import MmaSync

__all__ = ["MARK", "OWN_PLAN", "SM_8X", "SM_8Y", "SM_9X", "LowerWithoutWide", "register_all"]

MARK = "// emitted from outside"
OWN_PLAN = Plan((64, 64, 64), pipeline="stream-k")
SM_8X = Architecture("sm_8x", 80, 64 * 1024, (MMA_SYNC,), isa="sm_80")
SM_9X = Architecture(
    "sm_9x", 90, 128 * 1024, (WGMMA, MMA_SYNC), reduction="vector", exact=True, isa="sm_90a"
)


@dataclass(frozen=True)
class LowerWithoutWide(LowerToTensorCores):
    """The lowering for tensor cores, except that it refuses tiles with more than `widest`
    columns.
    """

    widest: int = 64

    def why_not(self, graph: KernelGraph) -> str | None:
        if any(tiling.shape[1] > self.widest for tiling in graph.tilings):
            return f"tiles are wider than widest={self.widest}"
        return super().why_not(graph)


class Narrow(MmaSync):
    instructions = "mma.sync.narrow"
    kind = LowerWithoutWide
    alignment = 16


class Marking(CudaWalker):
    """An emitter that writes a comment at the beginning of a kernel."""

    def begin(self) -> None:
        super().begin()
        nothing = ir.FunctionType(ir.VoidType(), [])
        self.builder.asm(nothing, MARK, "", [], side_effect=True)


def _own_rule(*_: Any) -> Plan:
    return OWN_PLAN


SM_8Y = Architecture("sm_8y", 89, 101376, (Narrow(), MMA_SYNC), isa="sm_89", exact=True)


def register_all() -> None:
    """Register the architectures `sm_8x`, `sm_9x` and `sm_8y` of this module."""
    register(SM_8X)
    register(SM_9X)
    own = Narrow.instructions
    register(SM_8Y, emitters={own: Marking}, choosers={own: Chooser(_own_rule)})
