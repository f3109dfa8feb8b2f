"""The number of accumulators that fit in the registers of a thread of a wgmma kernel."""

from __future__ import annotations

from typing import Any

from coordgraph import KernelGraph
from coordgraph.epilogue.reduction import RUNNING
from coordgraph.gemm import GemmProblem
from passes.lowering.sm_90a.division import MMA_M, MOST_COLUMNS, Division, M, N

__all__ = ["MOST_ACCUMULATORS", "accumulators_beside", "no_registers", "streamed", "too_many_rows"]

MOST_ACCUMULATORS = 192
"""Largest number of accumulator registers of a thread if the epilogue reads no operand as large as
D. The thread's other registers hold addresses and other values."""
MOST_BESIDE_C = {(2, False): 192, (4, False): 96, (2, True): 96, (4, True): 64}
"""Largest numbers of accumulator registers of a thread if the epilogue reads C or another operand
as large as D. The key is (bytes of that operand's element, whether B is wgmma's left operand). If B
is the left operand, a thread reads C element by element, which takes more registers."""
MOST_BESIDE_PARTIALS, MOST_BESIDE_MAPS = 160, 96
"""Largest numbers of accumulator registers of a thread. MOST_BESIDE_PARTIALS: in kernels that
exchange partial sums. MOST_BESIDE_MAPS: in kernels that exchange partial sums and also write tensor
maps."""
MOST_BESIDE_ROWS = 120
"""Largest number of registers of a thread for accumulators and for results of row reductions, if B
is the left operand of wgmma. Of 48 kernels with one to four such results for each row, 26 of the 36
that need more registers spilled, and none of the other 12."""
ROWS_OF_THREAD = 4
"""If B is the left operand of wgmma, a thread holds elements of one in ROWS_OF_THREAD rows of a
warpgroup's part of D: of two in every eight."""


def accumulators_beside(element_bytes: int, by_elements: bool) -> int:
    """Largest number of accumulator registers of a thread, given what its epilogue reads.

    Args:
        element_bytes: bytes of the widest operand element that the epilogue reads for every
            element of D; 0 if there is no such operand.
        by_elements: whether B is the left operand of wgmma, so that operands are read one element
            at a time.
    """
    if not element_bytes:
        return MOST_ACCUMULATORS
    return MOST_BESIDE_C[2 if element_bytes <= 2 else 4, by_elements]


def streamed(graph: KernelGraph) -> bool:
    """Whether workgroups exchange partial sums through memory, as in Stream-K and split-K."""
    return any(t.name == "partials" for t in graph.tensors)


def row_registers(gemm: GemmProblem) -> int:
    """Number of registers in which a thread holds the epilogue's reductions of one row of D."""
    reductions = [output.reduce for output in gemm.outputs.values() if output.reduce]
    return sum(len(RUNNING[name].identity) for name in reductions)


def too_many_rows(gemm: GemmProblem, accumulators: Any, rows: Any) -> Any:
    """Whether a thread has too few registers for reductions of rows, if B is wgmma's left operand.

    Args:
        gemm: the matrix product, with the epilogue.
        accumulators: number of accumulators of a thread: a number, or an array of numbers.
        rows: number of rows of D in a warpgroup's part of a tile, of the same type.
    """
    held = row_registers(gemm) * rows // ROWS_OF_THREAD
    return (held > 0) & (accumulators + held > MOST_BESIDE_ROWS)


def no_registers(
    graph: KernelGraph, division: Division, element_bytes: int, writes_maps: bool
) -> str | None:
    """Why the accumulators of a tile do not fit in the registers; None if they fit.

    Args:
        graph: the scheduled graph.
        division: how the tile is divided over workgroups and warpgroups.
        element_bytes: bytes of the widest operand element that the epilogue reads for every
            element of D; 0 if there is no such operand.
        writes_maps: whether the kernel writes tensor maps.
    """
    kind = graph.gemm.out_dtype or graph.gemm.dtype
    by_elements = division.swapped or graph.gemm.by_elements
    most = accumulators_beside(element_bytes, by_elements)
    if streamed(graph):
        most = min(most, MOST_BESIDE_MAPS if writes_maps else MOST_BESIDE_PARTIALS)
    rows = division.share(division.right)
    crowded = division.swapped and too_many_rows(graph.gemm, division.accumulators, rows)
    if division.accumulators <= most and division.columns <= MOST_COLUMNS and not crowded:
        return None
    part = f"{division.extent(M)}x{division.extent(N)} of {kind}"
    if division.columns > MOST_COLUMNS:
        return (
            f"a workgroup's part {part} needs instructions of {division.columns} columns, and "
            f"wgmma has at most {MOST_COLUMNS}; halve the tile in m or n, or divide it by a "
            "larger cluster"
        )
    if crowded:
        held = row_registers(graph.gemm) * rows // ROWS_OF_THREAD
        return (
            f"a workgroup's part {part} needs {division.accumulators} accumulator registers in "
            f"each thread, and {held} for the epilogue's reductions of rows, and "
            f"{MOST_BESIDE_ROWS} fit; choose a tile with a multiple of {MMA_M} rows, or with fewer"
        )
    return (
        f"a workgroup's part {part} needs {division.accumulators} accumulator registers in "
        f"each thread of its warpgroups, and {most} fit; halve the tile in m or n, or divide "
        "it by a larger cluster"
    )
