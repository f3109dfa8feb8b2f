"""`DeviceMemory`: GPU memory from the CUDA driver, for callers without PyTorch, CuPy or JAX."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from codegen.call.views import TensorView
from codegen.targets.nvptx.driver import Device, cuda
from coordgraph.tensors import dtype

__all__ = ["DeviceMemory"]


class DeviceMemory:
    """Allocations on one GPU, which are freed together at the end of a `with` block.

    Kernels take the results of `upload` as arrays: `kernel(memory.upload(a), memory.upload(b))`.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._pointers: list[int] = []

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes of GPU memory, at least one, and return their address."""
        self.device.activate()
        pointer = int(cuda("cuMemAlloc", max(size, 1)))
        self._pointers.append(pointer)
        return pointer

    def upload(self, array: npt.NDArray[Any]) -> TensorView:
        """Copy a NumPy array to the GPU in row-major order, and return a view of the copy."""
        source = np.ascontiguousarray(array)
        pointer = self.allocate(source.nbytes)
        if source.nbytes:
            cuda("cuMemcpyHtoD", pointer, source.ctypes.data, source.nbytes)
        strides = tuple(stride // source.itemsize for stride in source.strides)
        kind = dtype(source.dtype.name).name
        return TensorView(pointer, source.shape, strides, kind, self.device.ordinal)

    def download(self, view: TensorView, into: npt.NDArray[Any]) -> None:
        """Copy the array that `view` describes from the GPU to a NumPy array.

        The copy begins when all work on the GPU has finished. `into` must be contiguous, and have
        the shape and the bytes of `view`.
        """
        assert (view.shape, view.bytes) == (into.shape, into.nbytes)
        assert into.flags.c_contiguous
        self.device.activate()
        cuda("cuCtxSynchronize")
        cuda("cuMemcpyDtoH", into.ctypes.data, view.pointer, into.nbytes)

    def close(self) -> None:
        """Free all allocations of this object."""
        self.device.activate()
        while self._pointers:
            cuda("cuMemFree", self._pointers.pop())

    def __enter__(self) -> DeviceMemory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
