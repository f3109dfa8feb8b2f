"""Tensor maps: how the copy engine is told of a tensor. Encoded once for an address and a shape."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod

from codegen.checks import TensorView
from codegen.nvptx.driver import bindings, check, direct
from codegen.recent import Recent
from coordgraph.tensors import dtype

__all__ = ["TensorMap", "TensorMaps", "copy_engine_takes"]

ALIGNMENT = 16
"""Bytes of which addresses and row strides must be multiples."""
MOST_MAPS = 1024
MAP_BYTES, MAP_ALIGNMENT = 128, 64
SWIZZLED = (32, 64, 128)
"""Bytes of rows that are swizzled."""
KINDS = {"bf16": "BFLOAT16", "f16": "FLOAT16", "f32": "FLOAT32"}


def copy_engine_takes(view: TensorView) -> bool:
    """True where address and strides are multiples of 16 bytes; matrices must not coincide."""
    size = dtype(view.dtype).bytes
    steps = [view.shape[-1]]
    if len(view.shape) == 3:
        steps.append(view.matrix_stride)
    return view.pointer % ALIGNMENT == 0 and all(
        step > 0 and step * size % ALIGNMENT == 0 for step in steps
    )


class TensorMap:
    """The driver's CUtensorMap, 128 bytes at `address`."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT


class TensorMaps:
    """Maps of row-major matrices of one shape by address; elements outside read as 0.

    Args:
        shape: rows and columns; before them, how many matrices there are.
        kind: the elements' type.
        box: elements of a copy, contiguous axis first. In shared memory its rows are swizzled if
            they have 32, 64 or 128 bytes.
        strides: in elements, where there are gaps between matrices.
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
        extents = (wide * rank)(*reversed(shape))
        steps_in_bytes = (wide * (rank - 1))(*(size * step for step in reversed(steps_of[:-1])))
        boxes, steps = (narrow * rank)(*box), (narrow * rank)(*([1] * rank))
        row_bytes = box[0] * dtype(kind).bytes
        mode = f"{row_bytes}B" if row_bytes in SWIZZLED else "NONE"
        swizzle = getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{mode}")
        data_type = getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{KINDS[kind]}")
        self._before = (int(data_type), rank)
        self._after = (
            *(ctypes.addressof(array) for array in (extents, steps_in_bytes, boxes, steps)),
            int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            int(swizzle),
            int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
            int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        )
        self._alive = (extents, steps_in_bytes, boxes, steps)
        self._known = Recent[int, TensorMap](MOST_MAPS)

    def get(self, pointer: int) -> TensorMap:
        """The map of the matrix at an address."""
        return self._known.get(pointer) or self._encode(pointer)

    def _encode(self, pointer: int) -> TensorMap:
        made = TensorMap()
        status = direct().cuTensorMapEncodeTiled(made.address, *self._before, pointer, *self._after)
        check("cuTensorMapEncodeTiled", status)
        return self._known.put(pointer, made)
