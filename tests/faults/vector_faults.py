"""Catalogue of faults of lowered graphs: accesses to elements that are not adjacent or aligned."""

from __future__ import annotations

from coordgraph.verification.vectors import NAME
from tests.faults.memory_fault import fault
from tests.support.gated import swiglu

__all__ = ["VECTOR_FAULTS"]

PERSISTENT, STREAM = "data-parallel{persistent=true}", "stream-k"
TWO_SUMS = (("epilogue", swiglu), ("parts", "interleaved"), ("transpose_b", False))
"""Arguments of `Gemm` for an epilogue of two sums of products (gate and up), as (name, value)."""
SWIZZLED = "edge Tile A.shared -> stage, A.shared.row, A.shared.chunk, A.shared.element\n"
PADDED = (
    "edge Split A.shared -> stage, A.shared.row, A.shared.chunk, A.shared.element"
    " strides=(4224, 66, 8, 1)\n"
)

VECTOR_FAULTS = (
    fault(
        "the two sums of an element not adjacent in the workspace",
        STREAM,
        "grows by 2048 along 'acc.pair'",
        (
            "Tile partials -> partial.slot, D.index.0, D.index.1, sum",
            "Tile partials -> partial.slot, sum, D.index.0, D.index.1",
        ),
        lowering=None,
        gemm=TWO_SUMS,
        check=NAME,
    ),
    fault(
        "the two registers of a store go to columns 4 apart",
        PERSISTENT,
        "grows by 4 along 'acc.pair'",
        ("acc.eighth, acc.quad, acc.pair", "acc.eighth, acc.pair, acc.quad"),
        lowering=None,
        check=NAME,
    ),
    fault(
        "16-byte copies to rows that are padded by 4 bytes",
        PERSISTENT,
        "is no multiple of 8",
        (SWIZZLED, PADDED),
        ("dim A.shared: Shared size=12288", "dim A.shared: Shared size=12670"),
        lowering=None,
        check=NAME,
    ),
    fault(
        "copies of 32 bytes instead of 16",
        PERSISTENT,
        "no coordinate of size 16 numbers the elements",
        ("destination=A.shared width=8", "destination=A.shared width=16"),
        lowering=None,
        check=NAME,
    ),
    fault(
        "elements of a vector of partial sums 128 apart in the workspace",
        STREAM,
        "grows by 128 along 'piece.element'",
        (
            "Tile partials -> partial.slot, piece.vector, piece.workitem, piece.element",
            "Tile partials -> partial.slot, piece.vector, piece.element, piece.workitem",
        ),
        check=NAME,
    ),
)
