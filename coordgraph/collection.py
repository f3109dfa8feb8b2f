"""`collection_paused`: a context manager that pauses Python's cyclic garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["collection_paused"]


@contextmanager
def collection_paused() -> Generator[None]:
    """Context manager: switch Python's cyclic garbage collector off, and on again at the end.

    If the garbage collector is already off at the start of the block, it stays off.

    Reading a large graph or generating a kernel makes several hundred thousand objects. Most of
    these objects live as long as the graph, the kernel or the caches of expressions, and each full
    collection visits all of them. Collections took a third of the time to read a graph of 10,000
    edges, and up to a quarter of the time of code generation.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
