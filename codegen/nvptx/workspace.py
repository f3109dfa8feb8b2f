"""Workspaces: partial tiles and flags, one set for each stream.

Flags are zeroed once, as are sums that pieces are added to; every kernel leaves them zero. Two
streams never share a workspace, nor do a stream and a CUDA graph captured on it, since a graph may
be replayed anywhere; so each capture gets its own, which lives as long as the kernel. The
per-thread default stream is one handle for as many streams as there are threads.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Hashable
from dataclasses import dataclass

from codegen.nvptx.driver import Device, allow_while_capturing, bindings, check, cuda, direct

__all__ = ["Workspaces"]

PER_THREAD_STREAM = 2
"""The driver's CU_STREAM_PER_THREAD."""


class _Thread(threading.local):
    """What tells threads apart: unlike a thread's number, it is never used again."""

    def __init__(self) -> None:
        self.token = object()


_thread = _Thread()


@dataclass
class _Buffer:
    pointer: int
    size: int


class Workspaces:
    """Device buffers by owner and tensor; the device must be current."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._buffers: dict[tuple[Hashable, str], _Buffer] = {}
        self._retired: list[_Buffer] = []
        self._lock = threading.Lock()
        self._is_capturing = direct().cuStreamIsCapturing

    def owner(self, stream: int, capturing: ctypes.c_int, address: int) -> Hashable:
        """Whose workspace a launch needs: the stream's, or that of the capture going on there.

        `capturing` and its `address` are room for the driver's answer.
        """
        if status := self._is_capturing(stream, address):
            check("cuStreamIsCapturing", status)
        if capturing.value:
            _, identifier, *_ = cuda("cuStreamGetCaptureInfo", stream)
            return (stream, int(identifier))
        return (stream, _thread.token) if stream == PER_THREAD_STREAM else stream

    def get(self, owner: Hashable, name: str, size: int, *, zeroed: bool) -> int:
        """Address of at least `size` bytes that belong to this owner alone."""
        found = self._buffers.get((owner, name))
        if found is not None and found.size >= size:
            return found.pointer
        with self._lock:
            return self._grow((owner, name), size, zeroed)

    def _grow(self, key: tuple[Hashable, str], size: int, zeroed: bool) -> int:
        before = self._buffers.get(key)
        if before is not None:
            if before.size >= size:  # another thread was faster
                return before.pointer
            # Launches under way may still use it: free it with the kernel.
            self._retired.append(before)
        self._buffers[key] = made = self._allocate(size, zeroed)
        return made.pointer

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
