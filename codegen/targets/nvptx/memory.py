"""Raw device memory, for who has neither PyTorch nor CuPy nor JAX at hand."""

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
    """Allocations of one device, freed together at the end of a `with` block.

    `upload` makes what kernels take as an array: `kernel(memory.upload(a), memory.upload(b), …)`.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._pointers: list[int] = []

    def allocate(self, size: int) -> int:
        """Address of `size` bytes, at least one: the driver allocates no fewer."""
        self.device.activate()
        pointer = int(cuda("cuMemAlloc", max(size, 1)))
        self._pointers.append(pointer)
        return pointer

    def upload(self, array: npt.NDArray[Any]) -> TensorView:
        """A copy of a numpy array on the device, row-major."""
        source = np.ascontiguousarray(array)
        pointer = self.allocate(source.nbytes)
        if source.nbytes:
            cuda("cuMemcpyHtoD", pointer, source.ctypes.data, source.nbytes)
        strides = tuple(stride // source.itemsize for stride in source.strides)
        kind = dtype(source.dtype.name).name
        return TensorView(pointer, source.shape, strides, kind, self.device.ordinal)

    def download(self, view: TensorView, into: npt.NDArray[Any]) -> None:
        """Copy back into an array of the same shape and type; waits for work under way."""
        assert (view.shape, view.bytes) == (into.shape, into.nbytes)
        assert into.flags.c_contiguous
        self.device.activate()
        cuda("cuCtxSynchronize")
        cuda("cuMemcpyDtoH", into.ctypes.data, view.pointer, into.nbytes)

    def close(self) -> None:
        """Free everything."""
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
