"""`LowerToHopper`: lowers a scheduled graph to TMA, mbarriers, warp roles and wgmma (sm_90a)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import (
    AllowNextLaunch,
    AwaitEarlierLaunch,
    ClusterBarrier,
    Counter,
    PrefetchMap,
    PublishBarriers,
    SetRegisters,
)
from coordgraph.control.lowered import Barrier
from coordgraph.control.operations import (
    Body,
    For,
    If,
    LoadTile,
    Locate,
    Operation,
    Scope,
)
from coordgraph.elements import WARPGROUP_MMA, DType, dtype
from coordgraph.gemm import GemmProblem
from coordgraph.tensors import Tensor
from coordgraph.tilings import Tiling
from passes.base import Pass
from passes.kit.reduce_scatter import SHARE, finishes_shares
from passes.lowering.architectures import architecture_of, architectures_with
from passes.lowering.control import NOTHING, leader, no_epilogue
from passes.lowering.derived_tables import add_tables
from passes.lowering.multiplying import no_instruction
from passes.lowering.sm_90a.consumers import Consumer
from passes.lowering.sm_90a.cuts import cuts
from passes.lowering.sm_90a.division import (
    HELPER_REGISTERS,
    MOST_ALONE_BY_ELEMENTS,
    Division,
    M,
    N,
    most_alone,
    swapped,
)
from passes.lowering.sm_90a.gathering import Gatherers
from passes.lowering.sm_90a.k_index import computed_once
from passes.lowering.sm_90a.maps import Maps
from passes.lowering.sm_90a.producer import load_tiles
from passes.lowering.sm_90a.refusals import (
    cut_along,
    extents,
    no_boxes,
    no_division,
    no_rows,
    no_sums,
    no_team,
    table_of_rows,
)
from passes.lowering.sm_90a.registers import no_registers, streamed
from passes.lowering.sm_90a.ring import STEP, TILES
from passes.lowering.sm_90a.roles import part
from passes.lowering.sm_90a.shared_room import BOXED, ENOUGH_STAGES, SharedRoom
from passes.lowering.sm_90a.stores import MATRIX_BITS, STORED_CHUNK, BoxedStore
from passes.lowering.sm_90a.ticket_ring import TicketRing
from passes.lowering.sm_90a.tiles import DividedTile, divided_tiles, matrix
from passes.lowering.ticket_exchange import no_dynamic_loop

__all__ = ["CONSUMERS", "LowerToHopper"]

LEAST_STAGES = 2
"""Smallest number of stages of the ring of k tiles."""
CLUSTERS = (1, 2, 4, 8)
"""The numbers of workgroups that a cluster may have."""
CONSUMERS = {"cooperative": 1, "pingpong": 2}
"""For each value of the option `consumers`: number of consumer warpgroups that alternate between
output tiles."""
PAIR = 2
"""Number of adjacent elements of a row of the wgmma result that a thread holds: 2."""


@dataclass(frozen=True)
class LowerToHopper(Pass):
    """A producer warp fills a ring of stages by TMA; consumer warpgroups multiply its tiles.

    Before: `LoadTile`, `MultiplyAccumulate` and `StoreTile` on macro tiles. After: a producer and
    consumers that execute the same loops over tiles, synchronised by mbarriers whose stage and
    phase are coordinates. With clusters, a workgroup of the schedule becomes a cluster. The
    workgroups (CTAs) of a cluster divide the macro tile, and TMA multicasts the tiles of A or B
    that several of them need.

    Args:
        architecture: `sm_90a`, or another architecture with wgmma.
        stages: number of stages of the ring, each of which holds a k tile of A and of B; 0 means as
            many as fit in shared memory.
        cluster_m, cluster_n, cluster_k: number of workgroups of a cluster along m, n or k. A
            cluster divides m, n, or both, or it divides k alone; it has at most 8 workgroups.
        vector: number of elements of C and D that one access may move, at most those of 16 bytes: 8
            for bf16, 16 for i8. With 0, or with elements of 16 bytes in total, TMA stores a D of
            16-bit elements from shared memory; else threads store D from registers.
        reads_c: whether the kernel can add C. A kernel that cannot add C has registers for larger
            tiles.
        boxed_operands: whether TMA may load operands of the epilogue: their addresses and rows are
            multiples of 16 bytes. Else threads load all operands.
        consumers: `cooperative` warpgroups divide a workgroup's part of a tile; `pingpong`
            warpgroups alternate between tiles, so that one multiplies while the other stores.
    """

    architecture: str = "sm_90a"
    stages: int = 0
    cluster_m: int = 1
    cluster_n: int = 1
    cluster_k: int = 1
    vector: int = 0
    reads_c: bool = True
    boxed_operands: bool = True
    consumers: str = "cooperative"

    name = "lower-to-hopper"
    requires = ("scheduled",)
    establishes = ("lowered",)

    def why_not(self, graph: KernelGraph) -> str | None:
        gemm, cluster = graph.gemm, self._cluster
        if not graph.tilings:
            return NOTHING
        if self.architecture not in (known := architectures_with(WARPGROUP_MMA)):
            return (
                f"architecture={self.architecture} has no wgmma; choose {' or '.join(known)}, or "
                "LowerToTensorCores"
            )
        machine = architecture_of(self.architecture)
        why = no_instruction(gemm, WARPGROUP_MMA, machine) or no_epilogue(graph, machine)
        why = why or no_sums(graph) or no_boxes(graph) or no_rows(gemm, cluster)
        if why := why or no_dynamic_loop(graph):
            return why
        if min(cluster) < 1 or prod(cluster) not in CLUSTERS:
            sizes = ", ".join(map(str, CLUSTERS))
            return f"cluster {extents(cluster)} (m x n x k): the product must be one of {sizes}"
        if self.cluster_k > 1 and prod(cluster) > self.cluster_k:
            return (
                f"cluster {extents(cluster)} (m x n x k): a cluster that divides k divides neither "
                "m nor n; choose cluster_k=1, or cluster_m=1 and cluster_n=1"
            )
        if along := cut_along(graph, self._located(graph)):
            return (
                f"groups begin at any element along k, which is contiguous in "
                f"{' and '.join(along)}, and TMA boxes begin at multiples of "
                f"{dtype(gemm.dtype).chunk} elements; give A as its transpose "
                "(transpose_a=True) and B as it is (transpose_b=False)"
            )
        if self.consumers not in CONSUMERS:
            return f"consumers={self.consumers} is unknown; choose {' or '.join(CONSUMERS)}"
        if CONSUMERS[self.consumers] > 1 and self.cluster_k > 1:
            return (
                f"cluster {extents(cluster)}: consumers={self.consumers} cannot add up the "
                "products of a cluster that divides k; divide m or n, or choose "
                "consumers=cooperative"
            )
        if CONSUMERS[self.consumers] > 1 and SHARE in graph.coordinates:
            return (
                f"consumers={self.consumers} cannot compute a tile with reduction=scatter, for "
                "which all warpgroups of a workgroup must work on one tile; choose "
                "consumers=cooperative or another reduction"
            )
        most = max(STORED_CHUNK, _stored_type(gemm).chunk)
        if not 0 <= self.vector <= most or self.vector & (self.vector - 1):
            return f"vector={self.vector} must be a power of two, at most {most}, or 0 for 16 bytes"
        return self._no_tiles(graph)

    def _no_tiles(self, graph: KernelGraph) -> str | None:
        """Why tiles of some shape cannot be multiplied; None if tiles of all shapes can."""
        cluster = self._cluster
        for tile in (tiling.summed for tiling in graph.tilings):
            if any(extent % count for extent, count in zip(tile, cluster, strict=True)):
                return (
                    f"the tile {extents(tile)} cannot be divided by a cluster of "
                    f"{extents(cluster)}; choose a tile of multiples of these numbers"
                )
        divisions = self._divisions(graph)
        for division in divisions:
            if why := no_division(graph.gemm, division) or self._no_registers(graph, division):
                return f"tile {extents(division.tile)}: {why}"
        if why := no_team(divisions):
            return why
        if (stages := self._stages(graph, divisions)) < LEAST_STAGES:
            return (
                f"{stages} stages are too few: a ring needs {LEAST_STAGES}; choose a smaller tile, "
                "or stages=0 for as many as fit"
            )
        return None

    def _divisions(self, graph: KernelGraph) -> tuple[Division, ...]:
        """How tiles are divided, one `Division` per shape, all with the same number of warpgroups.

        A single warpgroup multiplies a workgroup's part of a tile if that is possible for every
        shape; else two warpgroups divide the part, for every shape whose part can be halved.
        """
        found = tuple(self._division(graph, tiling) for tiling in graph.tilings)
        if len({division.team for division in found}) > 1:
            return tuple(replace(division, alone=0) for division in found)
        return found

    def _division(self, graph: KernelGraph, tiling: Tiling) -> Division:
        """How a tile is divided over the cluster and its warpgroups."""
        turns, kind = CONSUMERS[self.consumers], dtype(graph.gemm.dtype)
        k_major = not graph.gemm.transpose_a, graph.gemm.transpose_b
        rows, columns = (tiling.summed[axis] // self._cluster[axis] for axis in (M, N))
        # With B as the left operand, several sums of an element of D would be in different threads.
        left_b = tiling.sums == 1 and swapped(rows, columns, turns)
        c_bytes, by_elements = self._operand_bytes(graph), False
        if c_bytes:
            # If a group ends inside a TMA box of D, threads store the box, and read C element by
            # element, which takes more registers.
            cut = cuts(graph.coordinates, tiling, "D", self._located(graph))
            by_elements = left_b or bool(cut) or not self._by_boxes(graph)
            by_elements = by_elements or graph.gemm.by_elements
        sums = streamed(graph) or self.cluster_k > 1
        alone = most_alone(sums, c_bytes, by_elements)
        if not (Maps.of(graph, BOXED).tensors or Gatherers.needed_by(graph)):
            return Division(tiling, self._cluster, left_b, alone, turns, kind=kind, k_major=k_major)
        if sums:
            alone = MOST_ALONE_BY_ELEMENTS  # addresses of grouped matrices take registers as well
        registers = HELPER_REGISTERS
        return Division(
            tiling, self._cluster, left_b, alone, turns, registers, kind=kind, k_major=k_major
        )

    def _no_registers(self, graph: KernelGraph, division: Division) -> str | None:
        """Why the accumulators of a tile do not fit in the registers; None if they fit."""
        writes_maps = bool(Maps.of(graph, BOXED).tensors)
        return no_registers(graph, division, self._operand_bytes(graph), writes_maps)

    def _operand_bytes(self, graph: KernelGraph) -> int:
        """Bytes of the widest element that the epilogue reads for every element of D; 0 if none.

        Vectors count, too, if their elements are apart: their addresses take as many registers.
        """
        axes, apart = graph.gemm.axes, graph.gemm.element_steps
        many = (n for n in graph.gemm.operands if axes[n] == "mn" or n in apart)
        names = (name for name in many if name != "C" or self.reads_c)
        return max((dtype(graph.tensor(name).dtype).bytes for name in names), default=0)

    @property
    def _cluster(self) -> tuple[int, int, int]:
        """Numbers of workgroups of a cluster along m, n and k."""
        return self.cluster_m, self.cluster_n, self.cluster_k

    def _by_boxes(self, graph: KernelGraph) -> bool:
        """Whether TMA may store D: its rows and addresses are multiples of 16 bytes."""
        return not self.vector or self.vector >= _stored_type(graph.gemm).chunk

    def _room(self, graph: KernelGraph, divisions: Sequence[Division]) -> SharedRoom:
        """How the shared memory of a workgroup is divided."""
        enough = ENOUGH_STAGES[self.consumers]
        finishes = finishes_shares(graph)
        return SharedRoom(graph, divisions, self.architecture, self.stages, enough, finishes)

    def _stores(self, graph: KernelGraph, divisions: Sequence[Division]) -> tuple[BoxedStore, ...]:
        """How TMA stores D, for tiles of each shape; empty if threads store D from registers."""
        gemm = graph.gemm
        if not self._by_boxes(graph) or _stored_type(gemm).bits != MATRIX_BITS:
            return ()
        if not all(BoxedStore.fits_sums(division, gemm) for division in divisions):
            return ()
        if table_of_rows(graph, "D") or not gemm.epilogue.stores_d or not gemm.in_rows("D"):
            return ()
        every = BoxedStore.all(divisions, matrix(gemm, "D"), self._located(graph), gemm.sums)
        return self._room(graph, divisions).stores(every)

    @staticmethod
    def _located(graph: KernelGraph) -> tuple[str, ...]:
        """The coordinates that are computed once for every tile, such as its group's number."""
        found = (dim for op in graph.control.of_kind(Locate) for dim in op.dims)
        return tuple(dict.fromkeys(found))

    def _stages(self, graph: KernelGraph, divisions: Sequence[Division]) -> int:
        """Number of stages of the ring of k tiles."""
        return self._room(graph, divisions).stages(self._stores(graph, divisions))

    def apply(self, graph: KernelGraph) -> KernelGraph:
        gemm, divisions = graph.gemm, self._divisions(graph)
        division = divisions[0]  # tiles of all shapes have the same cluster and warpgroups
        stages, stores = self._stages(graph, divisions), self._stores(graph, divisions)
        maps = Maps.of(graph, _boxed(bool(stores)))
        stores = tuple(replace(store, maps=maps) for store in stores)
        with graph.edit(str(self)) as e:
            e.level = "lowered"
            c = e.coordinates
            division.add_machine(c)
            TILES.add(c, stages, "running number of a k tile")
            maps.add(e, graph.workgroup.id, division.workgroups)
            gatherers = Gatherers(graph, division, stages)
            gatherers.add(c)
            tiles = divided_tiles(c, gemm, divisions, stages, stores, maps, gatherers)
            if streamed(graph):
                e.tensors = tuple(_per_piece(t, division) for t in e.tensors)
            located = self._located(graph)
            width = min(self.vector or PAIR, PAIR)
            boxes = self.boxed_operands
            helpers = gatherers.warps + bool(maps.tensors)
            tickets = TicketRing(graph, division, helpers=helpers)
            tickets.add(c)
            work = Consumer(c, graph, tiles, stages, width, self.reads_c, boxes, located, tickets)
            by_name = {tile.name: tile for tile in tiles}

            def of(loop: For) -> tuple[DividedTile, tuple[str, ...]]:
                """The tiles that a loop over k loads, and the indices computed once per k tile."""
                first = next(op for op in loop.body if isinstance(op, LoadTile))
                own = by_name[graph.tilings.of_operation(first).accumulator]
                return own, computed_once(graph.coordinates, loop.dim, own.along_k)

            def copies(loop: For) -> tuple[Operation | None, tuple[str, ...]]:
                """The copies of gathered rows of a k tile, and indices computed once per k tile."""
                own, once = of(loop)
                return own.gathers, once

            def load(loop: For) -> Body:
                before, inside = tickets.fetch(loop)
                return (*maps.await_described(), *before, load_tiles(loop, *of(loop), inside))

            body = graph.control.root.body
            produce = tickets.produced(c, part(body, load, work.receive, work.load_operands))
            consume = work.all(body)
            describe = tickets.followed(part(body, lambda _: maps.describe(c)))
            gather = gatherers.role(body, copies, work.receive, work.load_operands, tickets)
            consumers = tickets.counted(Scope("consumers", consume))
            producer = tickets.counted(Scope("producer", produce))
            together = (ClusterBarrier(),) if division.workgroups > 1 else (Barrier(),)
            e.kernel(
                leader(
                    *TILES.initial(
                        c,
                        1 + gatherers.threads,
                        division.team * (division.workgroups // division.split),
                    ),
                    *maps.initial(c),
                    *work.initial(),
                    *tickets.initial(c),
                    *_publish(gatherers.left(_boxed(bool(stores))), maps),
                ),
                *together,
                AllowNextLaunch(),
                AwaitEarlierLaunch(),
                *add_tables(c, graph),
                If(
                    division.consuming,
                    (
                        SetRegisters(division.registers, grow=True),
                        Counter(STEP, (consumers,)),
                        *work.end(),
                    ),
                    (
                        SetRegisters(division.kept, grow=False),
                        If(
                            division.producing,
                            (Counter(STEP, (*maps.counted(producer),)),),
                        ),
                        *maps.describer(c, division, describe, tickets.counted),
                        *gather,
                    ),
                ),
                # Workgroups of a cluster write to each other's shared memory and mbarriers, so none
                # may exit before all workgroups of the cluster are done.
                *(together if division.workgroups > 1 else ()),
                workgroup=graph.control.root.workgroup,
            )
        return e.graph


def _stored_type(gemm: GemmProblem) -> DType:
    """The element type of C and D."""
    return dtype(gemm.out_dtype or gemm.dtype)


def _per_piece(tensor: Tensor, division: Division) -> Tensor:
    """Give the tensor `flags` one flag for each CTA of a cluster; leave other tensors unchanged.

    One flag for a cluster suffices unless its workgroups have different parts of a tile.
    """
    if tensor.name != "flags" or not division.different:
        return tensor
    return replace(tensor, shape=(*tensor.shape, Integer(division.workgroups)))


def _publish(boxed: Sequence[str], maps: Maps) -> Body:
    """Make the initialised mbarriers visible to TMA; prefetch tensor maps that launches pass.

    Args:
        boxed: the tensors that TMA copies.
        maps: the tensor maps that the kernel writes itself.
    """
    given = (name for name in boxed if not maps.name(name))
    return (PublishBarriers(), *map(PrefetchMap, given))


def _boxed(stores: bool) -> tuple[str, ...]:
    """The tensors that TMA copies: A and B, and D if TMA stores D."""
    return BOXED if stores else BOXED[:2]
