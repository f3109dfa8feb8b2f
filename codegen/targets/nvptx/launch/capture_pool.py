"""`CapturePool`: memory for the workspaces of launches that are captured in CUDA graphs.

A graph may be replayed on any stream and at any time, so no launch outside it may use its
workspace, and the workspace stays in place as long as the graph exists. All kernels on a GPU share
a pool. Launches on one stream of one capture run one after another, so they share memory, also if
they are launches of different kernels; every launch leaves flags and atomic sums zero.

A launch outside a capture reserves the memory that a capture of it needs. In a capture, memory is
allocated only if none is at hand, as PyTorch does for tensors in a capture. When a graph has been
destroyed, its memory serves the next capture.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakSet

from codegen.lru import LRUCache
from codegen.targets.nvptx.driver import Device, allow_while_capturing, bindings, cuda
from codegen.targets.nvptx.launch.graph_lifetime import GraphLifetime
from coordgraph import LaunchError

__all__ = ["Buffer", "Capture", "CapturePool", "Work", "allocate", "pool_of"]

ALIGNED = 256
"""Workspace tensors begin at multiples of ALIGNED bytes, as `cuMemAlloc` returns them."""
Work = tuple[str, int, bool]
"""Type: a workspace tensor of a launch: its name, its size in bytes, whether it must be zero."""


class Capture(NamedTuple):
    """One stream of a capture.

    Attributes:
        stream: the driver's handle of the stream.
        identifier: the driver's number of the capture, which no other capture of the process has.
        thread: a key of the thread, if each thread has another stream of this handle; else None.
    """

    stream: int
    identifier: int
    thread: object = None


@dataclass
class Buffer:
    """An allocation in device memory: its address, and its size in bytes."""

    pointer: int
    size: int


@dataclass
class _Lease:
    """The memory that a captured graph uses on one stream.

    Attributes:
        lifetime: the lifetime of the graph; None if the driver cannot tell when it ends.
        buffers: (whether launches need the buffer zeroed, and leave it zero; the buffer). Of each
            kind, the last buffer is the largest, and serves the next launch.
    """

    lifetime: GraphLifetime | None
    buffers: list[tuple[bool, Buffer]] = field(default_factory=list[tuple[bool, Buffer]])


class CapturePool:
    """Memory for the captured launches of all kernels on one GPU.

    Args:
        device: the GPU, which must be current when methods are called.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._free: dict[bool, list[Buffer]] = {False: [], True: []}
        self._most = {False: 0, True: 0}
        """The most bytes that one launch has needed, by whether the memory must be zero."""
        self._leases: dict[Capture, _Lease] = {}
        self._reserved = WeakSet[LRUCache[Any, Any]]()
        """The caches to clear when a capture takes the reserved memory; see `reserve`."""
        self._lock = threading.Lock()

    @property
    def buffers(self) -> list[tuple[bool, Buffer]]:
        """(whether it must be zero, buffer) of every buffer, whether in use or not."""
        with self._lock:
            used = [each for lease in self._leases.values() for each in lease.buffers]
            return [*used, *((kind, one) for kind, free in self._free.items() for one in free)]

    def reserve(self, work: Sequence[Work], cache: LRUCache[Any, Any]) -> None:
        """Make sure that a capture of a launch finds memory, if the GPU has enough.

        Args:
            work: the workspace tensors of the launch, whose stream captures nothing.
            cache: the cache that lets a launch skip this call. It is cleared when a capture takes
                the memory, so that the next launch outside the capture reserves memory again.
        """
        with self._lock:
            self._recycle()
            for zeroed, size in _sizes(work).items():
                free = self._free[zeroed]
                if size and all(buffer.size < size for buffer in free):
                    self._most[zeroed] = max(self._most[zeroed], size)
                    for smaller in free:
                        with suppress(LaunchError), allow_while_capturing():
                            cuda("cuMemFree", smaller.pointer)
                    free.clear()
                    with suppress(LaunchError):  # the launch runs also if the GPU's memory is full
                        free.append(allocate(self._most[zeroed], zeroed))
            self._reserved.add(cache)

    def addresses(self, capture: Capture, work: Sequence[Work]) -> list[int]:
        """The addresses of the workspace tensors of a captured launch, in the order of `work`.

        Args:
            capture: the stream of the launch, which is capturing a graph.
            work: the workspace tensors of the launch.
        """
        with self._lock:
            lease = self._leases.get(capture)
            if lease is None:
                self._recycle()
                lease = self._leases[capture] = _Lease(_lifetime(capture.stream))
            ends = {
                zeroed: self._buffer(lease, zeroed, size) if size else 0
                for zeroed, size in _sizes(work).items()
            }
        found: list[int] = []
        for _, size, zeroed in work:
            found.append(ends[zeroed])
            ends[zeroed] += _rounded(size)
        return found

    def _buffer(self, lease: _Lease, zeroed: bool, size: int) -> int:
        """The address of a buffer of at least `size` bytes for a captured launch.

        Args:
            lease: the memory that the captured graph uses on the stream of the launch; a new buffer
                is added to it.
            zeroed: whether the buffer must be zero before the launch.
            size: number of bytes that the launch needs.
        """
        for kind, buffer in reversed(lease.buffers):
            if kind == zeroed and buffer.size >= size:
                return buffer.pointer
        free = self._free[zeroed]
        fitting = [buffer for buffer in free if buffer.size >= size]
        if fitting:
            taken = min(fitting, key=lambda buffer: buffer.size)
            free[:] = [buffer for buffer in free if buffer is not taken]
        else:
            self._most[zeroed] = max(self._most[zeroed], size)
            taken = allocate(self._most[zeroed], zeroed)
        lease.buffers.append((zeroed, taken))
        for cache in self._reserved:
            cache.clear()
        self._reserved.clear()
        return taken.pointer

    def _recycle(self) -> None:
        """Make the memory of destroyed graphs free for later captures.

        Buffers that launches need zeroed are zero already, because every launch leaves them so.
        """
        for capture, lease in [*self._leases.items()]:
            if lease.lifetime is not None and lease.lifetime.ended:
                del self._leases[capture]
                for zeroed, buffer in lease.buffers:
                    self._free[zeroed].append(buffer)


def allocate(size: int, zeroed: bool) -> Buffer:
    """Allocate device memory, which is possible even while a stream captures a graph.

    Args:
        size: number of bytes.
        zeroed: whether to zero the memory, and to wait until it is zero. No other work is waited
            for: a stream that captures nothing and waits for no other stream zeroes it.
    """
    with allow_while_capturing():
        pointer = int(cuda("cuMemAlloc", max(size, 16)))
        if zeroed:
            private = cuda("cuStreamCreate", bindings().CUstream_flags.CU_STREAM_NON_BLOCKING)
            cuda("cuMemsetD32Async", pointer, 0, -(-size // 4), private)
            cuda("cuStreamSynchronize", private)
            cuda("cuStreamDestroy", private)
    return Buffer(pointer, size)


def _lifetime(stream: int) -> GraphLifetime | None:
    with suppress(LaunchError):
        return GraphLifetime(stream)
    return None


def _rounded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _sizes(work: Sequence[Work]) -> dict[bool, int]:
    """The total size in bytes of a launch's workspace tensors, by whether they must be zero."""
    return {
        kind: sum(_rounded(size) for _, size, zeroed in work if zeroed == kind)
        for kind in (False, True)
    }


_pools: dict[int, CapturePool] = {}


def pool_of(device: Device) -> CapturePool:
    """The memory pool for workspaces of captured launches on a GPU; all kernels share it."""
    return _pools.setdefault(device.ordinal, CapturePool(device))
