"""Refuse `invariant=True` for calls whose order of additions may depend on m or on addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from codegen.call.alignment import alignment_of, alignment_of_factors
from codegen.call.request import PlanRequest
from codegen.call.views import LABELS, TensorView
from coordgraph import LaunchError

__all__ = ["check_invariant"]


def check_invariant(request: PlanRequest, views: Mapping[str, TensorView]) -> None:
    """Check that a call with `invariant=True` has the same order of additions for every m.

    On a GPU, the alignment of addresses and strides decides whether TMA can copy A and B, and so
    which instructions multiply. If A is given as its transpose, m decides the alignment of its
    rows, so the call is refused. If the rows of A run along k, the call is refused only if an
    address, or the distance between matrices of a batch, has a smaller alignment than the rows.

    Args:
        request: the problem and the device.
        views: row-major A and B, as the kernel gets them.

    Raises:
        LaunchError: the call cannot be batch invariant.
    """
    if request.order is None:
        return  # sums of integers are exact, so every order gives the same bits
    if request.gemm.ragged("k"):
        raise LaunchError(
            "invariant=True needs one order of additions for all rows, but with group_axis='k' "
            "every group has its own k; leave out invariant, or multiply each group by matmul"
        )
    if request.target == "cpu":
        return
    if request.gemm.transpose_a:
        raise LaunchError(
            "a is given as its transpose, so m decides the alignment of its rows, and with it the "
            "instructions that multiply; with invariant=True pass a row-major copy of a"
        )
    rows = alignment_of_factors(request.gemm, {name: _rows(views[name]) for name in "AB"})
    if request.alignment == rows:
        return
    name = next(x for x in "AB" if alignment_of(views[x]) == request.alignment)
    raise LaunchError(
        f"the address of {LABELS[name]}, or the distance of its matrices, is only a multiple of "
        f"{request.alignment} bytes, while rows of a and b are multiples of {rows} bytes; with "
        "invariant=True all products of these n and k must use the same instructions, but these "
        f"arrays would need others; pass a contiguous copy of {LABELS[name]}"
    )


def _rows(view: TensorView) -> TensorView:
    """One matrix of an array, moved to address 0, so that only its strides limit its alignment."""
    return replace(view, pointer=0, shape=view.shape[-2:], strides=view.strides[-2:])
