"""Tensor maps (`CUtensorMap`): TMA's description of a tensor, encoded once for each address.

A `CUtensorMap` must lie at a multiple of 64 bytes (CUDA Driver API, "Tensor Map Object
Management"). cuda-python encodes a `CUtensorMap` inside a Python object, which Python aligns to 16
bytes; that has crashed processes (NVIDIA/cuda-python, pull request 1692). So this module calls the
driver's function through ctypes, with aligned memory. Maps are kept for later launches.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache
from math import prod

from codegen.lru import LRUCache
from codegen.targets.nvptx.driver import bindings, check
from coordgraph.tensors import dtype

__all__ = [
    "MAP_ALIGNMENT",
    "MAP_BYTES",
    "TensorMap",
    "TensorMaps",
    "data_type",
    "encoder",
    "swizzle_of",
]

MOST_MAPS = 1024
"""The number of most recently used addresses whose tensor maps a `TensorMaps` object certainly
keeps. It may keep up to twice as many tensor maps."""
MAP_BYTES, MAP_ALIGNMENT = 128, 64
"""The size of a `CUtensorMap`, and the alignment of its address, in bytes."""
SWIZZLED = (32, 64, 128)
"""The row sizes of a TMA box, in bytes, for which TMA has a swizzle mode."""
UNSIGNED_ONLY = (8, 16)
"""Widths of integers, in bits, for which tensor maps have only an unsigned type. TMA copies only
bits, so signed integers and 8-bit floats use the unsigned type of their width."""


def data_type(kind: str) -> str:
    """The suffix of CU_TENSOR_MAP_DATA_TYPE_… for an element type, such as `BFLOAT16` for bf16."""
    found = dtype(kind)
    if found.bits in UNSIGNED_ONLY and (found.is_small_float or not found.is_float):
        return f"UINT{found.bits}"
    return found.library.upper()


def swizzle_of(box: Sequence[int], element: int, rank: int) -> str:
    """The suffix of CU_TENSOR_MAP_SWIZZLE_… for a TMA box: `32B`, `64B`, `128B` or `NONE`.

    Args:
        box: extents of the TMA box in elements, contiguous axis first.
        element: size of an element in bytes.
        rank: the number of axes of the tensor.
    """
    row_bytes = box[0] * element
    return f"{row_bytes}B" if row_bytes in SWIZZLED and rank > 1 else "NONE"


@cache
def encoder() -> Callable[..., int]:
    """The driver's function `cuTensorMapEncodeTiled`, called through ctypes; returns a status."""
    library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    address, number = ctypes.c_void_p, ctypes.c_int
    function = library.cuTensorMapEncodeTiled
    function.restype = number
    function.argtypes = (
        *(address, number, ctypes.c_uint32, address),  # result, element type, rank, tensor address
        *(address,) * 4,  # four arrays: extents, strides, box extents, element strides
        *(number,) * 4,  # four enums: interleaving, swizzle, L2 promotion, fill mode
    )
    return function


class TensorMap:
    """The memory of a `CUtensorMap`: 128 bytes at `address`, which is a multiple of 64."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT


class TensorMaps:
    """The tensor maps of row-major matrices of one shape, one map for each address of a matrix.

    TMA reads elements outside a matrix as 0.

    Args:
        shape: (rows, columns); (matrices, rows, columns) for a batch; (elements,) for a vector.
        kind: the element type.
        box: extents of the TMA box in elements, contiguous axis first. TMA swizzles the rows of the
            box in shared memory if they have 32, 64 or 128 bytes and the tensor is no vector.
        strides: strides of the axes in elements; None for contiguous matrices without gaps.
    """

    def __init__(
        self,
        shape: Sequence[int],
        kind: str,
        box: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> None:
        driver, rank, size = bindings(), len(shape), dtype(kind).bytes
        wide, narrow = ctypes.c_uint64, ctypes.c_uint32
        steps_of = strides or [prod(shape[axis + 1 :]) for axis in range(rank)]
        mode = swizzle_of(box, size, rank)
        self._arrays = (
            (wide * rank)(*reversed(shape)),
            (wide * (rank - 1))(*(size * step for step in reversed(steps_of[:-1]))),
            (narrow * rank)(*box),
            (narrow * rank)(*[1] * rank),
        )
        kinds = driver.CUtensorMapDataType
        self._before = int(getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{data_type(kind)}")), rank
        self._after = (
            *map(ctypes.addressof, self._arrays),
            int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            int(getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{mode}")),
            int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
            int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        )
        self._known = LRUCache[int, TensorMap](MOST_MAPS)

    def get(self, pointer: int) -> TensorMap:
        """The tensor map of the matrix at the address `pointer`."""
        return self._known.get(pointer) or self._encode(pointer)

    def _encode(self, pointer: int) -> TensorMap:
        """Encode the tensor map of the matrix at the address `pointer`, and keep the map."""
        made = TensorMap()
        status = encoder()(made.address, *self._before, pointer, *self._after)
        check("cuTensorMapEncodeTiled", status)
        return self._known.put(pointer, made)
