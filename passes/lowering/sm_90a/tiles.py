"""Divided tiles: for macro tiles of one shape, everything that brings them in and takes D away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sympy import Integer

from coordgraph.coordinates.dimensions import Register
from coordgraph.coordinates.graph import CoordinateEditor
from coordgraph.gemm import GemmProblem
from passes.lowering.sm_90a.boxes import BoxedOperand, Coming
from passes.lowering.sm_90a.division import Division, K
from passes.lowering.sm_90a.maps import Maps
from passes.lowering.sm_90a.stores import BoxedStore

__all__ = ["DividedTile", "divided_tiles", "matrix"]


@dataclass(frozen=True)
class DividedTile:
    """The tiles of one accumulator, tied to boxes and to the ring.

    Args:
        division: of a macro tile.
        operands: A and B.
        coming: what the producer brings of each.
        rooms: elements of a stage of A and of B, by the name of the memory that holds the ring.
        store: D's way through shared memory, or None to store it from registers.
    """

    division: Division
    operands: tuple[BoxedOperand, BoxedOperand]
    coming: tuple[Coming, Coming]
    rooms: Mapping[str, int]
    store: BoxedStore | None

    @property
    def name(self) -> str:
        """The accumulator's."""
        return self.division.tiling.accumulator


def divided_tiles(
    c: CoordinateEditor,
    gemm: GemmProblem,
    divisions: Sequence[Division],
    stages: int,
    stores: Sequence[BoxedStore],
    maps: Maps,
) -> tuple[DividedTile, ...]:
    """Tie tiles of each shape to TMA boxes and to one ring of `stages` stages.

    A stage has room for the largest tile of A and the largest of B.
    """
    axes = {"A": (1, 0) if gemm.transpose_a else (0, 1)}
    axes["B"] = (1, 0) if gemm.transpose_b else (0, 1)
    for division in divisions:
        division.add(c)
    several = gemm.batched or gemm.grouped
    every = [
        [
            BoxedOperand(t, *axes[t], d.tiling, d.kind, d, matrix(gemm, t), several, maps)
            for t in "AB"
        ]
        for d in divisions
    ]
    rooms = [max(operand.elements(c) for operand in same) for same in zip(*every, strict=True)]
    made: list[DividedTile] = []
    for number, (division, (a, b)) in enumerate(zip(divisions, every, strict=True)):
        for operand, room in zip((a, b), rooms, strict=True):
            operand.stage(c, stages, room)
        store = stores[number] if stores else None
        if store:
            store.add(c)
        depths = division.extent(K) // division.instruction.depth
        c.add(Register(division.tiling.own("fragment.k"), Integer(depths)))
        coming = (a.copies(c), b.copies(c))
        homes = {f"{x.tensor}.shared": room for x, room in zip((a, b), rooms, strict=True)}
        made.append(DividedTile(division, (a, b), coming, homes, store))
    return tuple(made)


def matrix(gemm: GemmProblem, tensor: str) -> tuple[str, ...]:
    """The coordinate that tells the matrices of a tensor apart, if it has several."""
    return (gemm.leading,) if tensor in gemm.batched_tensors else ()
