"""Refuse calls in which an output overlaps another array; D may share an operand's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from codegen.call.views import TensorView, label
from coordgraph import LaunchError
from coordgraph.gemm import OFFSETS
from coordgraph.tensors import dtype

__all__ = ["check_overlap"]

MADE_UP = 1 << 62
"""A made-up address beyond all memory, at which numpy compares the layouts of two arrays."""
MOST_WORK = 10_000
"""Largest number of candidates that numpy tries when it looks for an address in both arrays; after
that the arrays count as overlapping."""

MOST_SEPARATE = 4
"""Largest number of matrices of an array whose address ranges are compared one by one."""


def check_overlap(views: Mapping[str, TensorView], outputs: Sequence[str] = ("D",)) -> None:
    """Raise LaunchError if an output overlaps another tensor; layouts must have been checked.

    D may be the same memory as C or another epilogue operand with D's type, shape and strides.

    Args:
        views: the arrays of a call, by the names of tensors.
        outputs: the names of the tensors that the kernel writes; D comes first.
    """
    for place, output in enumerate(outputs):
        out = views.get(output)
        for name, other in views.items():
            seen = outputs[: place + 1]  # each pair of outputs is compared once
            if out is None or name in seen or not (how := _overlap(out, other)):
                continue
            # The epilogue reads an element of an operand before it writes that element of D, so
            # both may be the same memory. Other outputs are written before all operands are read.
            apart = ("A", "B", OFFSETS, *outputs)
            if output == "D" and name not in apart and _same(out, other):
                continue
            raise LaunchError(
                f"argument '{label(output)}' {how.format(label(name))}; pass an array for "
                f"'{label(output)}' that shares no memory with the other arguments"
            )


def _same(one: TensorView, other: TensorView) -> bool:
    """Whether every element of one array has the address of the same element of the other."""
    if (one.pointer, one.dtype, one.shape) != (other.pointer, other.dtype, other.shape):
        return False
    axes = zip(one.shape, one.strides, other.strides, strict=True)
    return all(extent == 1 or step == pace for extent, step, pace in axes)


def _overlap(one: TensorView, other: TensorView) -> str:
    """Text that says how two arrays overlap, with `{}` for the name of `other`; '' if not."""
    if not (one.bytes and other.bytes):
        return ""
    if pieces := _separate(other):
        return next((how for piece in pieces if (how := _overlap(one, piece))), "")
    apart = other.pointer - one.pointer
    if not -other.bytes < apart < one.bytes:
        return ""
    # The address ranges overlap, but rows or matrices of one array may be in gaps of the other.
    limit: Any = MOST_WORK  # typed as Any, because numpy's type hints allow only 0 and -1
    try:
        shared = np.shares_memory(_memory(one, 0), _memory(other, apart), max_work=limit)
        return "overlaps {}" * shared
    except np.exceptions.TooHardError:
        return "may overlap {}: their rows and matrices are interleaved"


def _separate(view: TensorView) -> list[TensorView]:
    """The matrices along an array's third axis from the end, if they are separate; else [].

    They are separate if there are at most `MOST_SEPARATE`, and if their address ranges do not
    overlap. Other arrays may then lie between them.
    """
    if len(view.shape) < 3 or not 1 < view.shape[-3] <= MOST_SEPARATE:
        return []
    shape, strides = ((*x[:-3], *x[-2:]) for x in (view.shape, view.strides))
    one, size = replace(view, shape=shape, strides=strides), dtype(view.dtype).bytes
    if view.strides[-3] * size < one.bytes:
        return []
    steps = (view.pointer + part * view.strides[-3] * size for part in range(view.shape[-3]))
    return [replace(one, pointer=pointer) for pointer in steps]


def _memory(view: TensorView, offset: int) -> Any:
    """A numpy array with the layout of `view` at a made-up address, which nothing may read.

    Args:
        view: the array whose shape and strides are used.
        offset: the bytes to add to the made-up address.
    """
    size = dtype(view.dtype).bytes
    interface = {
        "version": 3,
        "data": (MADE_UP + offset, False),
        "shape": view.shape,
        "strides": tuple(size * stride for stride in view.strides),
        "typestr": f"|V{size}",
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))
