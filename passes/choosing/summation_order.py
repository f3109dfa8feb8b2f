"""`SummationOrder`: the order in which all plans of a batch-invariant product add along k.

The bits of an element of D depend on the order in which its products are added. If every plan that
may be chosen for given n and k has one order, the bits of a row of D depend neither on m nor on the
rows around it (batch invariance; He et al., Defeating Nondeterminism in LLM Inference, Thinking
Machines Lab, 2025). Tiles, clusters along m and n, and the order of tiles may differ.

Three things fix the order: the borders of the segments of k that are added up separately, the order
in which the sums of the segments are added (here always that of k), and the multiply instruction,
which adds the products of its own k elements. That an instruction gives the same bits whatever
tile it belongs to is an assumption about the hardware: tests on tensor cores found that an
instruction's result depends only on its addends (Fasi et al., Numerical behavior of NVIDIA tensor
cores, PeerJ Computer Science 7:e330, 2021).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from coordgraph import CoordGraphError, Gemm, KernelGraph
from coordgraph.interpreter.program import program
from coordgraph.verification.batch_invariance import NAME, depth_of_whole_sums
from coordgraph.verification.launch_candidates import launch_of
from coordgraph.verification.summation_orders import Products, Sum, Term, summation_orders
from passes.choosing.plan import Plan
from passes.choosing.plan_table import Flag, Table
from passes.pipeline import Pipeline
from passes.schedules.split_k import SplitK

__all__ = ["SummationOrder", "split_schedule"]


def split_schedule(segments: int) -> SplitK:
    """The schedule that adds this many segments of k, two or more, in the order of k."""
    return SplitK(splits=segments, owner="last", reduction="turnstile")


@dataclass(frozen=True)
class SummationOrder:
    """The order in which the products of an element of D are added.

    The products of a segment of k are added one instruction after another in ascending order of k,
    beginning with zero. Then the sums of the segments are added, `((s0 + s1) + s2) + …`; the
    epilogue has the result.

    Args:
        instructions: the multiply instructions by the name of their lowering, such as `wgmma`; ''
            on the CPU.
        segment: elements of k in a segment; the last one may have fewer.
        depth: elements of k that are added, including the zeros with which the last k tile is
            padded.
    """

    instructions: str
    segment: int
    depth: int

    @classmethod
    def of(cls, instructions: str, k: int, unit: int, segments: int = 1) -> SummationOrder:
        """The order for k elements with equal segments, whose borders are multiples of `unit`."""
        depth = -(-k // unit) * unit
        return cls(instructions, -(-depth // (segments * unit)) * unit, depth)

    @property
    def segments(self) -> int:
        """Number of segments."""
        return -(-self.depth // self.segment)

    @property
    def borders(self) -> tuple[int, ...]:
        """The borders of the segments along k in elements, from 0 to `depth`."""
        return (*range(0, self.depth, self.segment), self.depth)

    @property
    def pipeline(self) -> str:
        """The text of a schedule with this order, with a workgroup for every segment of a tile."""
        return "data-parallel" if self.segments == 1 else str(split_schedule(self.segments))

    def __str__(self) -> str:
        borders = ", ".join(map(str, self.borders))
        count = f"{self.segments} segment{'s' if self.segments > 1 else ''} of k"
        by = f", added by {self.instructions}" if self.instructions else ""
        return f"{count} with the borders {borders}{by}, their sums added in the order of k"

    def holds(self, table: Table) -> Flag:
        """For each plan of a table, whether it has this order."""
        tiles = np.ceil(table.k / table.tile_k)
        found = (tiles * table.tile_k == self.depth) & (table.cluster_k == 1)
        if self.segments == 1:
            return found & ~table.streams
        splits = split_schedule(self.segments)
        split = table.of_schedule([schedule == splits for schedule in table.schedules])
        share = np.ceil(tiles / self.segments) * table.tile_k
        return found & split.astype(bool) & (share == self.segment)

    def why_not(self, plan: Plan, problem: Gemm) -> str | None:
        """Why a plan does not add in this order; None if it does.

        The order is read off the scheduled graph of the plan, whatever its schedule is.

        Args:
            plan: the plan.
            problem: the problem, with values for n and k.

        Raises:
            PassError, VerifyError, ParseError: the plan cannot be applied to the problem.
        """
        tile = plan.tile[2]
        if plan.cluster[2] > 1:
            return f"the CTAs of its clusters divide k, and the order has {self}"
        if problem.k is None or -(-problem.k // tile) * tile != self.depth:
            return f"its k tiles of {tile} elements do not end at {self.depth}, as those of {self}"
        found = _order_in_graph(plan.pipeline, plan.tile, replace(problem, m=None, n=None))
        if isinstance(found, str):
            return found
        if found != self._term(tile):
            return f"in units of its k tiles of {tile} elements it adds {found}, not {self}"
        return None

    def _term(self, tile: int) -> Term | None:
        """The order in units of k tiles of `tile` elements; None if a border is inside a k tile."""
        if any(border % tile for border in self.borders):
            return None
        ends = [border // tile for border in self.borders]
        found: Term | None = None
        for first, end in pairwise(ends):
            part = Products(((first, end),))
            found = part if found is None else Sum.of(found, part)
        return found


@lru_cache(maxsize=1024)
def _order_in_graph(pipeline: str, tile: tuple[int, int, int], problem: Gemm) -> Term | str:
    """The order in which a scheduled problem adds along k; text that says why it has no fixed one.

    Args:
        pipeline: the text of the passes that schedule the problem.
        tile: elements of the macro tile along m, n and k.
        problem: the problem, with a value for k alone.
    """
    graph = Pipeline.parse(pipeline)(replace(problem, k=None).graph(tile), verify="outside")
    assert problem.k is not None
    tiles = -(-problem.k // tile[2])
    if depth_of_whole_sums(program(graph)) is not None:
        return Products(((0, tiles),))
    if (refusal := _refusal(graph)) is not None:
        return refusal
    launch = launch_of(graph, tile, (1, 1, tiles, 1), 0)
    least = {p.name: 0 for p in graph.parameters.given if p.minimum == 0}
    try:
        values = graph.parameters.launch({**least, **launch.values}, launch.tables)
        orders = {t for ts in summation_orders(program(graph), values).values() for t in ts}
    except CoordGraphError as error:
        return f"its order of additions cannot be derived: {error}"
    return orders.pop() if len(orders) == 1 else "its sums have different orders"


def _refusal(graph: KernelGraph) -> str | None:
    """The counterexample to the batch invariance of a graph; None if there is none."""
    verdict = graph.check(checks=(NAME,))[NAME]
    if verdict.refuted:
        return f"it is not batch invariant: {verdict.counterexamples[0]}"
    return None
