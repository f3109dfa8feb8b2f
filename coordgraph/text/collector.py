"""Pause Python's cyclic garbage collector while a graph is read, which makes reading faster."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["paused_collector"]


@contextmanager
def paused_collector() -> Generator[None]:
    """Pause the cyclic garbage collector inside a `with` block, if it is enabled.

    Reading a large graph allocates hundreds of thousands of objects and no garbage. The collector
    would traverse all these objects about a dozen times, which takes a third of the time to read
    10,000 edges.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
