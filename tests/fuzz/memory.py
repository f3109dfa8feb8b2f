"""Finds writes out of bounds: arrays end at guard pages, workspaces are between canaries."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from codegen.targets.cpu import workspace

__all__ = ["Fences", "Overwritten", "watched_workspaces"]

PAGE = mmap.PAGESIZE
INNER_PAGES = 32
CANARY = 0xA5
MARGIN = 1024
"""Bytes of canaries before and after a workspace."""
_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Overwritten(Exception):
    """A kernel wrote outside its tensors and workspaces: a canary changed."""


class Fences:
    """A pool of memory for arrays, each of which ends at a page without access rights."""

    def __init__(self) -> None:
        self._regions: list[np.ndarray] = []
        self._kept: list[mmap.mmap] = []
        self._used: list[tuple[np.ndarray, int]] = []

    def array(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> np.ndarray:
        """Allocate an array whose last byte is the last one before a page without access rights.

        Raises:
            MemoryError: the array is larger than a memory region of the pool.
        """
        size = prod(shape) * kind.itemsize
        if size > INNER_PAGES * PAGE:
            raise MemoryError(f"{size} bytes do not fit in a memory region of the pool")
        if len(self._used) == len(self._regions):
            self._regions.append(self._region())
        region = self._regions[len(self._used)]
        self._used.append((region, size))
        region[...] = CANARY
        start = len(region) - size
        return np.frombuffer(region.data, kind, prod(shape), start).reshape(shape)

    def check(self) -> None:
        """Check the canaries (bytes before an array) of all arrays allocated since the last call.

        The memory of these arrays is then reused.

        Raises:
            Overwritten: a canary was overwritten.
        """
        used, self._used = self._used, []
        for region, size in used:
            if (region[: len(region) - size] != CANARY).any():
                raise Overwritten("bytes before a tensor were overwritten")

    def _region(self) -> np.ndarray:
        memory = mmap.mmap(-1, (INNER_PAGES + 2) * PAGE)
        self._kept.append(memory)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for page in (0, INNER_PAGES + 1):
            assert _protect(start + page * PAGE, PAGE, 0) == 0
        return np.frombuffer(memory, np.uint8, INNER_PAGES * PAGE, PAGE)


@contextmanager
def watched_workspaces() -> Iterator[None]:
    """Context manager: canaries surround the workspaces and thread buffers of CPU kernels.

    Raises:
        Overwritten: a canary was overwritten, which is checked at the end of the `with` block.
    """
    made: list[tuple[np.ndarray, int]] = []
    original = workspace.aligned

    def aligned(size: int, *, zeroed: bool = False) -> np.ndarray:
        found = original(size + 2 * MARGIN, zeroed=zeroed)
        found[:MARGIN] = found[MARGIN + size :] = CANARY
        made.append((found, size))
        return found[MARGIN : MARGIN + size]

    workspace.aligned = aligned
    try:
        yield
    finally:
        workspace.aligned = original
    for found, size in made:
        if (found[:MARGIN] != CANARY).any() or (found[MARGIN + size :] != CANARY).any():
            raise Overwritten("bytes beside a workspace were overwritten")
