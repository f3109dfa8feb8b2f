"""How the shared memory of a workgroup is divided among the ring, the output slots and the rest.

The ring has stages, each of which holds a k tile of A and of B. Output slots are the buffers
through which TMA stores D. The rest holds mbarriers, tables, tensor maps and sums. More or larger
output slots leave room for fewer stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coordgraph import KernelGraph
from coordgraph.elements import dtype
from passes.lowering.architectures import architecture_of
from passes.lowering.derived_tables import table_bytes
from passes.lowering.sm_90a.boxes import in_boxes
from passes.lowering.sm_90a.division import Division, K, M, N
from passes.lowering.sm_90a.maps import Maps
from passes.lowering.sm_90a.refusals import across_k
from passes.lowering.sm_90a.stores import STORED_CHUNK, BoxedStore
from passes.lowering.sm_90a.ticket_ring import TicketRing
from passes.lowering.sm_90a.warpgroups import ClusterSum

__all__ = [
    "BARRIER_BYTES",
    "BOXED",
    "ENOUGH_FOR_PIECES",
    "ENOUGH_STAGES",
    "MOST_OF_LEFT_B",
    "MOST_STAGES",
    "SharedRoom",
]

MOST_STAGES = 12
"""Largest number of stages of the ring of k tiles."""
ENOUGH_STAGES = {"cooperative": 4, "pingpong": 6}
"""For each value of the option `consumers`: the number of stages of the ring that is enough. With
more shared memory, another output slot of D (a staging buffer) saves more time than another stage.
Ping-pong consumers need more stages because their iterations are shorter."""
ENOUGH_FOR_PIECES = 5
"""The number of stages that is enough if each workgroup computes one piece of a tile and finishes
shares of it. With fewer, D has no output slots where that leaves room for another stage: with
five stages instead of four, four of five kernels took 2 to 6 % less time and one 1 % more; with
more than five, times changed by at most 1.5 % (H200, products with k from 31,000 to 59,000)."""
MOST_OF_LEFT_B = 128
"""Output slots are left out for tiles with B as the left operand only if a thread has at most this
many accumulators: storing whole tiles of 136x256 and 144x256 from registers, with 136 and 144
accumulators, spilled 8 bytes."""
BARRIER_BYTES, LEAST_BARRIER_BYTES = 1024, 512
"""BARRIER_BYTES: the alignment in bytes of the first tile in shared memory, which the 128-byte
swizzle needs; mbarriers, tables and tensor maps lie before that tile. LEAST_BARRIER_BYTES: number
of bytes that are reserved for mbarriers alone."""
BOXED = ("A", "B", "D")
"""The tensors for which each group of a list of products may need a tensor map of its own."""


@dataclass(frozen=True)
class SharedRoom:
    """Divides the shared memory of a workgroup among pipeline stages and output slots.

    Args:
        graph: the scheduled graph.
        divisions: how tiles of each shape are divided over workgroups and warpgroups.
        architecture: the architecture, such as `sm_90a`.
        asked: the number of stages for which the lowering is asked; 0 for as many as fit.
        enough: the number of stages beyond which an output slot saves more time than a stage.
        finishes_shares: see `passes.kit.reduce_scatter.finishes_shares`. Threads store shares of
            tiles from registers, so output slots would serve only a tile with a single piece.
    """

    graph: KernelGraph
    divisions: Sequence[Division]
    architecture: str
    asked: int
    enough: int
    finishes_shares: bool = False

    def stores(self, every: Iterable[tuple[BoxedStore, ...]]) -> tuple[BoxedStore, ...]:
        """How TMA stores D, for tiles of each shape; empty if threads store D from registers.

        A way to store D is a width of boxes and a number of output slots. The chosen way leaves the
        most stages for the ring, not counting those beyond `enough`. Boxes of one chunk (8 columns)
        count as one stage fewer: 320x112 tiles took 2 us longer on an H200 with 35 of them per
        warpgroup than with 5 wider ones and one stage fewer. Ties go to the way with the fewest
        boxes, then to the way with the most slots. With `finishes_shares` the slots are left out
        if that gives one of the first `ENOUGH_FOR_PIECES` stages, unless B is the left operand and
        a thread has more than `MOST_OF_LEFT_B` accumulators.

        Args:
            every: all ways to store D; those with boxes larger than TMA allows are left out.
        """

        def score(stores: tuple[BoxedStore, ...]) -> tuple[int, int, int]:
            enough = min(self.stages(stores), self.asked or self.enough)
            narrow = all(store.box == STORED_CHUNK for store in stores)
            boxes = sum(store.number for store in stores)
            return enough - narrow, -boxes, sum(store.slots for store in stores)

        fit = (stores for stores in every if all(store.fits_tma for store in stores))
        best = max(fit, key=score, default=())
        fits = all(not d.swapped or d.accumulators <= MOST_OF_LEFT_B for d in self.divisions)
        most = min(self.stages(()), ENOUGH_FOR_PIECES)
        return () if self.finishes_shares and fits and self.stages(best) < most else best

    def stages(self, stores: Sequence[BoxedStore]) -> int:
        """Number of stages of the ring that fit beside the output slots of `stores`."""
        graph, divisions = self.graph, self.divisions
        size = dtype(graph.gemm.dtype).bytes

        def extent(division: Division, axis: int) -> int:
            """Number of rows of A (axis M) or columns of B (axis N) that TMA loads for a tile."""
            own = division.extent(axis)
            return in_boxes(own, size) if across_k(graph.gemm, axis) else own

        elements = sum(max(extent(d, axis) * d.extent(K) for d in divisions) for axis in (M, N))
        stage_bytes = elements * size
        room = architecture_of(self.architecture).shared_bytes
        small = LEAST_BARRIER_BYTES + table_bytes(graph) + Maps.of(graph, BOXED).bytes
        small += TicketRing.bytes(graph)
        small += max(d.row_bytes(graph.gemm) for d in divisions)
        other = max(BARRIER_BYTES, -(-small // BARRIER_BYTES) * BARRIER_BYTES)
        other += max(ClusterSum.bytes(division) for division in divisions)
        other += max((store.bytes for store in stores), default=0)
        return min((room - other) // stage_bytes, self.asked or MOST_STAGES)
