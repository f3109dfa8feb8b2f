"""`DividedTile`: the TMA loads of A and B and the TMA store of D, for macro tiles of one shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sympy import Integer

from coordgraph.control.operations import Operation
from coordgraph.coordinates.dimensions import Register
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.gemm import PART, GemmProblem
from passes.lowering.parts import ordered_columns
from passes.lowering.sm_90a.boxes import BoxedOperand, TileLoad
from passes.lowering.sm_90a.division import Division, K
from passes.lowering.sm_90a.gathering import Gatherers
from passes.lowering.sm_90a.maps import Maps
from passes.lowering.sm_90a.stores import BoxedStore

__all__ = ["DividedTile", "divided_tiles", "matrix"]


@dataclass(frozen=True)
class DividedTile:
    """The macro tiles of one shape: their TMA boxes and their memory in the ring of stages.

    Args:
        division: how a macro tile is divided over the workgroups of a cluster and over warpgroups.
        operands: the tiles of A and of B, divided into TMA boxes.
        loads: the TMA loads of a tile of A and of a tile of B, which the producer warp issues; if
            rows of A are gathered, that of B alone.
        gathers: the copies of gathered rows of a tile of A; None if TMA loads A.
        rooms: how many elements of A, and of B, a stage has room for. The keys are the names of the
            coordinates that index A's and B's shared memory.
        store: how D is stored through shared memory by TMA; None to store D from registers.
    """

    division: Division
    operands: tuple[BoxedOperand, BoxedOperand]
    loads: tuple[TileLoad, ...]
    gathers: Operation | None
    rooms: Mapping[str, int]
    store: BoxedStore | None

    @property
    def name(self) -> str:
        """The name of the accumulator of these tiles, by which operations refer to them."""
        return self.division.tiling.accumulator

    @property
    def along_k(self) -> tuple[str, str]:
        """(coordinate that numbers tiles of A along k, the coordinate for tiles of B)."""
        tiling = self.division.tiling
        return tiling.number("A", 1), tiling.number("B", 0)


def divided_tiles(
    c: CoordinateEditor,
    gemm: GemmProblem,
    divisions: Sequence[Division],
    stages: int,
    stores: Sequence[BoxedStore],
    maps: Maps,
    gatherers: Gatherers,
) -> tuple[DividedTile, ...]:
    """Add TMA boxes for tiles of each shape, and one ring of stages, which all shapes share.

    A stage has room for the largest tile of A and the largest of B.

    Args:
        c: the coordinate graph under construction.
        gemm: the matrix product: element types, extents, layouts and epilogue.
        divisions: how tiles of each shape are divided.
        stages: number of stages of the ring of k tiles in shared memory.
        stores: for tiles of each shape, how TMA stores D; empty to store D from registers.
        maps: the tensor maps that the kernel writes itself.
        gatherers: the warps that gather rows of A, if a table lists the rows' indices.
    """
    axes = {"A": (1, 0) if gemm.transpose_a else (0, 1)}
    axes["B"] = (1, 0) if gemm.transpose_b else (0, 1)
    divisions = [_ordered(c, gemm, division) for division in divisions]
    for division in divisions:
        division.add(c)
    several = gemm.batched or gemm.grouped
    sums = {"A": 1, "B": gemm.sums if gemm.part_width != 1 else 1}
    alike = {"A": 0, "B": gemm.part_width if gemm.part_width != 1 else 0}
    every = [
        [
            BoxedOperand(
                *(t, *axes[t], d.tiling, d.kind, d),
                *(matrix(gemm, t), several, maps, sums[t], alike[t]),
            )
            for t in "AB"
        ]
        for d in divisions
    ]
    rooms = [max(operand.elements(c) for operand in same) for same in zip(*every, strict=True)]
    tiles: list[DividedTile] = []
    for number, (division, (a, b)) in enumerate(zip(divisions, every, strict=True)):
        for operand, room in zip((a, b), rooms, strict=True):
            operand.stage(c, stages, room)
        store = stores[number] if stores else None
        if store:
            store.add(c)
        depths = division.extent(K) // division.instruction.depth
        c.add(Register(division.tiling.own("fragment.k"), Integer(depths)))
        gathers, loads = None, (b.copies(c),)
        if gatherers.needed:
            gathers = gatherers.copies(c, a)
        else:
            loads = (a.copies(c), *loads)
        by_memory = {f"{x.tensor}.shared": room for x, room in zip((a, b), rooms, strict=True)}
        tiles.append(DividedTile(division, (a, b), loads, gathers, by_memory, store))
    return tuple(tiles)


def _ordered(c: CoordinateEditor, gemm: GemmProblem, division: Division) -> Division:
    """A copy of `division` whose tiles of B have their columns in the order for wgmma.

    If the epilogue has one sum, the order does not change. Of several sums, each has its own part
    of B's columns. If single columns of the parts alternate, columns keep their order in memory.
    Otherwise each wgmma instruction multiplies equally many adjacent columns of every part.
    """
    inner = 1 if gemm.part_width == 1 else division.columns // gemm.sums
    return replace(division, tiling=ordered_columns(c, division.tiling, inner))


def matrix(gemm: GemmProblem, tensor: str) -> tuple[str, ...]:
    """The coordinates that number the tensor's matrices, the fastest in memory first.

    The result is () for a single matrix.
    """
    part = (PART,) if tensor == "B" and gemm.parts_apart else ()
    return (*part, gemm.leading) if tensor in gemm.batched_tensors else part
