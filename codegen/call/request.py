"""`PlanRequest`: everything that the choice of a plan depends on, and the plans to choose from.

`matmul` makes a `PlanRequest` from its arrays, `explain` from sizes and the name of a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

from codegen.call.alignment import alignment_of, part_bytes
from codegen.call.views import TensorView
from coordgraph import Gemm
from coordgraph.tensors import dtype
from passes.choosing import Constants, Plan, ranked, sizes
from passes.choosing.candidates import fallback
from passes.choosing.choosers import chooser_of
from passes.choosing.fixed_rules import host_plan
from passes.choosing.gpu_figures import GpuFigures
from passes.choosing.mma_sync import ranked as ranked_by_figures
from passes.choosing.pinned_orders import ROWS, pinned_order
from passes.choosing.plan_table import extents
from passes.choosing.row_order import RowOrder
from passes.choosing.summation_order import SummationOrder
from passes.lowering import Lowering, architecture_of
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["EACH", "PlanRequest", "unaligned"]

EACH, SHARED = "data-parallel", "data-parallel{persistent=true}"
"""Pipelines of simple plans. EACH launches a workgroup for every tile; in SHARED a fixed number of
persistent workgroups share the tiles."""
MOST_BY_FIGURES = 8
"""Largest number of plans that `PlanRequest.plans` yields by data-sheet rates of a GPU (its clock,
operations per cycle, memory bandwidth and so on), before the fallback plan."""


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
        invariant: whether all plans for the problem's n and k must add in one order along k, for
            every m.
    """

    gemm: Gemm
    target: str
    device: str = ""
    processors: int = 0
    ordinal: int = 0
    alignment: int = ALIGNED_BYTES
    reads_c: bool = False
    batches: int = 1
    invariant: bool = False

    @cached_property
    def any_size(self) -> Gemm:
        """The problem without its sizes, since one kernel is compiled for all sizes."""
        return replace(self.gemm, m=None, n=None, k=None)

    @cached_property
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

        The instructions are a part of the kernel's cache key.
        """
        return "" if (found := self.lowering) is None else found.instructions

    @cached_property
    def constants(self) -> Constants | None:
        """The constants of the cost model; None if the lowering or the types have no model."""
        lowering = self.lowering
        model = None if lowering is None else chooser_of(lowering.instructions).model
        return None if model is None else model(self.gemm, self.device, self.processors)

    @cached_property
    def figures(self) -> GpuFigures | None:
        """The data-sheet rates of a GPU without a cost model, by which plans are ranked.

        The result is None if the GPU has no file of such rates, if operands are not aligned to 16
        bytes, and for batch-invariant products, whose plans must not depend on m.
        """
        lowering = self.lowering
        if lowering is None or self.invariant or self.alignment < ALIGNED_BYTES:
            return None
        find = chooser_of(lowering.instructions).figures
        return None if find is None else find(self.gemm, self.device, self.processors)

    @cached_property
    def order(self) -> SummationOrder | None:
        """The order of additions that every plan must have; None if any order may be used.

        The order depends on n, k, the element types and the layout, on the multiply instructions,
        and on whether the epilogue reduces rows. The result is None if the product is not batch
        invariant, or if it sums integers, which are exact in every order, and reduces no rows.
        """
        reduces = bool(self.gemm.row_reductions)
        if not self.invariant or not (reduces or dtype(self.gemm.accumulator).is_float):
            return None
        instructions = self.instructions
        if self.lowering is not None and self.constants is None:
            # Without a cost model, a plan's kernel may use any lowering of the GPU. The last
            # lowering multiplies tensors of every alignment, so the order is pinned for its
            # instructions.
            instructions = architecture_of(self.target).lowerings[-1].instructions
        unit = dtype(self.gemm.dtype).row if self.constants is not None else self._by_rule.tile[2]
        found = pinned_order(self.gemm, instructions, unit)
        rows = RowOrder.of(instructions, self._tiled) if reduces else None
        return replace(found, rows=rows)

    @property
    def _tiled(self) -> Plan:
        """A plan with the tile that `simple_plan` has for a batch-invariant product.

        If the lowering has a cost model (wgmma), the plan is `passes.choosing.fallback`, because
        the tiles of `_by_rule` suit only mma.sync and the CPU. Otherwise it is `_by_rule`.
        """
        row = dtype(self.gemm.dtype).row
        return self._by_rule if self.constants is None else fallback(row=row)

    @property
    def simple_plan(self) -> Plan:
        """The plan that a fixed rule derives from the sizes and the number of SMs."""
        plan = self._by_rule
        if self.order is not None:
            plan = replace(self._tiled, pipeline=self.order.pipeline, workgroups=None)
        # The sizes of groups are data on the device: the number of tiles, or their depth, is not
        # known at launch, so workgroups must be persistent.
        shared = self.gemm.ragged("k") or (self.gemm.grouped and plan.pipeline == EACH)
        return replace(plan, pipeline=SHARED) if shared else plan

    @property
    def _by_rule(self) -> Plan:
        """The plan of the lowering's fixed rule; groups are taken to have average sizes."""
        size = extents(self.gemm, self.batches)
        m, n, k = (ceil(size[axis]) for axis in "mnk")
        if (lowering := self.lowering) is None:
            return host_plan(m, n, k)
        rule, row = chooser_of(lowering.instructions).rule, dtype(self.gemm.dtype).row
        # The fixed rule of a lowering splits tiles along k only if k is large, so `row` in place of
        # k gives a plan of whole tiles. The rule's tiles have the same extent along k for every k.
        if self.invariant and self.gemm.row_reductions:
            # The tile decides the order in which rows are reduced, so it must not depend on m: the
            # rule gets the m, and the single SM, for which it has its largest tile.
            return rule(ROWS[-1], n, row, 1, 1, row)
        return rule(m, n, row if self.invariant else k, self.processors, self.batches, row)

    @property
    def kind(self) -> tuple[Gemm, str, str, bool, str | None]:
        """A key that is equal for requests whose plans share their kernels.

        The items are the problem without its sizes, the target, the instructions, whether C is
        added, and the only instructions that may multiply, or None if kernels may fall back to
        others. A batch-invariant product needs the same instructions in every call.
        """
        only = None if self.order is None else self.order.instructions or None
        return self.any_size, self.target, self.instructions, self.reads_c, only

    def plans(self) -> Iterator[Plan]:
        """Candidate plans, the best first; the last plan is the fallback, `simple_plan`.

        The cost model ranks the plans before the fallback. If the lowering or the element types
        have no cost model, data-sheet rates of the GPU rank them. Without these too, the fallback
        is the only plan. If `order` is not None, all plans of the cost model and the fallback add
        in this order; `passes.choosing.order_in_graph` checks the scheduled graph of a plan for it.
        """
        if (device := self.constants) is not None:
            limits: dict[str, Any] = {"batches": self.batches, "order": self.order}
            for choice in ranked(self.gemm, device, reads_c=self.reads_c, **limits):
                yield choice.plan
        elif (figures := self.figures) is not None:
            limits = {"batches": self.batches, "reads_c": self.reads_c}
            for choice in ranked_by_figures(self.gemm, figures, MOST_BY_FIGURES, **limits):
                yield choice.plan
        yield self.simple_plan


def unaligned(problem: Gemm) -> list[tuple[str, int]]:
    """The matrices, of A and B, whose rows are not a multiple of 16 bytes long.

    Each item of the result is the name of the matrix and the number of bytes of its rows. If TMA
    boxes begin inside the rows of B, where its parts begin, B counts with `part_bytes` instead.

    A and B are taken to be contiguous arrays whose addresses are multiples of 16 bytes.
    """
    m, n, k = sizes(problem)
    n *= problem.sums
    shapes = {
        "A": (k, m) if problem.transpose_a else (m, k),
        "B": (n, k) if problem.transpose_b else (k, n),
    }
    views = {x: TensorView(0, s, (s[1], 1), problem.dtype) for x, s in shapes.items()}
    size = dtype(problem.dtype).bytes
    rows = {x: size * v.shape[1] for x, v in views.items()}
    rows["B"] = part_bytes(problem, n) or rows["B"]
    return [
        (x, rows[x])
        for x, v in views.items()
        if alignment_of(v) < ALIGNED_BYTES or rows[x] % ALIGNED_BYTES
    ]
