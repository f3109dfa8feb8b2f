"""Threads for workgroups: the caller's own and helpers that are kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from coordgraph import LaunchError
from coordgraph.validation import whole

__all__ = ["VARIABLE", "run_on_threads", "thread_count"]

VARIABLE = "COORDGRAPH_THREADS"
MOST_THREADS = 4096

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def thread_count(threads: int | None) -> int:
    """How many threads to use: as asked for, as the environment says, or one a processor.

    Raises:
        LaunchError: the number makes no sense.
    """
    source, value = "threads", threads
    if value is None and (text := os.environ.get(VARIABLE)):
        source = VARIABLE
        try:
            value = int(text)
        except ValueError:
            raise LaunchError(f"{VARIABLE}={text!r} is not a number of threads") from None
    if value is None:
        return os.cpu_count() or 1
    value = whole(value, source, LaunchError)
    if not 1 <= value <= MOST_THREADS:
        raise LaunchError(f"{source} = {value} is outside 1..{MOST_THREADS}")
    return value


def run_on_threads(work: Callable[[int], None], threads: int) -> None:
    """Call `work(0)` here and `work(1)`, … on other threads; returns when all have returned."""
    if threads == 1:
        work(0)
        return
    futures = [_helpers().submit(work, number) for number in range(1, threads)]
    try:
        work(0)
    finally:
        _join(futures)


def _join(futures: list[Future[None]]) -> None:
    """Wait for all, even where the user interrupts: the memory they use must outlive them."""
    interrupted: KeyboardInterrupt | None = None
    while pending := [future for future in futures if not future.done()]:
        try:
            wait(pending)
        except KeyboardInterrupt as error:
            interrupted = error
    for future in futures:
        future.result()
    if interrupted is not None:
        raise interrupted


def _helpers() -> ThreadPoolExecutor:
    """Idle threads are used again; new ones start where all are busy."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="coordgraph")
        return _pool


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
