"""`collection_paused`: generate code without Python's cyclic garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["collection_paused"]


@contextmanager
def collection_paused() -> Generator[None]:
    """Pause the cyclic garbage collector of this process, unless it is off already.

    Generating a kernel makes several 100,000 objects, most of which live as long as the kernel or
    the caches of expressions do. Each full collection visits them all; together collections took up
    to a quarter of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
