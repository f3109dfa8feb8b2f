"""Graphs lowered for Hopper, with every index evaluated as a NumPy array."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import TypeVar

import numpy as np
from sympy import Basic, Symbol

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import MultiplyShared
from coordgraph.control.operations import Operation
from coordgraph.control.resolve import Node, resolve
from coordgraph.integers import compile_function
from tests.codegen.nvptx.configurations import Configuration
from tests.codegen.nvptx.isa import Array

__all__ = ["LAUNCH", "NOTHING", "ORIGIN", "Lowered", "lowered", "mesh", "with_warp"]

NOTHING = -1
"""The value of elements in memory that were never written."""
LAUNCH: Mapping[str, int] = {"workgroup": 5, "tiles_n": 3, "k_tile": 2, "ring.step": 7}
ORIGIN = (1, 2, 2)
"""Tile indices along m, n and k: the output tile and the k tile of the workgroup under test."""
K = TypeVar("K", bound=Operation)


@dataclass(frozen=True)
class Lowered:
    """The lowered graph of one configuration, and the expected division of the macro tile.

    The division says which part each workgroup of a cluster, warpgroup and thread computes.
    """

    configuration: Configuration

    @cached_property
    def graph(self) -> KernelGraph:
        return self.configuration.program.lowered

    @cached_property
    def everything(self) -> list[Node]:
        """All operations of the graph in program order, each with the coordinates that it uses."""
        roots = resolve(self.graph.control.root.body, self.graph.scope())
        return [node for root in roots for node in root.walk()]

    def nodes(self, kind: type[Operation], **fields: object) -> list[Node]:
        """The operations of one kind whose fields have the given values, in program order."""
        return [
            node
            for node in self.everything
            if isinstance(node.op, kind)
            and all(getattr(node.op, name) == value for name, value in fields.items())
        ]

    def operations(self, kind: type[K]) -> list[K]:
        """The operations of the class `kind` in program order.

        Unlike `nodes`, this returns operations without the coordinates that they use.
        """
        return [node.op for node in self.everything if isinstance(node.op, kind)]

    def size(self, dim: str) -> int:
        return self.graph.coordinates[dim].fixed_size

    def values(self, wanted: Basic, indices: Mapping[str, Array]) -> Array:
        """The value of the expression `wanted` at each of `indices`, as an array.

        A symbol that is not in `indices` gets a fixed value for the tests, from `LAUNCH`.
        """
        known = {**LAUNCH, **with_warp(indices)}
        symbols = sorted((s for s in wanted.free_symbols if isinstance(s, Symbol)), key=str)
        (found,) = compile_function([wanted], symbols)(*(known[s.name] for s in symbols))
        return np.asarray(found)

    def place(self, node: Node, dim: str, indices: Mapping[str, Array]) -> Array:
        """The index along `dim` that an operation uses, for each combination of loop and hardware
        indices in `indices`.
        """
        return self.values(node.place(dim).values[0], indices)

    # The following properties are the expected division of a tile, computed without the graph.

    @property
    def ranks(self) -> int:
        return prod(self.configuration.cluster)

    @property
    def part(self) -> tuple[int, int, int]:
        """The m, n and k extents of the part of the tile that one workgroup of the cluster
        computes.
        """
        m, n, k = (
            t // c for t, c in zip(self.configuration.tile, self.configuration.cluster, strict=True)
        )
        return m, n, k

    def first(self, rank: Array, axis: int) -> Array:
        """The position in the tile at which the part of a workgroup begins, in elements.

        Args:
            rank: the workgroup's rank in its cluster.
            axis: 0 for a row of D, 1 for a column of D, 2 for an index along k.
        """
        _, n, k = self.configuration.cluster
        along = (rank // (n * k), rank // k % n, rank % k)[axis]
        return along * self.part[axis]

    @property
    def swapped(self) -> bool:
        """Whether the operands are swapped: B's columns are the rows (M) of the wgmma
        instruction.
        """
        m, n, _ = self.part
        return m % 64 != 0 or (self.turns == 1 and m < 128 <= n and n % 64 == 0)

    @property
    def left(self) -> int:
        """The axis of D (0 or 1) along which the rows (M) of the wgmma instruction lie."""
        return int(self.swapped)

    @property
    def consumers(self) -> int:
        """The number of consumer warpgroups; the producer warpgroup is not counted."""
        return self.size("workitem") // 128 - 1

    @property
    def turns(self) -> int:
        """The number of tiles that are computed at the same time: 2 for ping-pong, else 1."""
        return 2 if self.configuration.consumers == "pingpong" else 1

    @property
    def team(self) -> int:
        """The number of warpgroups that compute one tile together."""
        return self.consumers // self.turns

    @property
    def blocks(self) -> int:
        """The number of blocks of 64 rows (M of wgmma) in one warpgroup's part of a tile."""
        return self.size("acc.m")

    @property
    def wide(self) -> int:
        """The extent N of one wgmma instruction."""
        op = self.operations(MultiplyShared)[0]
        shape = re.fullmatch(r"wgmma\.m64n(\d+)k(?:16|32)\.\w+", op.instruction)
        assert shape is not None
        return int(shape[1])

    @property
    def beside(self) -> int:
        """The number of wgmma instructions that divide the columns of one 64-row block."""
        return self.size("acc.p")

    @property
    def registers(self) -> int:
        """The number of accumulator registers of one thread."""
        return self.blocks * self.beside * self.wide // 2

    def corner(self, warpgroup: Array) -> tuple[Array, Array]:
        """(first row, first column) of the part of the tile that each warpgroup computes."""
        rows, columns = self.part[self.left], self.part[1 - self.left]
        warpgroup = warpgroup % self.team
        if self.blocks * 64 * self.team == rows:
            assert self.beside * self.wide == columns
            return warpgroup * self.blocks * 64, warpgroup * 0
        assert self.blocks * 64 == rows
        assert self.beside * self.wide * self.team == columns
        return warpgroup * 0, warpgroup * self.beside * self.wide

    def element(self, row: Array, column: Array) -> Array:
        """The number of the element (row, column) of a tile of D in row-major order."""
        return row * self.configuration.tile[1] + column


@cache
def lowered(configuration: Configuration) -> Lowered:
    """The lowered graph of a configuration; built once, then cached."""
    return Lowered(configuration)


def with_warp(indices: Mapping[str, Array]) -> Mapping[str, Array]:
    """The given indices, with the warp's number (thread / 32) if the thread's number is given."""
    if "workitem" not in indices:
        return indices
    return {**indices, "warp.number": indices["workitem"] // 32}


def mesh(**sizes: int) -> dict[str, Array]:
    """For each dimension, its indices 0 … size - 1 as an array; all arrays broadcast together.

    Each array extends along an axis of its own. `_` in an argument's name stands for the dot in
    the name of the dimension.
    """
    grids = np.ix_(*(np.arange(size) for size in sizes.values()))
    return {name.replace("_", "."): grid for name, grid in zip(sizes, grids, strict=True)}
