"""Makes Python functions of a lowered graph's index expressions, to enumerate their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product

from sympy import Symbol
from sympy.core.basic import Basic

from coordgraph import Gemm, KernelGraph
from coordgraph.control.lowered import CopyElements, LoadFragment
from coordgraph.control.resolve import Node, resolve
from coordgraph.integers import compile_function, index_symbol
from passes import DataParallel
from passes.lowering import LowerToTensorCores

__all__ = ["Lowered", "lowered"]

Tile = tuple[int, int, int]
WORKITEM = index_symbol("workitem")


@dataclass(frozen=True)
class Lowered:
    """A data-parallel kernel lowered for tensor cores.

    `layout` has a letter for A and a letter for B: `n` is row-major, `t` is stored as the
    transpose.
    """

    tile: Tile
    layout: str = "nn"
    vector: int = 0
    dtype: str = "bf16"

    @cached_property
    def graph(self) -> KernelGraph:
        a, b = (side == "t" for side in self.layout)
        gemm = Gemm(self.dtype, transpose_a=a, transpose_b=b)
        lower = LowerToTensorCores("sm_90a", self.vector, self.vector)
        return lower(DataParallel()(gemm.graph(self.tile)))

    @cached_property
    def nodes(self) -> list[Node]:
        roots = resolve(self.graph.control.root.body, self.graph.scope())
        return [node for root in roots for node in root.walk()]

    @property
    def threads(self) -> int:
        return self.size("workitem")

    @property
    def stages(self) -> int:
        return self.size("stage")

    def size(self, dim: str) -> int:
        return self.graph.coordinates[dim].fixed_size

    def extents(self, tensor: str) -> tuple[int, int]:
        """Rows and columns of a tensor's tile as the product A·B uses it, whatever its
        layout in memory.
        """
        return self.size(f"{tensor}.index.0"), self.size(f"{tensor}.index.1")

    def copy(self, tensor: str) -> Node:
        """The operation in the loop over k tiles that copies a tile of A or B to shared memory."""
        return [n for n in self.nodes if isinstance(n.op, CopyElements) and n.op.source == tensor][
            -1
        ]

    def load(self, tensor: str) -> Node:
        """The operation that loads fragments of a tensor by ldmatrix."""
        return next(
            n for n in self.nodes if isinstance(n.op, LoadFragment) and n.op.fragment == tensor
        )

    def function(
        self, node: Node, *wanted: str | Basic, names: tuple[str, ...]
    ) -> Callable[..., tuple[int, ...]]:
        """A compiled function that returns the values of `wanted` at an operation, as a tuple.

        Its arguments are the indices `names`. Each of `wanted` is a dimension, whose index is
        computed, or an expression.
        """
        found = [node.scope.reverse(w).values[0] if isinstance(w, str) else w for w in wanted]
        used = set[Symbol]().union(*(e.free_symbols for e in found))
        arguments = [index_symbol(name) for name in names]
        assert used <= set(arguments), f"{used} is not all of {arguments}"
        return compile_function(found, arguments)

    def each(self, *dims: str) -> Iterator[tuple[int, ...]]:
        """All combinations of the indices of the given dimensions."""
        return product(*(range(self.size(dim)) for dim in dims))


@cache
def lowered(tile: Tile, layout: str = "nn", vector: int = 0, dtype: str = "bf16") -> Lowered:
    """The lowered kernel with these options; built once, then cached."""
    return Lowered(tile, layout, vector, dtype)
