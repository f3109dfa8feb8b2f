"""Packs lists of matrices into vectors, for kernels of `Gemm(grouped=True, group_axis="mnk")`.

The arrays may be of NumPy, PyTorch or CuPy. New arrays are on the device of the arrays that are
passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import accumulate
from typing import Any

from coordgraph import LaunchError
from coordgraph.elements import CHUNK_BYTES
from coordgraph.gemm import MOST_TOGETHER, ROW_STEP
from coordgraph.validation import a_type, whole

__all__ = ["empty", "offsets", "pack", "unpack"]

Shape = tuple[int, int]
"""Numbers of rows and columns of a matrix."""
LIBRARIES = ("numpy", "torch", "cupy")
"""The libraries whose matrices `pack` can copy into one vector."""


def pack(matrices: Sequence[Any]) -> Any:
    """Copy matrices one after another into a new vector, with rows padded by zeros.

    Padding makes the leading dimension of each matrix a multiple of 8 elements and of 16 bytes.

    Args:
        matrices: matrices of the same element type, at least one. Each matrix is given as rows x
            columns in memory: k x m for the A of a kernel with `transpose_a`.

    Raises:
        LaunchError: the list is empty, or one of its elements is no matrix or has another element
            type than the first matrix.
    """
    matrices = [*matrices]
    if not matrices:
        raise LaunchError("the list of matrices is empty; pass at least one matrix")
    first = matrices[0]
    for place, matrix in enumerate(matrices):
        _library(matrix)
        if len(matrix.shape) != 2:
            raise LaunchError(
                f"matrices[{place}] has {len(matrix.shape)} axes; pass matrices, which have 2"
            )
        if matrix.dtype != first.dtype:
            raise LaunchError(
                f"matrices[{place}] has the type {matrix.dtype}, but matrices[0] has "
                f"{first.dtype}; convert one of them"
            )
    shapes = [(int(rows), int(columns)) for rows, columns in (x.shape for x in matrices)]
    vector = empty(shapes, first)
    vector[...] = 0
    for place, matrix in zip(unpack(vector, shapes), matrices, strict=True):
        place[...] = matrix
    return vector


def unpack(vector: Any, shapes: Sequence[Shape]) -> list[Any]:
    """The matrices in a vector, as views: writing to a matrix writes to the vector.

    Args:
        vector: a vector that `pack` or `empty` has made.
        shapes: rows and columns of each matrix.

    Raises:
        LaunchError: `vector` has several axes, or is too short for the matrices.
    """
    step = _step(vector)
    *starts, end = _starts(shapes, step)
    if len(vector.shape) != 1:
        raise LaunchError(
            f"the vector has {len(vector.shape)} axes; pass one with 1 axis, as pack() makes it"
        )
    if vector.shape[0] < end:
        raise LaunchError(
            f"the vector has {vector.shape[0]} elements, but the matrices need {end}; pass a "
            "longer one, as empty() makes it"
        )
    return [
        vector[start : start + rows * _pitch(columns, step)].reshape(rows, _pitch(columns, step))[
            :, :columns
        ]
        for start, (rows, columns) in zip(starts, shapes, strict=True)
    ]


def empty(shapes: Sequence[Shape], like: Any) -> Any:
    """A new vector with room for matrices of these shapes, for the argument `out` of a kernel.

    The vector has at least one element, because kernels refuse empty arrays.

    Args:
        shapes: rows and columns of each matrix.
        like: an array; the vector has its library, device and element type.
    """
    *_, end = _starts(shapes, _step(like))
    return _new("empty", like, max(end, 1), dtype=like.dtype)


def offsets(sizes: Sequence[tuple[int, int, int]], like: Any) -> Any:
    """The argument `offsets` of a kernel for a list of products: an i32 array, 3 x (groups + 1).

    A group is one product of the list. The rows of the array are for m, n and k: the index at which
    each group begins, and the index at which the last group ends.

    Args:
        sizes: m, n and k of each product.
        like: an array; the result has its library and device.

    Raises:
        LaunchError: an element of `sizes` is not three integers of at least 0; or the extents along
            m, along n or along k add up to more than kernels support.
    """
    rows = [[0], [0], [0]]
    for place, size in enumerate(sizes):
        if len(size) != len(rows):
            raise LaunchError(
                f"sizes[{place}] = {size} has {len(size)} numbers; pass m, n and k of each product"
            )
        for row, extent in zip(rows, size, strict=True):
            row.append(row[-1] + whole(extent, f"sizes[{place}]", LaunchError, least=0))
    if (most := max(row[-1] for row in rows)) > MOST_TOGETHER:
        raise LaunchError(
            f"the extents of the products add up to {most} along m, n or k, and kernels take at "
            f"most {MOST_TOGETHER}; split the list of products"
        )
    return _new("asarray", like, rows, dtype=_library(like).int32)


def _step(like: Any) -> int:
    """The number of elements of which every packed matrix's leading dimension is a multiple."""
    return max(ROW_STEP, CHUNK_BYTES // int(like.dtype.itemsize))


def _pitch(columns: int, step: int) -> int:
    """The leading dimension of a matrix: elements from the start of one row to the next."""
    return -(-columns // step) * step


def _starts(shapes: Sequence[Shape], step: int) -> Iterator[int]:
    """Index of each matrix's first element in the packed vector, then the length of the vector."""
    return accumulate((rows * _pitch(columns, step) for rows, columns in shapes), initial=0)


def _library(like: Any) -> Any:
    """The module of the array library (numpy, torch or cupy) that an array belongs to."""
    for kind in type(like).__mro__:
        if (name := kind.__module__.partition(".")[0]) in LIBRARIES:
            return import_module(name)
    raise LaunchError(
        f"{a_type(like)} is given, which is no array; pass an array of {', '.join(LIBRARIES)}"
    )


def _new(make: str, like: Any, *args: Any, **options: Any) -> Any:
    """Make an array by the function named `make` (such as `zeros`) of the library of array `like`.

    The new array is on the device of `like`.
    """
    library = _library(like)
    if library.__name__ == "torch":
        options["device"] = like.device
    return getattr(library, make)(*args, **options)
