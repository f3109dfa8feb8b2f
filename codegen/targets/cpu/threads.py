"""The threads that run a CPU kernel: the caller's thread, and a pool that later calls use again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from coordgraph import LaunchError
from coordgraph.validation import whole

__all__ = ["VARIABLE", "run_on_threads", "thread_count"]

VARIABLE = "COORDGRAPH_THREADS"
"""The environment variable with the default number of threads."""
MOST_THREADS = 4096
"""The most threads that a launch may use."""

_lock = threading.Lock()
"""Held while the pool of threads is created."""
_pool: ThreadPoolExecutor | None = None
"""The pool of threads; None until a launch needs it."""


def thread_count(threads: int | None) -> int:
    """How many threads a launch uses.

    Args:
        threads: the number that the caller gave; None means `COORDGRAPH_THREADS` in the
            environment, or else one thread for each processor.

    Raises:
        LaunchError: the number is no integer between 1 and 4096.
    """
    source, value = "threads", threads
    if value is None and (text := os.environ.get(VARIABLE)):
        source = VARIABLE
        try:
            value = int(text)
        except ValueError:
            raise LaunchError(
                f"{VARIABLE}={text!r} is not a number of threads; set it to an integer from 1 to "
                f"{MOST_THREADS}"
            ) from None
    if value is None:
        return os.cpu_count() or 1
    value = whole(value, source, LaunchError)
    if not 1 <= value <= MOST_THREADS:
        raise LaunchError(f"{source} = {value} must be from 1 to {MOST_THREADS}")
    return value


def run_on_threads(work: Callable[[int], None], threads: int) -> None:
    """Call `work(0)` on this thread and `work(1)`, `work(2)`, … on others, and wait for all."""
    if threads == 1:
        work(0)
        return
    futures = [_helpers().submit(work, number) for number in range(1, threads)]
    try:
        work(0)
    finally:
        _join(futures)


def _join(futures: list[Future[None]]) -> None:
    """Wait for all threads, also after Ctrl-C, because they use memory that the caller frees.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C while the threads were running.
    """
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
    """The pool of threads, created at the first use; it starts new threads if all are busy."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="coordgraph")
        return _pool


def _forget() -> None:
    """Drop the pool in a forked child process, which has none of its parent's threads."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
