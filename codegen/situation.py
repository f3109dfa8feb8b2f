"""`Situation`: what decides which plan is right, and which plans it leaves.

`matmul` reads it off its arrays, `explain` makes it of sizes and a device's name; both ask it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from codegen.api import compile
from codegen.checks import TensorView
from codegen.kernel import Kernel
from coordgraph import CodegenError, Gemm, KernelGraph
from coordgraph.tensors import dtype
from passes.choosing import Constants, Plan, constants_of, rank, sizes
from passes.choosing.candidates import fallback
from passes.choosing.simple import host_plan, instructions_plan
from passes.choosing.table import extents

__all__ = ["HOPPER", "Situation", "check_grid", "compile_plan", "unaligned"]

HOPPER = "sm_90a"
EACH, SHARED = "data-parallel", "data-parallel{persistent=true}"
"""A workgroup for every tile, and tiles that workgroups share."""


@dataclass(frozen=True)
class Situation:
    """What decides which plan is right.

    Args:
        gemm: the problem, with its sizes.
        target: `cpu` or an architecture.
        device: the GPU's name, and `processors` its SMs; '' and 0 for the CPU.
        ordinal: the GPU's number.
        boxes: the copy engine takes A and B.
        reads_c: C is added.
        batches: products of a batch, or groups; where groups begin is not known.
    """

    gemm: Gemm
    target: str
    device: str = ""
    processors: int = 0
    ordinal: int = 0
    boxes: bool = True
    reads_c: bool = False
    batches: int = 1

    @property
    def any_size(self) -> Gemm:
        """The problem as kernels see it: for every size."""
        return replace(self.gemm, m=None, n=None, k=None)

    @property
    def constants(self) -> Constants | None:
        """The figures of the model; None where a simple rule chooses.

        The model knows the code for the copy engine and wgmma, and no other.
        """
        if self.target != HOPPER or not self.boxes or not _has_wgmma(self.any_size):
            return None
        return constants_of(self.device, self.processors)

    @property
    def simple_plan(self) -> Plan:
        """The plan by a simple rule."""
        size = extents(self.gemm, self.batches)
        m, n, k = (ceil(size[axis]) for axis in "mnk")
        if self.target == "cpu":
            plan = host_plan(m, n, k)
        else:
            plan = instructions_plan(m, n, k, self.processors, self.batches)
        # How many tiles groups have, or how deep they are, is data.
        shared = self.gemm.ragged("k") or (self.gemm.grouped and plan.pipeline == EACH)
        return replace(plan, pipeline=SHARED) if shared else plan

    def plans(self) -> Iterator[Plan]:
        """Plans, the best first."""
        if (device := self.constants) is not None:
            for choice in rank(self.gemm, device, batches=self.batches, reads_c=self.reads_c):
                yield choice.plan
        yield self.simple_plan


@cache
def _has_wgmma(gemm: Gemm) -> bool:
    """Whether there is code for the types."""
    return fallback().why_not(gemm) is None


def unaligned(problem: Gemm) -> list[tuple[str, int]]:
    """The operands that the copy engine does not take, and the bytes of a row of each."""
    from codegen.nvptx.tensormaps import copy_engine_takes

    m, n, k = sizes(problem)
    shapes = {
        "A": (k, m) if problem.transpose_a else (m, k),
        "B": (n, k) if problem.transpose_b else (k, n),
    }
    views = {x: TensorView(0, s, (s[1], 1), problem.dtype) for x, s in shapes.items()}
    size = dtype(problem.dtype).bytes
    return [(x, size * v.shape[1]) for x, v in views.items() if not copy_engine_takes(v)]


def compile_plan(
    plan: Plan, gemm: Gemm, target: str, *, boxes: bool = True, reads_c: bool = False
) -> Kernel:
    """The kernel of a plan, whatever its grid; sizes that `gemm` fixes are fixed in it.

    `check_grid` says whether the kernel takes the grid.

    Args:
        plan: how to multiply.
        gemm: the problem.
        target: as `codegen.compile` takes it, but for `native`.
        boxes: the copy engine takes A and B.
        reads_c: C is added.

    Raises:
        CodegenError: the target has not what the plan asks for, or not for these tensors.
        PassError, VerifyError, ParseError: the plan cannot be applied.
    """
    graph, lowering = plan.graph(gemm), None
    if target == HOPPER and boxes and plan.lowering.why_not(graph) is None:
        lowering = replace(plan.lowering, reads_c=reads_c)
        if reason := lowering.why_not(graph):
            raise CodegenError(f"'{plan.kernel}' where C is added: {reason}")
    if lowering is None and plan.asks_for:
        why = f": {_why_no_boxes(plan, graph)}" if target == HOPPER else ""
        raise CodegenError(f"'{plan.kernel}': no {plan.asks_for} on {target}{why}")
    return compile(graph, target, lowering=lowering)


def check_grid(plan: Plan, graph: KernelGraph) -> None:
    """Refuse the grid of a plan where its scheduled graph leaves none to choose.

    Raises:
        CodegenError: the plan has a grid, and the schedule fixes its own.
    """
    if plan.workgroups is not None and "workgroups" not in graph.parameters:
        raise CodegenError(
            f"'{plan}': '{plan.pipeline}' has no grid to choose; leave out 'on {plan.workgroups}'"
        )


def _why_no_boxes(plan: Plan, graph: KernelGraph) -> str:
    reason = plan.lowering.why_not(graph)
    return reason or "rows or addresses of A and B are no multiples of 16 bytes"
