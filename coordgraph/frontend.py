"""The front end: `Gemm(...).graph(tile=...)` builds the kernel graph that schedules rewrite."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import index

from coordgraph.elements import dtype
from coordgraph.epilogue import Operand
from coordgraph.errors import VerifyError
from coordgraph.gemm import (
    LARGEST_PART_STRIDE,
    LARGEST_STRIDE,
    PART_STRIDE,
    GemmProblem,
    elements_of,
    ld_of,
    read_of,
    rows_of,
    step_of,
    stride_of,
    tensor_of,
)
from coordgraph.kernel import KernelGraph
from coordgraph.library_graphs import made_by_library
from coordgraph.parameters import LARGEST_INDEX, LARGEST_SIZE, Parameter, Parameters
from coordgraph.problem import build

__all__ = ["Gemm", "default_tile"]

TILE_SIDE, SMALLEST_SIDE = 128, 16
"""TILE_SIDE: number of rows, and of columns, of the default macro tile. SMALLEST_SIDE: smallest
number of rows or columns that the default macro tile of a small problem has; it is a multiple of
the extents in m and n of every mma.sync instruction."""


def default_tile(
    kind: str, extents: tuple[int | None, int | None] = (None, None)
) -> tuple[int, int, int]:
    """The macro tile (m, n, k), in elements, of a problem whose caller gives no tile.

    The tile has 128 x 128 elements of D, or fewer for a small problem, and 128 bytes along k, and
    is the same on every target, because the lowerings for all targets support it: the CPU, mma.sync
    (sm_80 and later), and wgmma with TMA (sm_90a).

    Args:
        kind: the element type of A and B.
        extents: m and n of the problem; None for one that is a launch argument. The number of rows
            (columns) of the tile is halved while half of it is still at least m (n).
    """

    def covering(extent: int | None) -> int:
        side = TILE_SIDE
        while extent is not None and side > SMALLEST_SIDE and side // 2 >= extent:
            side //= 2
        return side

    m, n = map(covering, extents)
    return m, n, dtype(kind).row


@dataclass(frozen=True)
class Gemm(GemmProblem):
    """The matrix product `D = alpha·A@B + beta·C`; `graph()` builds its kernel graph.

    `GemmProblem`, the base class, documents the fields.
    """

    @classmethod
    def of(cls, problem: GemmProblem) -> Gemm:
        """Make a `Gemm` of the problem that a kernel graph stores: `Gemm.of(graph.gemm)`.

        A kernel graph stores a plain `GemmProblem`; only a `Gemm` can build further graphs.
        """
        if isinstance(problem, Gemm):
            return problem
        return cls(**{f.name: getattr(problem, f.name) for f in fields(problem)})

    def graph(self, tile: tuple[int, int, int] | None = None) -> KernelGraph:
        """Build the kernel graph of the problem, without a schedule.

        The tensors are cut into macro tiles, a loop over k tiles computes one output tile, and no
        edge ties the output tile numbers to workgroups yet. Every schedule starts from this graph.

        Args:
            tile: extents of a macro tile in m, n and k, in elements, each a positive integer; by
                default the result of `default_tile`. If the epilogue has s > 1 sums, n counts the
                tile's columns of B, and a tile of D has n / s columns.

        Raises:
            VerifyError: `tile` is not three positive integers, or its n is no multiple of the
                number of sums.
        """
        given = (self.m, self.n and self.n * self.sums)
        tile = default_tile(self.dtype, given) if tile is None else _checked_tile(tile)
        if tile[1] % self.sums:
            raise VerifyError(
                f"Gemm: the tile {'x'.join(map(str, tile))} has {tile[1]} columns of B, but the "
                f"epilogue {self.epilogue.name} has {self.sums} sums; choose a multiple of "
                f"{self.sums}"
            )
        given = [
            Parameter(name, 1, self.largest(name), note=f"extent of the problem in {name}")
            for name in ("m", "n", "k")
            if getattr(self, name) is None and not self.diagonal
        ]
        if self.diagonal:
            given += (
                Parameter(elements_of(name), 1, LARGEST_INDEX, note=f"elements of {name}")
                for name in "ABD"
            )
        if self.batched:
            given.append(Parameter("batches", 1, LARGEST_SIZE, note="number of products"))
        given += (
            Parameter(
                stride_of(name),
                0,
                LARGEST_STRIDE,
                note=f"elements from one matrix of {name} to the next",
            )
            for name in self.strided_batches
        )
        given += (
            Parameter(
                ld_of(name), 0, LARGEST_STRIDE, note=f"elements from one row of {name} to the next"
            )
            for name in self.leading_dimensions
        )
        given += (
            Parameter(
                step_of(name), 0, LARGEST_STRIDE, note=f"elements from one of {name} to the next"
            )
            for name in self.element_steps
        )
        if self.parts_apart:
            given.append(
                Parameter(
                    PART_STRIDE, 0, LARGEST_PART_STRIDE, note="elements from part to part of B"
                )
            )
        given += (
            Parameter(rows_of(name), 1, LARGEST_SIZE, note=f"rows of the array {name}")
            for name in self.tables_of_rows.values()
        )
        if self.grouped:
            given.append(
                Parameter("groups", 1, self.most_groups, note=f"groups along {self.group_axis}")
            )
        given += (
            Parameter(read_of(name), 0, 1, note=_why_read(self, operand))
            for name, operand in self.operands.items()
            if operand.optional
        )
        with KernelGraph(self, parameters=Parameters(tuple(given))).edit() as e:
            build(self, e, tile)
        return made_by_library(e.graph)


def _why_read(gemm: GemmProblem, operand: Operand) -> str:
    """The text that explains the launch parameter `read_NAME` of an optional operand.

    The text says when the parameter is 1, so that the kernel reads the operand.
    """
    scale = gemm.epilogue.scale_of(operand.name)
    more = f" and {scale} is not zero" if scale else ""
    return f"1 where {tensor_of(operand.name)} is given{more}"


def _checked_tile(tile: Iterable[int]) -> tuple[int, int, int]:
    """Check that `tile` holds three positive integers and return them as ints."""
    try:
        m, n, k = map(index, tile)
        if min(m, n, k) > 0:
            return m, n, k
    except (TypeError, ValueError):
        pass
    raise VerifyError(
        f"Gemm: tile={tile!r} must be three positive integers: the extents in m, n and k, as in "
        "(128, 256, 64)"
    )
