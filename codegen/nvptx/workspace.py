"""Workspaces: partial tiles and flags, one set for each stream.

Flags are zeroed once; every kernel leaves them zero. Two streams never share a workspace, nor do
a stream and a CUDA graph captured on it, since a graph may be replayed anywhere; so each capture
gets its own, which lives as long as the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from codegen.nvptx.driver import Device, allow_while_capturing, bindings, cuda

__all__ = ["Workspaces"]


@dataclass
class _Buffer:
    pointer: int
    size: int


class Workspaces:
    """Device buffers by stream and tensor."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._buffers: dict[tuple[Any, str], _Buffer] = {}
        self._retired: list[_Buffer] = []

    def get(self, stream: int, name: str, size: int, *, zeroed: bool) -> int:
        """Address of at least `size` bytes that belong to this stream."""
        key = (self._owner(stream), name)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.size < size:
            if buffer is not None:
                # Launches under way may still use it: free it with the kernel.
                self._retired.append(buffer)
            buffer = self._allocate(size, zeroed)
            self._buffers[key] = buffer
        return buffer.pointer

    def _owner(self, stream: int) -> Any:
        """The stream, or the capture that is going on there."""
        status, identifier, *_ = cuda("cuStreamGetCaptureInfo", stream)
        if status == bindings().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
            return (stream, int(identifier))
        return stream

    def _allocate(self, size: int, zeroed: bool) -> _Buffer:
        """Allocate, also while some stream captures: the relaxed mode allows it."""
        with allow_while_capturing():
            pointer = int(cuda("cuMemAlloc", max(size, 16)))
            if zeroed:
                private = cuda("cuStreamCreate", bindings().CUstream_flags.CU_STREAM_NON_BLOCKING)
                cuda("cuMemsetD32Async", pointer, 0, -(-size // 4), private)
                cuda("cuStreamSynchronize", private)
                cuda("cuStreamDestroy", private)
        return _Buffer(pointer, size)

    def close(self) -> None:
        """Free everything; cuMemFree waits for kernels that use it."""
        for buffer in (*self._buffers.values(), *self._retired):
            cuda("cuMemFree", buffer.pointer)
        self._buffers.clear()
        self._retired.clear()
