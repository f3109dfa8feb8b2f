"""Refuse calls in which D overlaps another array, unless D is in place of an epilogue operand."""

from __future__ import annotations

from collections.abc import Mapping

from codegen.call.views import TensorView, label
from coordgraph import LaunchError
from coordgraph.gemm import OFFSETS

__all__ = ["check_overlap"]


def check_overlap(views: Mapping[str, TensorView]) -> None:
    """Raise LaunchError if D overlaps another tensor; call it after checking layouts.

    D may be the same memory as C or another epilogue operand with D's type, shape and strides.
    """
    out = views.get("D")
    for name, other in views.items():
        if out is None or name == "D" or not (how := _overlap(out, other)):
            continue
        # The epilogue reads an element of an operand before it writes that element of D, so both
        # may be the same memory. If tensors of one shape begin at one address, comparing their
        # bytes shows whether their strides are equal too.
        same = (out.pointer, out.dtype, out.bytes) == (other.pointer, other.dtype, other.bytes)
        if name not in ("A", "B", OFFSETS) and same and out.shape == other.shape:
            continue
        raise LaunchError(
            f"argument 'out' {how.format(label(name))}; pass an array for 'out' that shares no "
            "memory with the other arguments"
        )


def _overlap(one: TensorView, other: TensorView) -> str:
    """Text that says how two arrays overlap, with `{}` for the name of `other`; '' if not."""
    if not (one.bytes and other.bytes):
        return ""
    apart = other.pointer - one.pointer
    if not -other.bytes < apart < one.bytes:
        return ""
    (step, size), (pace, length) = one.blocks, other.blocks
    if step and pace and step != pace:
        return "may overlap {}: their matrices are interleaved with different strides"
    # The address ranges overlap and both strides are equal, so either two blocks share bytes, or
    # each block of one array lies in a gap of the other.
    step = step or pace
    return "overlaps {}" * (not step or apart % step < size or -apart % step < length)
