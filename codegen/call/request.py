"""`PlanRequest`: everything that the choice of a plan depends on, and the plans chosen for it.

`matmul` makes one from its arrays, `explain` from sizes and the name of a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from codegen.call.alignment import alignment_of
from codegen.call.views import TensorView
from coordgraph import Gemm
from coordgraph.tensors import dtype
from passes.choosing import Constants, Plan, rank, sizes
from passes.choosing.choosers import chooser_of
from passes.choosing.fixed_rules import host_plan
from passes.choosing.plan_table import extents
from passes.lowering import Lowering, architecture_of
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["PlanRequest", "unaligned"]

EACH, SHARED = "data-parallel", "data-parallel{persistent=true}"
"""Pipelines of simple plans. EACH launches a workgroup for every tile; in SHARED a fixed number of
persistent workgroups share the tiles."""


@dataclass(frozen=True)
class PlanRequest:
    """The problem, the device and the operands' alignment, which decide the choice of a plan.

    Args:
        gemm: the problem, with its sizes.
        target: `cpu` or the name of an architecture.
        device: the GPU's name; '' for the CPU.
        processors: number of SMs of the GPU; 0 for the CPU.
        ordinal: the GPU's number.
        alignment: the largest power of two, up to 16, that divides the addresses and strides (in
            bytes) of A and B.
        reads_c: whether C is added.
        batches: number of products in a batch, or of groups; the sizes of groups are not known.
    """

    gemm: Gemm
    target: str
    device: str = ""
    processors: int = 0
    ordinal: int = 0
    alignment: int = ALIGNED_BYTES
    reads_c: bool = False
    batches: int = 1

    @property
    def any_size(self) -> Gemm:
        """The problem without its sizes, since one kernel is compiled for all sizes."""
        return replace(self.gemm, m=None, n=None, k=None)

    @property
    def lowering(self) -> Lowering | None:
        """The fastest lowering of the GPU for the alignment of A and B; None on the CPU.

        The lowering may still refuse the element types, or the tiles of a plan.
        """
        if self.target == "cpu":
            return None
        known = architecture_of(self.target).lowerings
        return next(each for each in known if each.why_not_aligned(self.alignment) is None)

    @property
    def instructions(self) -> str:
        """The instructions of `lowering`, such as `wgmma`; '' on the CPU.

        They are a part of the kernel's cache key.
        """
        return "" if (found := self.lowering) is None else found.instructions

    @property
    def constants(self) -> Constants | None:
        """The constants of the cost model; None if the lowering or the types have no model."""
        lowering = self.lowering
        model = None if lowering is None else chooser_of(lowering.instructions).model
        return None if model is None else model(self.gemm, self.device, self.processors)

    @property
    def simple_plan(self) -> Plan:
        """A plan that the lowering computes from sizes and number of SMs, without a cost model."""
        size = extents(self.gemm, self.batches)
        m, n, k = (ceil(size[axis]) for axis in "mnk")
        if (lowering := self.lowering) is None:
            plan = host_plan(m, n, k)
        else:
            rule, row = chooser_of(lowering.instructions).rule, dtype(self.gemm.dtype).row
            plan = rule(m, n, k, self.processors, self.batches, row)
        # The sizes of groups are data on the device: the number of tiles, or their depth, is not
        # known at launch, so workgroups must be persistent.
        shared = self.gemm.ragged("k") or (self.gemm.grouped and plan.pipeline == EACH)
        return replace(plan, pipeline=SHARED) if shared else plan

    def plans(self) -> Iterator[Plan]:
        """Candidate plans: those of the cost model, the best first, then a fallback.

        The fallback is `simple_plan`, which is computed from the sizes alone. It is the only plan
        if the lowering or the element types have no cost model.
        """
        if (device := self.constants) is not None:
            for choice in rank(self.gemm, device, batches=self.batches, reads_c=self.reads_c):
                yield choice.plan
        yield self.simple_plan


def unaligned(problem: Gemm) -> list[tuple[str, int]]:
    """The operands whose rows are not a multiple of 16 bytes, with the bytes of a row of each.

    A and B are taken to be contiguous arrays whose addresses are multiples of 16 bytes.
    """
    m, n, k = sizes(problem)
    shapes = {
        "A": (k, m) if problem.transpose_a else (m, k),
        "B": (n, k) if problem.transpose_b else (k, n),
    }
    views = {x: TensorView(0, s, (s[1], 1), problem.dtype) for x, s in shapes.items()}
    size = dtype(problem.dtype).bytes
    return [(x, size * v.shape[1]) for x, v in views.items() if alignment_of(v) < ALIGNED_BYTES]
