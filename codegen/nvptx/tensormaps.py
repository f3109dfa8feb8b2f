"""Tensor maps: how the copy engine is told of a tensor. Encoded once for an address and a shape."""

from __future__ import annotations

from typing import Any

from codegen.checks import TensorView
from codegen.nvptx.driver import bindings, cuda
from coordgraph.tensors import dtype

__all__ = ["TensorMaps", "copy_engine_takes"]

ALIGNMENT = 16
"""Bytes of which addresses and row strides must be multiples."""
MOST_MAPS = 1024


def copy_engine_takes(view: TensorView) -> bool:
    """True where address and row stride are multiples of 16 bytes."""
    row = view.shape[-1] * dtype(view.dtype).bytes
    return view.pointer % ALIGNMENT == 0 and row % ALIGNMENT == 0


class TensorMaps:
    """Maps of row-major matrices, swizzled in rows of a box; elements outside read as 0."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Any] = {}

    def get(self, view: TensorView, box: tuple[int, ...]) -> Any:
        """The driver's CUtensorMap for a matrix and a box (contiguous axis first)."""
        key = (view.pointer, view.shape, view.dtype, box)
        if key not in self._known:
            if len(self._known) >= MOST_MAPS:
                self._known.clear()
            self._known[key] = _encode(view, box)
        return self._known[key]


def _encode(view: TensorView, box: tuple[int, ...]) -> Any:
    driver = bindings()
    kinds = driver.CUtensorMapDataType
    kind = {
        "bf16": kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        "f16": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        "f32": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    }[view.dtype]
    rows, columns = view.shape
    inner = box[0] * dtype(view.dtype).bytes
    wide, narrow = driver.cuuint64_t, driver.cuuint32_t
    return cuda(
        "cuTensorMapEncodeTiled",
        kind,
        2,
        view.pointer,
        [wide(columns), wide(rows)],
        [wide(columns * dtype(view.dtype).bytes)],
        [narrow(extent) for extent in box],
        [narrow(1), narrow(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{inner}B"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
