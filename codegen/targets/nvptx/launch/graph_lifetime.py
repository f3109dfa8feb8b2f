"""`GraphLifetime`: whether a CUDA graph that was captured still exists.

A CUDA graph, its copies and its instances each keep references to the graph's user objects (CUDA
Programming Guide, "CUDA User Objects"). When all of them are destroyed, and launches of them have
ended, a thread of the driver calls the destructor of the user object. The destructor is `sem_post`
of the C library, so it runs no Python code, which might end before the driver does.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from codegen.targets.nvptx.driver import bindings, cuda
from coordgraph import LaunchError

__all__ = ["GraphLifetime"]

SEMAPHORE_BYTES = 64
"""Number of bytes for a `sem_t`, which is smaller on all systems with glibc or musl."""


class GraphLifetime:
    """The lifetime of a graph that a stream is capturing.

    Args:
        stream: the driver's handle of the stream.

    Raises:
        LaunchError: the driver or the C library cannot tell when a graph is destroyed.
    """

    def __init__(self, stream: int) -> None:
        library, address = _library(), 0
        if library is not None:
            # The memory is never freed: the destructor may run at any time, until the process ends.
            address = int(library.calloc(1, SEMAPHORE_BYTES) or 0)
        if library is None or not address or library.sem_init(address, 0, 0):
            raise LaunchError(
                "this system's C library has no POSIX semaphores (sem_init), by which destroyed "
                "CUDA graphs are noticed; use Linux with glibc or musl"
            )
        self._wait, self._address, self._ended = library.sem_trywait, address, False
        driver = bindings()
        _, _, graph, *_ = cuda("cuStreamGetCaptureInfo", stream)
        post = ctypes.cast(library.sem_post, ctypes.c_void_p).value
        flag = driver.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
        watcher = cuda("cuUserObjectCreate", address, post, 1, int(flag))
        move = driver.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE
        cuda("cuGraphRetainUserObject", graph, watcher, 1, int(move))

    @property
    def ended(self) -> bool:
        """Whether the graph and all its copies and instances are destroyed, and none is running."""
        self._ended = self._ended or self._wait(self._address) == 0
        return self._ended


@cache
def _library() -> Any:
    """The C library, with types of its semaphore functions; None if it has no such functions."""
    try:
        found = ctypes.CDLL(None)
        found.calloc.restype, found.calloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 2
        found.sem_init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
        found.sem_trywait.argtypes = [ctypes.c_void_p]
        found.sem_post.argtypes = [ctypes.c_void_p]
    except (AttributeError, OSError, TypeError):  # Windows has no such functions
        return None
    return found
