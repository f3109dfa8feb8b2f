"""Graphs lowered for Hopper, and every index in them as an array of numbers."""

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
"""What memory holds that nobody has written."""
LAUNCH: Mapping[str, int] = {"workgroup": 5, "tiles_n": 3, "k_tile": 2, "ring.step": 7}
ORIGIN = (1, 2, 2)
"""The data-parallel tile of that workgroup in m and n, and the k tile, counted in tiles."""
K = TypeVar("K", bound=Operation)


@dataclass(frozen=True)
class Lowered:
    """A configuration's lowered graph, and who has what part of its tile."""

    configuration: Configuration

    @cached_property
    def graph(self) -> KernelGraph:
        return self.configuration.program.lowered

    @cached_property
    def everything(self) -> list[Node]:
        """All operations, in order."""
        roots = resolve(self.graph.control.root.body, self.graph.scope())
        return [node for root in roots for node in root.walk()]

    def nodes(self, kind: type[Operation], **fields: object) -> list[Node]:
        """The operations of a kind with these fields, in order."""
        return [
            node
            for node in self.everything
            if isinstance(node.op, kind)
            and all(getattr(node.op, name) == value for name, value in fields.items())
        ]

    def operations(self, kind: type[K]) -> list[K]:
        """Those operations alone."""
        return [node.op for node in self.everything if isinstance(node.op, kind)]

    def size(self, dim: str) -> int:
        return self.graph.coordinates[dim].fixed_size

    def values(self, wanted: Basic, indices: Mapping[str, Array]) -> Array:
        """An expression at all these indices; whatever else it needs is `LAUNCH`'s."""
        known = {**LAUNCH, **with_warp(indices)}
        symbols = sorted((s for s in wanted.free_symbols if isinstance(s, Symbol)), key=str)
        (found,) = compile_function([wanted], symbols)(*(known[s.name] for s in symbols))
        return np.asarray(found)

    def place(self, node: Node, dim: str, indices: Mapping[str, Array]) -> Array:
        """The index along `dim` at a node."""
        return self.values(node.place(dim).values[0], indices)

    # The division of the tile, said once more in plain numbers.

    @property
    def ranks(self) -> int:
        return prod(self.configuration.cluster)

    @property
    def part(self) -> tuple[int, int, int]:
        """A workgroup's own extents in m, n and k."""
        m, n, k = (
            t // c for t, c in zip(self.configuration.tile, self.configuration.cluster, strict=True)
        )
        return m, n, k

    def first(self, rank: Array, axis: int) -> Array:
        """Where a workgroup's part begins in the tile along m (0), n (1) or k (2)."""
        _, n, k = self.configuration.cluster
        along = (rank // (n * k), rank // k % n, rank % k)[axis]
        return along * self.part[axis]

    @property
    def swapped(self) -> bool:
        """B's columns are the rows of the instruction."""
        m, n, _ = self.part
        return m % 64 != 0 or (self.turns == 1 and m < 128 <= n)

    @property
    def left(self) -> int:
        """The axis of D along the instruction's rows."""
        return int(self.swapped)

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply: all but the producer's."""
        return self.size("workitem") // 128 - 1

    @property
    def turns(self) -> int:
        """Tiles that they multiply at a time."""
        return 2 if self.configuration.consumers == "pingpong" else 1

    @property
    def team(self) -> int:
        """Warpgroups that multiply one of them."""
        return self.consumers // self.turns

    @property
    def blocks(self) -> int:
        """64-row blocks of each of them."""
        return self.size("acc.m")

    @property
    def wide(self) -> int:
        """N of an instruction."""
        op = self.operations(MultiplyShared)[0]
        shape = re.fullmatch(r"wgmma\.m64n(\d+)k(?:16|32)\.\w+", op.instruction)
        assert shape is not None
        return int(shape[1])

    @property
    def beside(self) -> int:
        """Instructions side by side in a block."""
        return self.size("acc.p")

    @property
    def registers(self) -> int:
        """Sums of a thread."""
        return self.blocks * self.beside * self.wide // 2

    def corner(self, warpgroup: Array) -> tuple[Array, Array]:
        """Where a warpgroup's share of the product begins: they divide its rows or its columns."""
        rows, columns = self.part[self.left], self.part[1 - self.left]
        warpgroup = warpgroup % self.team
        if self.blocks * 64 * self.team == rows:
            assert self.beside * self.wide == columns
            return warpgroup * self.blocks * 64, warpgroup * 0
        assert self.blocks * 64 == rows
        assert self.beside * self.wide * self.team == columns
        return warpgroup * 0, warpgroup * self.beside * self.wide

    def element(self, row: Array, column: Array) -> Array:
        """A name for an element of D's tile."""
        return row * self.configuration.tile[1] + column


@cache
def lowered(configuration: Configuration) -> Lowered:
    """One for each configuration."""
    return Lowered(configuration)


def with_warp(indices: Mapping[str, Array]) -> Mapping[str, Array]:
    """The workitem's warp, too: its number counts 32 lanes."""
    if "workitem" not in indices:
        return indices
    return {**indices, "warp.number": indices["workitem"] // 32}


def mesh(**sizes: int) -> dict[str, Array]:
    """All indices, one axis each, under names in which `_` stands for a dot."""
    grids = np.ix_(*(np.arange(size) for size in sizes.values()))
    return {name.replace("_", "."): grid for name, grid in zip(sizes, grids, strict=True)}
