"""`call_key`: the key by which a kernel finds the checked call of arrays with the same layouts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from codegen.call.arrays import library
from codegen.call.views import label
from codegen.targets.nvptx.launch.call import ARGUMENTS, Pointers
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["LOW_BITS", "call_key"]

LOW_BITS = ALIGNED_BYTES - 1
"""Mask for the low 4 bits of an address; they are 0 if the address is aligned to 16 bytes."""
NAMES = tuple(map(label, ARGUMENTS))
"""What error messages call the arrays whose pointers come first in a call."""
NOTHING: tuple[Hashable, int] = (None, 0)
"""(layout key, address) of a tensor that a call does not pass."""


def call_key(
    arrays: tuple[Any, Any, Any, Any, Any],
    others: Iterable[tuple[str, Any]],
    read: tuple[bool, ...],
    workgroups: int | None,
) -> tuple[Hashable, Pointers]:
    """(the key of a call, the addresses of its arrays in the order of `ARGUMENTS` and `others`).

    The key has the shape, strides, type, device and alignment of each array.

    Args:
        arrays: A, B, C, D and the offsets of groups; None for an array that the call leaves out.
        others: (name of the tensor, array or None) of the tensors that calls pass by keyword.
        read: for each scalar on whose value the launch depends, whether it is not 0.
        workgroups: the argument `workgroups` of the call.

    Raises:
        LaunchError: an array has no memory of its own.
    """
    a, b, c, d, offsets = arrays
    name_a, name_b, name_c, name_d, name_o = NAMES
    key_a, at_a = library(a).layout_key(a, name_a)
    key_b, at_b = library(b).layout_key(b, name_b)
    key_c, at_c = NOTHING if c is None else library(c).layout_key(c, name_c)
    key_d, at_d = NOTHING if d is None else library(d).layout_key(d, name_d)
    key_o, at_o = NOTHING if offsets is None else library(offsets).layout_key(offsets, name_o)
    low = (at_a & LOW_BITS, at_b & LOW_BITS, at_c & LOW_BITS, at_d & LOW_BITS)
    key = (key_a, key_b, key_c, key_d, key_o, low, read, workgroups)
    if not others:
        return key, (at_a, at_b, at_c, at_d, at_o)
    seen = [NOTHING if x is None else library(x).layout_key(x, name) for name, x in others]
    key = (*key, *((found, at & LOW_BITS) for found, at in seen))
    return key, (at_a, at_b, at_c, at_d, at_o, *(at for _, at in seen))
