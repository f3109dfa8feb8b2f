"""`LowerToHopper`: a scheduled graph for TMA, mbarrier rings, warp roles and wgmma (sm_90a)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import (
    Advance,
    AllowNextLaunch,
    AwaitEarlierLaunch,
    ClusterBarrier,
    Counter,
    ExpectBytes,
    PrefetchMap,
    PublishBarriers,
    SetRegisters,
    WaitBarrier,
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
    SetCoordinate,
)
from coordgraph.elements import WARPGROUP_MMA, dtype
from coordgraph.gemm import GemmProblem
from coordgraph.tensors import Tensor
from coordgraph.tilings import Tiling
from passes.base import Pass
from passes.kit.reduce_scatter import SHARE
from passes.lowering.architectures import architecture_of, architectures_with
from passes.lowering.control import NOTHING, leader, no_epilogue
from passes.lowering.derived_tables import add_tables, table_bytes
from passes.lowering.multiplying import no_instruction
from passes.lowering.sm_90a.boxes import GROUP_ROWS
from passes.lowering.sm_90a.consumers import Consumer
from passes.lowering.sm_90a.cuts import cuts
from passes.lowering.sm_90a.division import (
    DESCRIBER_REGISTERS,
    MMA_COLUMNS,
    MMA_M,
    MOST_ALONE_BY_ELEMENTS,
    MOST_COLUMNS,
    Division,
    K,
    M,
    N,
    most_alone,
    swapped,
)
from passes.lowering.sm_90a.maps import Maps
from passes.lowering.sm_90a.ring import EMPTY, FULL, PHASE, STEP, TILES
from passes.lowering.sm_90a.roles import part
from passes.lowering.sm_90a.stores import MATRIX_BITS, STORED_CHUNK, BoxedStore
from passes.lowering.sm_90a.tiles import DividedTile, divided_tiles, matrix
from passes.lowering.sm_90a.warpgroups import ClusterSum

__all__ = ["CONSUMERS", "MOST_STAGES", "LowerToHopper", "accumulators_beside"]

LEAST_STAGES, MOST_STAGES = 2, 12
ENOUGH_STAGES = {"cooperative": 4, "pingpong": 6}
"""More are not worth a slot for D. Those who take turns have shorter steps, and time to store."""
MOST_ACCUMULATORS = 192
"""Of a workitem: registers that products may take."""
MOST_BESIDE_C = {(2, False): 192, (4, False): 96, (2, True): 96, (4, True): 64}
"""The same where C, or another operand of the epilogue with as many elements as D, is read: by the
bytes of its elements, and whether B is the left operand, beside which they come one by one."""
MOST_BESIDE_PARTIALS, MOST_BESIDE_MAPS = 160, 96
"""The same where partial sums come and go, and where matrices have maps of their own, too."""
CLUSTERS = (1, 2, 4, 8)
CONSUMERS = {"cooperative": 1, "pingpong": 2}
"""Warpgroups that take turns."""
PAIR = 2
"""Accumulators next to each other along the right operand's columns."""
BARRIER_BYTES, LEAST_BARRIER_BYTES = 1024, 512
"""Room for barriers before the first tile, which begins at a multiple of it; and with tables."""
BOXED = ("A", "B", "D")
"""The tensors that TMA may move."""


def accumulators_beside(element_bytes: int, by_elements: bool) -> int:
    """Accumulators that a thread has room for beside what its epilogue reads.

    Args:
        element_bytes: of the widest element that is read for every element of D; 0 where none is.
        by_elements: B is the left operand of wgmma, so elements of D are read one by one.
    """
    if not element_bytes:
        return MOST_ACCUMULATORS
    return MOST_BESIDE_C[2 if element_bytes <= 2 else 4, by_elements]


@dataclass(frozen=True)
class LowerToHopper(Pass):
    """One producer warpgroup feeds a ring of TMA boxes; consumer warpgroups multiply them.

    Before: `LoadTile`, `MultiplyAccumulate` and `StoreTile` on macro tiles. After: two roles that
    walk the same schedule, tied by barriers whose stage and phase are coordinates. With a cluster
    the schedule's workgroup is a cluster of CUDA's: they divide the macro tile, walk it together,
    and bring what several of them need once, for all.

    Args:
        architecture: `sm_90a`, or another that has wgmma.
        stages: tiles in flight; 0 takes as many as fit beside D's slots.
        cluster_m, cluster_n, cluster_k: workgroups that divide a macro tile in m, n or k.
        vector: elements of C and D that may be moved at once. Those of 16 bytes, or 0, send D
            through shared memory and TMA; fewer store it from registers, in pairs or one by one.
        reads_c: the kernel can add C; without, larger tiles find registers.
        consumers: `cooperative` warpgroups divide a workgroup's part of a tile; `pingpong` ones
            take turns with whole parts, so that one multiplies while the other stores.
    """

    architecture: str = "sm_90a"
    stages: int = 0
    cluster_m: int = 1
    cluster_n: int = 1
    cluster_k: int = 1
    vector: int = 0
    reads_c: bool = True
    consumers: str = "cooperative"

    name = "lower-to-hopper"
    requires = ("scheduled",)
    establishes = ("lowered",)

    def why_not(self, graph: KernelGraph) -> str | None:
        gemm, cluster = graph.gemm, self._cluster
        if not graph.tilings:
            return NOTHING
        if self.architecture not in (known := architectures_with(WARPGROUP_MMA)):
            return f"wgmma is there on {' and '.join(known)} only, not on {self.architecture}"
        if why := no_instruction(gemm, WARPGROUP_MMA) or no_epilogue(graph):
            return why
        if sorted(cluster)[1] > 1 or prod(cluster) not in CLUSTERS:
            sizes = ", ".join(map(str, CLUSTERS))
            return f"cluster {_by(cluster)}: all but one of them must be 1, that one of {sizes}"
        if along := _cut_along(graph, self._located(graph)):
            return (
                f"groups begin anywhere along k, which is contiguous in {' and '.join(along)}, and "
                f"boxes at multiples of {dtype(gemm.dtype).chunk} elements; give A as its "
                "transpose and B as it is"
            )
        if self.consumers not in CONSUMERS:
            return f"consumers={self.consumers} is unknown; there are {', '.join(CONSUMERS)}"
        if CONSUMERS[self.consumers] > 1 and self.cluster_k > 1:
            return (
                f"cluster {_by(cluster)}: consumers={self.consumers} cannot add up the products of "
                "a cluster that divides k; divide m or n"
            )
        if CONSUMERS[self.consumers] > 1 and SHARE in graph.coordinates:
            return (
                f"consumers={self.consumers} cannot finish shares of a tile, which all warpgroups "
                "of a workgroup do together; take consumers=cooperative or a reduction other than "
                "scatter"
            )
        if not 0 <= self.vector <= STORED_CHUNK or self.vector & (self.vector - 1):
            return f"vector={self.vector} must be a power of two, at most {STORED_CHUNK}"
        return self._no_tiles(graph)

    def _no_tiles(self, graph: KernelGraph) -> str | None:
        """Why tiles of some shape cannot be multiplied, or None."""
        cluster = self._cluster
        for tile in (tiling.shape for tiling in graph.tilings):
            if any(extent % count for extent, count in zip(tile, cluster, strict=True)):
                return f"the tile {_by(tile)} cannot be divided by a cluster of {_by(cluster)}"
        divisions = self._divisions(graph)
        for division in divisions:
            if why := _no_division(graph.gemm, division) or self._no_registers(graph, division):
                return f"tile {_by(division.tile)}: {why}"
        if why := _no_team(divisions):
            return why
        if (stages := self._stages(graph, divisions)) < LEAST_STAGES:
            return f"{stages} stages are too few: a ring needs {LEAST_STAGES}"
        return None

    def _divisions(self, graph: KernelGraph) -> tuple[Division, ...]:
        """Of tiles of each shape, all over the same warpgroups.

        One warpgroup alone has a product where it can have that of every shape.
        """
        found = tuple(self._division(graph, tiling) for tiling in graph.tilings)
        if len({division.team for division in found}) > 1:
            return tuple(replace(division, alone=0) for division in found)
        return found

    def _division(self, graph: KernelGraph, tiling: Tiling) -> Division:
        """How a tile is divided over the cluster and its warpgroups."""
        turns, kind = CONSUMERS[self.consumers], dtype(graph.gemm.dtype)
        rows, columns = (tiling.shape[axis] // self._cluster[axis] for axis in (M, N))
        left_b = swapped(rows, columns, turns)
        c_bytes, by_elements = self._operand_bytes(graph), False
        if c_bytes:
            # Rows that are cut have ends of their own, and another way for D.
            cut = cuts(graph.coordinates, tiling, "D", self._located(graph))
            by_elements = left_b or bool(cut) or not self._by_boxes(graph)
        sums = _streamed(graph) or self.cluster_k > 1
        alone = most_alone(sums, c_bytes, by_elements)
        if not Maps.of(graph, BOXED).tensors:
            return Division(tiling, self._cluster, left_b, alone, turns, kind=kind)
        if sums:
            alone = MOST_ALONE_BY_ELEMENTS  # where matrices lie takes registers, too
        of_maps = DESCRIBER_REGISTERS
        return Division(tiling, self._cluster, left_b, alone, turns, of_maps, kind=kind)

    def _no_registers(self, graph: KernelGraph, division: Division) -> str | None:
        """Why the sums of a tile have no room in the registers of warpgroups, or None."""
        kind = graph.gemm.out_dtype or graph.gemm.dtype
        most = accumulators_beside(self._operand_bytes(graph), division.swapped)
        if _streamed(graph):
            written = bool(Maps.of(graph, BOXED).tensors)
            most = min(most, MOST_BESIDE_MAPS if written else MOST_BESIDE_PARTIALS)
        if division.accumulators <= most and division.columns <= MOST_COLUMNS:
            return None
        part = f"{division.extent(M)}x{division.extent(N)} of {kind}"
        if division.columns > MOST_COLUMNS:
            return (
                f"a workgroup's part {part} needs instructions of {division.columns} columns, and "
                f"wgmma has at most {MOST_COLUMNS}; halve the tile in m or n, or divide it by a "
                "larger cluster"
            )
        return (
            f"a workgroup's part {part} needs {division.accumulators} accumulator registers in "
            f"each thread of its warpgroups, and {most} fit; halve the tile in m or n, or divide "
            "it by a larger cluster"
        )

    def _operand_bytes(self, graph: KernelGraph) -> int:
        """Bytes of the widest element that the epilogue reads for every element of D, or 0."""
        axes = graph.gemm.axes
        names = (n for n in graph.gemm.operands if axes[n] == "mn" and (n != "C" or self.reads_c))
        return max((dtype(graph.tensor(name).dtype).bytes for name in names), default=0)

    @property
    def _cluster(self) -> tuple[int, int, int]:
        return self.cluster_m, self.cluster_n, self.cluster_k

    def _by_boxes(self, graph: KernelGraph) -> bool:
        """TMA may store D: rows and addresses are multiples of 16 bytes."""
        kind = dtype(graph.gemm.out_dtype or graph.gemm.dtype)
        return not self.vector or self.vector >= kind.chunk

    def _stores(self, graph: KernelGraph, divisions: Sequence[Division]) -> tuple[BoxedStore, ...]:
        """D's ways through shared memory, if it goes there."""
        kind = graph.gemm.out_dtype or graph.gemm.dtype
        if not self._by_boxes(graph) or dtype(kind).bits != MATRIX_BITS:
            return ()

        def score(stores: tuple[BoxedStore, ...]) -> tuple[int, int, int]:
            stages = self._stages_beside(graph, divisions, stores)
            enough = min(stages, self.stages or ENOUGH_STAGES[self.consumers])
            boxes = sum(store.number for store in stores)
            return enough, -boxes, sum(store.slots for store in stores)

        every = BoxedStore.all(divisions, matrix(graph.gemm, "D"), self._located(graph))
        # TMA takes no larger boxes; registers go to D by themselves then.
        return max((s for s in every if all(store.served for store in s)), key=score, default=())

    @staticmethod
    def _located(graph: KernelGraph) -> tuple[str, ...]:
        """The coordinates that are looked up for every tile."""
        found = (dim for op in graph.control.of_kind(Locate) for dim in op.dims)
        return tuple(dict.fromkeys(found))

    def _stages(self, graph: KernelGraph, divisions: Sequence[Division]) -> int:
        """Stages of the ring."""
        return self._stages_beside(graph, divisions, self._stores(graph, divisions))

    def _stages_beside(
        self, graph: KernelGraph, divisions: Sequence[Division], stores: Sequence[BoxedStore]
    ) -> int:
        """How many stages fit beside D's slots."""
        elements = sum(max(d.extent(axis) * d.extent(K) for d in divisions) for axis in (M, N))
        stage_bytes = elements * dtype(graph.gemm.dtype).bytes
        room = architecture_of(self.architecture).shared_bytes
        small = LEAST_BARRIER_BYTES + table_bytes(graph) + Maps.of(graph, BOXED).bytes
        other = max(BARRIER_BYTES, -(-small // BARRIER_BYTES) * BARRIER_BYTES)
        other += max(ClusterSum.bytes(division) for division in divisions)
        other += max((store.bytes for store in stores), default=0)
        return min((room - other) // stage_bytes, self.stages or MOST_STAGES)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        gemm, divisions = graph.gemm, self._divisions(graph)
        division = divisions[0]  # in what every division has alike
        stages, stores = self._stages(graph, divisions), self._stores(graph, divisions)
        maps = Maps.of(graph, _boxed(bool(stores)))
        stores = tuple(replace(store, maps=maps) for store in stores)
        with graph.edit(str(self)) as e:
            e.level = "lowered"
            c = e.coordinates
            division.add_machine(c)
            TILES.add(c, stages, "running number of a k tile")
            maps.add(e, graph.workgroup.id, division.workgroups)
            tiles = divided_tiles(c, gemm, divisions, stages, stores, maps)
            if _streamed(graph):
                e.tensors = tuple(_per_piece(t, division) for t in e.tensors)
            located = self._located(graph)
            width = min(self.vector or PAIR, PAIR)
            work = Consumer(c, graph, tiles, stages, width, self.reads_c, located)
            by_name = {tile.name: tile for tile in tiles}

            def load(loop: For) -> Body:
                first = next(op for op in loop.body if isinstance(op, LoadTile))
                own = by_name[graph.tilings.of_operation(first).accumulator]
                return (*maps.await_described(), _load(loop, own))

            body = graph.control.root.body
            produce = part(body, load, work.receive)
            consume = work.all(body)
            describe = part(body, lambda _: maps.describe(c), lambda _: ())
            together = (ClusterBarrier(),) if division.workgroups > 1 else (Barrier(),)
            e.kernel(
                leader(
                    *TILES.initial(c, 1, division.team * (division.workgroups // division.split)),
                    *maps.initial(c),
                    *work.initial(),
                    *_publish(stores, maps),
                ),
                *together,
                AllowNextLaunch(),
                AwaitEarlierLaunch(),
                *add_tables(c, graph),
                If(
                    division.consuming,
                    (
                        SetRegisters(division.registers, grow=True),
                        Counter(STEP, (Scope("consumers", consume),)),
                        *work.end(),
                    ),
                    (
                        SetRegisters(division.producer, grow=False),
                        If(
                            division.producing,
                            (Counter(STEP, (*maps.counted(Scope("producer", produce)),)),),
                        ),
                        *maps.described(c, division, describe),
                    ),
                ),
                # Others of the cluster still write to this workgroup's memory and barriers.
                *(together if division.workgroups > 1 else ()),
                workgroup=graph.control.root.workgroup,
            )
        return e.graph


def _cut_along(graph: KernelGraph, located: Sequence[str]) -> list[str]:
    """Which of A and B have groups that end inside their rows."""
    tiling, gemm = next(iter(graph.tilings)), graph.gemm
    columns = {"A": int(not gemm.transpose_a), "B": int(not gemm.transpose_b)}
    return [
        tensor
        for tensor, axis in columns.items()
        if f"{tensor}.{axis}" in cuts(graph.coordinates, tiling, tensor, located)
    ]


def _streamed(graph: KernelGraph) -> bool:
    """Whether partial sums come and go."""
    return any(t.name == "partials" for t in graph.tensors)


def _by(counts: tuple[int, ...]) -> str:
    return "x".join(map(str, counts))


def _no_division(gemm: GemmProblem, division: Division) -> str | None:
    """Why workgroups cannot multiply their parts of a tile, or None."""
    left, right = division.extent(division.left), division.extent(division.right)
    parts = f"a workgroup's part {division.extent(M)}x{division.extent(N)}"
    if left % MMA_M:
        return f"{parts} must be a multiple of {MMA_M} in m or in n"
    if right % MMA_COLUMNS:
        return f"{parts} must be a multiple of {MMA_COLUMNS} in m and in n"
    across_k = gemm.transpose_a if division.right == M else not gemm.transpose_b
    step = MMA_COLUMNS if across_k else division.instruction.columns
    if division.columns % step:
        return f"{parts} needs instructions of {division.columns} columns: no multiple of {step}"
    if division.extent(K) % division.kind.row:
        return f"{parts} must be a multiple of {division.kind.row} in k"
    # Across its contiguous axis an operand is shared out in whole periods of the swizzle.
    for sharers, across in ((N, K if gemm.transpose_a else M), (M, N if gemm.transpose_b else K)):
        count = division.cluster[sharers]
        if division.extent(across) % (GROUP_ROWS * count):
            return (
                f"{parts} must be a multiple of {GROUP_ROWS * count} in {'mnk'[across]}, for each "
                f"of {count} workgroups to bring a share of it"
            )
    return None


def _no_team(divisions: Sequence[Division]) -> str | None:
    """Why tiles of different shapes cannot have the same warpgroups, or None."""
    teams = {division.team for division in divisions}
    if len(teams) == 1:
        return None
    odd = next(division for division in divisions if division.team == min(teams))
    return (
        f"a workgroup's part {odd.extent(M)}x{odd.extent(N)} of tile {_by(odd.tile)} cannot be "
        f"halved, and those of other tiles have {max(teams)} warpgroups; it needs a multiple of "
        f"{2 * MMA_M} or of {2 * MMA_COLUMNS} across, or consumers=pingpong"
    )


def _per_piece(tensor: Tensor, division: Division) -> Tensor:
    """Workgroups with different parts of a tile have a flag each."""
    if tensor.name != "flags" or not division.different:
        return tensor
    return replace(tensor, shape=(*tensor.shape, Integer(division.workgroups)))


def _publish(stores: Sequence[BoxedStore], maps: Maps) -> Body:
    given = (name for name in _boxed(bool(stores)) if not maps.name(name))
    return (PublishBarriers(), *map(PrefetchMap, given))


def _boxed(stores: bool) -> tuple[str, ...]:
    """The tensors that TMA moves."""
    return BOXED if stores else BOXED[:2]


def _load(loop: For, tile: DividedTile) -> Operation:
    """The producer's loop: wait until a stage is free, then fill it.

    All k tiles of a macro tile lie inside as far as the first does.
    """
    a, b = tile.coming
    steps = loop.with_body(
        WaitBarrier(EMPTY, PHASE, before=True),
        ExpectBytes(FULL, a.bytes + b.bytes),
        a.copies,
        b.copies,
        Advance(STEP),
    )
    counters = [counter for counter in (a.counter, b.counter) if counter is not None]
    count = SetCoordinate(loop.dim, loop.start, tuple(counted for _, counted in counters))
    body: Body = (count, steps) if counters else (steps,)
    for dim, _ in counters:
        body = (Counter(dim, body),)
    return body[0]
