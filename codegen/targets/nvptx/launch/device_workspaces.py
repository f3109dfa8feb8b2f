"""Workspaces in GPU memory: buffers for partial sums and flags, one set for each stream.

Flags, and partial sums for atomic additions, are zeroed once; every launch leaves them zero. Two
streams never share a workspace. The handle of the per-thread default stream means another stream in
every thread, so each thread has its own workspaces for this handle. A CUDA graph may be replayed on
any stream, so a captured launch uses memory of the `CapturePool` instead.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any

from codegen.lru import LRUCache
from codegen.targets.nvptx.driver import Device, bindings, check, cuda
from codegen.targets.nvptx.launch.capture_pool import Buffer, Capture, Work, allocate, pool_of

__all__ = ["Workspaces"]

PER_THREAD_STREAM = 2
"""The handle of the per-thread default stream: the driver's CU_STREAM_PER_THREAD."""


class _Thread(threading.local):
    """A key for each thread, which is never reused, unlike a thread's identifier."""

    def __init__(self) -> None:
        self.token = object()


_thread = _Thread()


class Workspaces:
    """The workspace buffers of one kernel on one GPU, by owner (a stream) and tensor.

    Args:
        device: the GPU, which must be current when methods are called.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._buffers: dict[tuple[Hashable, str], Buffer] = {}
        self._retired: list[Buffer] = []
        self._lock = threading.Lock()
        self._is_capturing = bindings().cuStreamIsCapturing

    def owner(self, stream: int) -> Hashable:
        """The key of a launch's workspace: the stream, or a `Capture` if it captures a CUDA graph.

        For the per-thread default stream, the key also has the thread.
        """
        status, capturing = self._is_capturing(stream)
        if status:
            check("cuStreamIsCapturing", status)
        thread = _thread.token if stream == PER_THREAD_STREAM else None
        if capturing:
            _, identifier, *_ = cuda("cuStreamGetCaptureInfo", stream)
            return Capture(stream, int(identifier), thread)
        return stream if thread is None else (stream, thread)

    def addresses(
        self, owner: Hashable, work: Sequence[Work], cache: LRUCache[Any, Any]
    ) -> list[int]:
        """The addresses of the workspace tensors of a launch, in the order of `work`.

        A launch outside captures also reserves memory for a capture of the same launch.

        Args:
            owner: the stream or capture, as `Workspaces.owner` returns it.
            work: the workspace tensors.
            cache: where the caller keeps the addresses; see `CapturePool.reserve`.
        """
        pool = pool_of(self.device)
        if isinstance(owner, Capture):
            return pool.addresses(owner, work)
        found = [self.get(owner, name, size, zeroed=zeroed) for name, size, zeroed in work]
        pool.reserve(work, cache)
        return found

    def get(self, owner: Hashable, name: str, size: int, *, zeroed: bool) -> int:
        """The address of a buffer of at least `size` bytes that only `owner` uses.

        Args:
            owner: the stream, as `Workspaces.owner` returns it.
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
        self._buffers[key] = made = allocate(size, zeroed)
        return made.pointer

    def close(self) -> None:
        """Free all buffers; cuMemFree waits for launches that use them."""
        for buffer in (*self._buffers.values(), *self._retired):
            cuda("cuMemFree", buffer.pointer)
        self._buffers.clear()
        self._retired.clear()
