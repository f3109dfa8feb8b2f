"""Memory of a CPU launch besides A, B, C and D: partial sums, flags, and buffers of each thread."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from codegen.targets.cpu.emit import LINE
from codegen.targets.cpu.failures import StoppedLaunch
from coordgraph import LaunchError
from coordgraph.interpreter.arguments import Array

__all__ = ["Workspace", "Workspaces", "aligned"]


def aligned(size: int, *, zeroed: bool = False) -> Array:
    """An array of `size` bytes that begins at a multiple of 64 bytes, a cache line.

    Raises:
        LaunchError: the memory cannot be allocated.
    """
    try:
        raw = (np.zeros if zeroed else np.empty)(size + LINE, np.uint8)
    except MemoryError:
        raise LaunchError(
            f"a workspace of {size} bytes cannot be allocated; use fewer workgroups, fewer threads "
            "or a smaller tile"
        ) from None
    start = -raw.ctypes.data % LINE
    return raw[start : start + size]


@dataclass(frozen=True)
class Workspace:
    """The workspace of one launch.

    Attributes:
        tensors: the memory of each workspace tensor (`partials`, `flags`, `counter`), by name.
        zeroed: names of the tensors that are zero before a launch and zero again after it.
    """

    tensors: Mapping[str, Array]
    zeroed: tuple[str, ...]

    def check(self) -> None:
        """Check that the launch has left the tensors in `zeroed` zero for the next launch.

        Raises:
            StoppedLaunch: a tensor is not zero, so the graph sends partial sums that no workgroup
                receives, or takes tickets without setting their counter back to 0.
        """
        for name in self.zeroed:
            if self.tensors[name].any():
                raise StoppedLaunch(
                    f"the tensor {name} is not zero after the kernel has ended, so a partial sum "
                    "was sent and not received, or too few tickets were taken; call the graph's "
                    "check() to find the cause"
                )


class Workspaces:
    """A pool of the workspaces and thread buffers of one kernel, which later launches reuse.

    Args:
        buffer_bytes: size in bytes of the buffer of one thread.
    """

    def __init__(self, buffer_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._lock = threading.Lock()
        self._free: dict[tuple[tuple[str, int], ...], list[Workspace]] = {}
        self._buffers: list[Array] = []

    @contextmanager
    def borrow(self, sizes: Mapping[str, int], zeroed: tuple[str, ...]) -> Generator[Workspace]:
        """A context manager that yields a workspace, which no concurrent launch uses.

        If the `with` block raises, the workspace is not reused, because its flags may not be zero.

        Args:
            sizes: size in bytes of each workspace tensor, by name.
            zeroed: names of the tensors that must be zero before the launch.
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
            # Only workspaces of the latest sizes are kept. Otherwise a kernel that is called with
            # many different sizes would accumulate memory.
            for other in self._free.keys() - {key}:
                del self._free[other]
            self._free.setdefault(key, []).append(found)

    @contextmanager
    def buffers(self, threads: int) -> Generator[list[Array]]:
        """A context manager that yields one buffer for each thread, for this launch alone."""
        with self._lock:
            taken = [self._buffers.pop() for _ in range(min(threads, len(self._buffers)))]
        taken += [aligned(self._buffer_bytes) for _ in range(threads - len(taken))]
        try:
            yield taken
        finally:
            with self._lock:
                self._buffers += taken
