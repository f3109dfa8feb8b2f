"""`collection_paused`: read graphs and generate code without Python's cyclic garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["collection_paused"]


@contextmanager
def collection_paused() -> Generator[None]:
    """Pause the cyclic garbage collector of this process, in a `with` block, unless it is off.

    Reading a large graph or generating a kernel makes several 100,000 objects, most of which live
    as long as the graph, the kernel or the caches of expressions do. Each full collection visits
    all these objects. Collections took a third of the time to read a graph of 10,000 edges, and up
    to a quarter of the time of code generation.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
