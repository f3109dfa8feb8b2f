"""Memory of a running kernel besides its tensors: partials, flags, buffers of each thread."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from codegen.targets.cpu.emit import LINE
from coordgraph import LaunchError
from coordgraph.interpreter.arguments import Array

__all__ = ["Workspace", "Workspaces", "aligned"]


def aligned(size: int, *, zeroed: bool = False) -> Array:
    """Bytes that begin on a cache line."""
    try:
        raw = (np.zeros if zeroed else np.empty)(size + LINE, np.uint8)
    except MemoryError:
        raise LaunchError(
            f"no memory for a workspace of {size} bytes; use fewer workgroups, fewer threads or "
            "a smaller tile"
        ) from None
    start = -raw.ctypes.data % LINE
    return raw[start : start + size]


@dataclass(frozen=True)
class Workspace:
    """What one call uses at a time; those of `zeroed` are zero before and after."""

    tensors: Mapping[str, Array]
    zeroed: tuple[str, ...]

    def check(self) -> None:
        """Our own promise: whoever waits for a flag lowers it, and clears what it has collected."""
        for name in self.zeroed:
            assert not self.tensors[name].any(), f"{name} are still up after the kernel has ended"


class Workspaces:
    """Workspaces and buffers that calls give back, to be used again."""

    def __init__(self, buffer_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._lock = threading.Lock()
        self._free: dict[tuple[tuple[str, int], ...], list[Workspace]] = {}
        self._buffers: list[Array] = []

    @contextmanager
    def borrow(self, sizes: Mapping[str, int], zeroed: tuple[str, ...]) -> Generator[Workspace]:
        """A workspace with so many bytes for each tensor, for one call alone.

        Those of `zeroed` begin at zero. It is not used again where the call fails, because flags
        may be up.
        """
        key = tuple(sizes.items())
        with self._lock:
            known = self._free.setdefault(key, [])
            found = known.pop() if known else None
        if found is None:
            found = Workspace({n: aligned(s, zeroed=n in zeroed) for n, s in key}, zeroed)
        yield found
        found.check()
        with self._lock:
            # One size is kept: kernels are called with the same sizes, or with ever new ones.
            for other in self._free.keys() - {key}:
                del self._free[other]
            self._free.setdefault(key, []).append(found)

    @contextmanager
    def buffers(self, threads: int) -> Generator[list[Array]]:
        """Buffers for every thread."""
        with self._lock:
            taken = [self._buffers.pop() for _ in range(min(threads, len(self._buffers)))]
        taken += [aligned(self._buffer_bytes) for _ in range(threads - len(taken))]
        try:
            yield taken
        finally:
            with self._lock:
                self._buffers += taken
