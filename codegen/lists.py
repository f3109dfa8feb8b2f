"""Lists of matrices as the vectors that kernels of `Gemm(grouped=True, group_axis="mnk")` take.

For numpy, PyTorch and CuPy; what is made lies on the device of what it is made like.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import accumulate
from typing import Any

from coordgraph import LaunchError
from coordgraph.elements import CHUNK_BYTES
from coordgraph.gemm import MOST_TOGETHER, ROW_STEP
from coordgraph.validation import whole

__all__ = ["empty", "offsets", "pack", "unpack"]

Shape = tuple[int, int]
LIBRARIES = ("numpy", "torch", "cupy")


def pack(matrices: Sequence[Any]) -> Any:
    """Matrices one after another in a new vector; what fills up their rows is 0.

    Args:
        matrices: at least one, of one type, rows x columns each, as they are to be stored: so
            k x m for the A of a kernel with `transpose_a`.

    Raises:
        LaunchError: there are none, or one is no matrix, or has another type than the first.
    """
    matrices = [*matrices]
    if not matrices:
        raise LaunchError("no matrices: a list has at least one")
    first = matrices[0]
    for place, matrix in enumerate(matrices):
        _library(matrix)
        if len(matrix.shape) != 2:
            raise LaunchError(f"matrices[{place}] has {len(matrix.shape)} axes, a matrix has two")
        if matrix.dtype != first.dtype:
            raise LaunchError(
                f"matrices[{place}] holds {matrix.dtype}, those before {first.dtype}; convert it"
            )
    shapes = [(int(rows), int(columns)) for rows, columns in (x.shape for x in matrices)]
    vector = empty(shapes, first)
    vector[...] = 0
    for place, matrix in zip(unpack(vector, shapes), matrices, strict=True):
        place[...] = matrix
    return vector


def unpack(vector: Any, shapes: Sequence[Shape]) -> list[Any]:
    """The matrices in a vector, rows x columns each, as views: to write one writes the vector.

    Raises:
        LaunchError: the vector is too short.
    """
    step = _step(vector)
    *starts, end = _starts(shapes, step)
    if len(vector.shape) != 1:
        raise LaunchError(f"the vector has {len(vector.shape)} axes")
    if vector.shape[0] < end:
        raise LaunchError(f"the vector has {vector.shape[0]} elements, the matrices take {end}")
    return [
        vector[start : start + rows * _pitch(columns, step)].reshape(rows, _pitch(columns, step))[
            :, :columns
        ]
        for start, (rows, columns) in zip(starts, shapes, strict=True)
    ]


def empty(shapes: Sequence[Shape], like: Any) -> Any:
    """A new vector with room for matrices of such shapes, as `out=` takes it.

    It has one element at least, as kernels want.

    Args:
        shapes: rows and columns of each.
        like: an array of the type wanted.
    """
    *_, end = _starts(shapes, _step(like))
    return _new("empty", like, max(end, 1), dtype=like.dtype)


def offsets(sizes: Sequence[tuple[int, int, int]], like: Any) -> Any:
    """Where groups begin along m, n and k, and the ends: 3 x (groups + 1), i32.

    Args:
        sizes: m, n and k of each product.
        like: an array of the library wanted.

    Raises:
        LaunchError: one has not three extents, whole numbers from 0 on; or they are more together
            than kernels take.
    """
    rows = [[0], [0], [0]]
    for place, size in enumerate(sizes):
        if len(size) != len(rows):
            raise LaunchError(f"sizes[{place}] = {size} should be m, n and k of a product")
        for row, extent in zip(rows, size, strict=True):
            row.append(row[-1] + whole(extent, f"sizes[{place}]", LaunchError, least=0))
    if (most := max(row[-1] for row in rows)) > MOST_TOGETHER:
        raise LaunchError(f"the groups have {most} along an axis, {MOST_TOGETHER} is the most")
    return _new("asarray", like, rows, dtype=_library(like).int32)


def _step(like: Any) -> int:
    """Elements of which rows begin at multiples; see `coordgraph.gemm.row_step`."""
    return max(ROW_STEP, CHUNK_BYTES // int(like.dtype.itemsize))


def _pitch(columns: int, step: int) -> int:
    """Elements from one row of a matrix to the next."""
    return -(-columns // step) * step


def _starts(shapes: Sequence[Shape], step: int) -> Iterator[int]:
    """Where each matrix begins in the vector, and the end."""
    return accumulate((rows * _pitch(columns, step) for rows, columns in shapes), initial=0)


def _library(like: Any) -> Any:
    for kind in type(like).__mro__:
        if (name := kind.__module__.partition(".")[0]) in LIBRARIES:
            return import_module(name)
    raise LaunchError(f"a {type(like).__name__} is no array of {', '.join(LIBRARIES)}")


def _new(make: str, like: Any, *args: Any, **options: Any) -> Any:
    library = _library(like)
    if library.__name__ == "torch":
        options["device"] = like.device
    return getattr(library, make)(*args, **options)
