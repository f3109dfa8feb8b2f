"""Checks of whether wgmma can multiply the tiles of a graph, and error messages if it cannot."""

from __future__ import annotations

from collections.abc import Sequence

from coordgraph import KernelGraph
from coordgraph.coordinates.dimensions import SubDimension
from coordgraph.coordinates.edges import Gather
from coordgraph.gemm import GemmProblem
from passes.kit.reduce_scatter import SHARE
from passes.lowering.parts import too_many_sums
from passes.lowering.sm_90a.boxes import GROUP_ROWS, LEAST_ROW_BYTES
from passes.lowering.sm_90a.cuts import cuts
from passes.lowering.sm_90a.division import MMA_COLUMNS, MMA_M, Division, K, M, N

__all__ = [
    "across_k",
    "cut_along",
    "extents",
    "no_boxes",
    "no_division",
    "no_rows",
    "no_sums",
    "no_team",
    "table_of_rows",
]


def extents(counts: tuple[int, ...]) -> str:
    """Format extents as text, such as `128x256x64`."""
    return "x".join(map(str, counts))


def across_k(gemm: GemmProblem, axis: int) -> bool:
    """Whether A (axis 0) or B (axis 1) is contiguous along m or n, instead of along k."""
    return gemm.transpose_a if axis == M else not gemm.transpose_b


def no_division(gemm: GemmProblem, division: Division) -> str | None:
    """Why wgmma cannot multiply a workgroup's part of a tile; None if it can."""
    left, right = division.extent(division.left), division.extent(division.right)
    parts = f"a workgroup's part {division.extent(M)}x{division.extent(N)}"
    if left % MMA_M:
        where = "in m or in n" if gemm.sums == 1 else "in m, for an epilogue of several sums"
        return f"{parts} must be a multiple of {MMA_M} {where}; choose another tile or cluster"
    least = MMA_COLUMNS * gemm.sums
    if right % least:
        return (
            f"{parts} must be a multiple of {least} in m and in n; choose another tile or cluster"
        )
    step = max(least, division.instruction.columns)
    if across_k(gemm, division.right) and (division.columns < right or gemm.parts_in_rows):
        # If several wgmma instructions divide the columns, or the columns of the epilogue's sums
        # are stacked parts of B, the columns of each instruction or part must begin where a TMA box
        # begins. Those of a single instruction always do, even if they end inside a box.
        parts_of = gemm.sums if gemm.parts_in_rows else 1
        step = max(step, parts_of * LEAST_ROW_BYTES // division.kind.bytes)
    if gemm.part_width > 1 and gemm.part_width % (
        unit := LEAST_ROW_BYTES // division.kind.bytes if gemm.parts_in_rows else GROUP_ROWS
    ):
        return (
            f"parts={gemm.parts} needs TMA boxes of {unit} columns of one part; interleave blocks "
            f"of a multiple of {unit} columns"
        )
    if division.columns % step:
        return (
            f"{parts} needs wgmma instructions of {division.columns} columns, which must be a "
            f"multiple of {step}; choose a tile whose extents are powers of two"
        )
    if division.extent(K) % division.kind.row:
        return (
            f"{parts}x{division.extent(K)} must be a multiple of {division.kind.row} in k; choose "
            "another tile or cluster"
        )
    return None


def no_sums(graph: KernelGraph) -> str | None:
    """Why wgmma kernels cannot compute the sums of the graph's epilogue, or None if they can."""
    gemm = graph.gemm
    if gemm.sums > 1 and gemm.part_width != 1 and SHARE in graph.coordinates:
        return (
            f"the epilogue {gemm.epilogue.name} has {gemm.sums} sums for an element of D, which "
            f"with parts={gemm.parts} and the reduction scatter would be added up by different "
            "workgroups; choose another reduction, or parts=interleaved"
        )
    return too_many_sums(gemm)


def no_rows(gemm: GemmProblem, cluster: tuple[int, int, int]) -> str | None:
    """Why workgroups cannot reduce the rows of their tiles; None if they can, or need not.

    Args:
        gemm: the matrix product: element types, extents, layouts and epilogue.
        cluster: numbers of workgroups of a cluster along m, n and k.
    """
    if cluster[N] == 1 or not gemm.row_reductions:
        return None
    return (
        f"cluster {extents(cluster)} (m x n x k): the output {gemm.row_reductions[0]} of the "
        "epilogue reduces rows, which the workgroups of the cluster would divide; choose "
        "cluster_n=1"
    )


def no_team(divisions: Sequence[Division]) -> str | None:
    """Why tiles of different shapes cannot use equally many warpgroups; None if they can."""
    teams = {division.team for division in divisions}
    if len(teams) == 1:
        return None
    odd = next(division for division in divisions if division.team == min(teams))
    left, right = ("mn"[axis] for axis in (odd.left, odd.right))
    return (
        f"a workgroup's part {odd.extent(M)}x{odd.extent(N)} of tile {extents(odd.tile)} cannot be "
        f"halved, and those of other tiles are divided over {max(teams)} warpgroups; make the part "
        f"a multiple of {2 * MMA_M} in {left} or of {odd.halved_columns} in {right}, or choose "
        "consumers=pingpong"
    )


def table_of_rows(graph: KernelGraph, tensor: str) -> str:
    """The name of the table that lists which rows or columns of a tensor are read; '' if none does.

    TMA copies boxes of adjacent rows, so it cannot copy rows whose indices a table lists.
    """
    axes = graph.coordinates.of_kind(SubDimension, tensor=tensor)
    below = (edge for axis in axes for edge in graph.coordinates.edges_below(axis))
    return next((edge.table for edge in below if isinstance(edge, Gather)), "")


def no_boxes(graph: KernelGraph) -> str | None:
    """Why TMA cannot load B, None if it can. A is not checked: warps can gather its rows."""
    if table := table_of_rows(graph, "B"):
        return (
            f"the table '{table}' lists the rows of B to read, and TMA loads boxes of adjacent "
            "rows; use LowerToTensorCores, or gather the rows before the product"
        )
    return None


def cut_along(graph: KernelGraph, located: Sequence[str]) -> list[str]:
    """Which of the tensors A and B have rows in memory inside which a group may end."""
    tiling, gemm = next(iter(graph.tilings)), graph.gemm
    columns = {"A": int(not gemm.transpose_a), "B": int(not gemm.transpose_b)}
    return [
        tensor
        for tensor, axis in columns.items()
        if f"{tensor}.{axis}" in cuts(graph.coordinates, tiling, tensor, located)
    ]
