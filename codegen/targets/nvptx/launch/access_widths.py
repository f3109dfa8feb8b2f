"""Computes how many elements of each tensor a kernel may move in one access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from codegen.architectures import Vectors
from codegen.call.alignment import alignment_of
from codegen.call.views import TensorView
from coordgraph.tensors import dtype
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["access_widths"]

PAIR = 2
"""Number of adjacent elements of a row of D that a thread holds in an accumulator fragment."""


def access_widths(
    views: Mapping[str, TensorView],
    most: Vectors,
    along_rows: Sequence[str],
    boxed: Sequence[str],
    *,
    part: int = 0,
) -> Vectors:
    """The widest accesses that rows and addresses of the tensors allow, at most `most`.

    TMA stores D only under three conditions: the address of D, and the distances between its rows
    and matrices, are multiples of 16 bytes; the length of its rows is a multiple of 16 bytes, so
    that no access of 16 bytes extends past a row into a gap; and pairs of elements of D and of the
    tensors in `along_rows` can be accessed. A D that is not stored restricts nothing.

    Args:
        views: the arrays that a call passes, by the name of the tensor. D is among them if it is
            stored.
        most: the widest accesses that the element types allow.
        along_rows: the epilogue's operands and outputs that vary along the rows of D, such as C.
        boxed: the tensors of `along_rows` that TMA loads, provided that all tensors in `boxed` are
            aligned to 16 bytes.
        part: the number of columns of B for one sum that are adjacent in memory, if the epilogue
            has several sums and rows of B have such columns; else 0.
    """

    def widest(name: str, elements: int) -> int:
        found = views.get(name)
        if found is None:
            return elements
        if found.element_stride != 1:
            return 1
        elements = gcd(elements, part) if name == "B" else elements
        steps = (found.leading_dimension, *found.outer_strides)
        vector = gcd(elements, found.shape[-1], *steps)
        while found.pointer % (vector * dtype(found.dtype).bytes):
            vector //= 2
        return vector

    pairs = min(widest(name, PAIR) for name in (*along_rows, "D"))
    whole = pairs == PAIR
    if d := views.get("D"):
        whole = whole and alignment_of(d) == ALIGNED_BYTES and not d.shape[-1] % most.d
    narrow = whole and any(alignment_of(views[name]) < ALIGNED_BYTES for name in boxed)
    return Vectors(
        widest("A", most.a), widest("B", most.b), most.d if whole else pairs, PAIR if narrow else 0
    )
