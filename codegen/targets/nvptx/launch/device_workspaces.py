"""Workspaces in GPU memory: buffers for partial sums and flags, one set for each stream.

Flags, and partial sums for atomic additions, are zeroed once; every launch leaves them zero. Two
streams never share a workspace. A stream and a CUDA graph captured on it do not share a
workspace either, since the graph may be replayed on any stream: each capture gets a workspace of
its own, which is freed with the kernel. The handle of the per-thread default stream means another
stream in every thread, so each thread has its own workspaces for this handle.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass

from codegen.targets.nvptx.driver import (
    Device,
    allow_while_capturing,
    bindings,
    check,
    cuda,
)

__all__ = ["Workspaces"]

PER_THREAD_STREAM = 2
"""The handle of the per-thread default stream: the driver's CU_STREAM_PER_THREAD."""


class _Thread(threading.local):
    """A key for each thread, which is never reused, unlike a thread's identifier."""

    def __init__(self) -> None:
        self.token = object()


_thread = _Thread()


@dataclass
class _Buffer:
    """An allocation in device memory: its address, and its size in bytes."""

    pointer: int
    size: int


class Workspaces:
    """The workspace buffers of one kernel on one GPU, by owner (stream or capture) and tensor.

    Args:
        device: the GPU, which must be current when methods are called.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._buffers: dict[tuple[Hashable, str], _Buffer] = {}
        self._retired: list[_Buffer] = []
        self._lock = threading.Lock()
        self._is_capturing = bindings().cuStreamIsCapturing

    def owner(self, stream: int) -> Hashable:
        """The key of a launch's workspace: the stream, and the graph capture on it if there is one.

        For the per-thread default stream, the key also has the thread.
        """
        status, capturing = self._is_capturing(stream)
        if status:
            check("cuStreamIsCapturing", status)
        if capturing:
            _, identifier, *_ = cuda("cuStreamGetCaptureInfo", stream)
            return (stream, int(identifier))
        return (stream, _thread.token) if stream == PER_THREAD_STREAM else stream

    def get(self, owner: Hashable, name: str, size: int, *, zeroed: bool) -> int:
        """The address of a buffer of at least `size` bytes that only `owner` uses.

        Args:
            owner: the stream or graph capture, as `Workspaces.owner` returns it.
            name: the name of the workspace tensor.
            size: number of bytes that the launch needs.
            zeroed: whether a new buffer is zeroed.
        """
        found = self._buffers.get((owner, name))
        if found is not None and found.size >= size:
            return found.pointer
        with self._lock:
            return self._grow((owner, name), size, zeroed)

    def _grow(self, key: tuple[Hashable, str], size: int, zeroed: bool) -> int:
        """Replace the buffer of `key` by one of at least `size` bytes, and return the address."""
        before = self._buffers.get(key)
        if before is not None:
            if before.size >= size:  # another thread has enlarged the buffer
                return before.pointer
            # Running launches may still use the smaller buffer, so it is freed with the kernel.
            self._retired.append(before)
        self._buffers[key] = made = self._allocate(size, zeroed)
        return made.pointer

    def _allocate(self, size: int, zeroed: bool) -> _Buffer:
        """Allocate a buffer, which is possible even while a stream captures a graph."""
        with allow_while_capturing():
            pointer = int(cuda("cuMemAlloc", max(size, 16)))
            if zeroed:
                private = cuda("cuStreamCreate", bindings().CUstream_flags.CU_STREAM_NON_BLOCKING)
                cuda("cuMemsetD32Async", pointer, 0, -(-size // 4), private)
                cuda("cuStreamSynchronize", private)
                cuda("cuStreamDestroy", private)
        return _Buffer(pointer, size)

    def close(self) -> None:
        """Free all buffers; cuMemFree waits for launches that use them."""
        for buffer in (*self._buffers.values(), *self._retired):
            cuda("cuMemFree", buffer.pointer)
        self._buffers.clear()
        self._retired.clear()
