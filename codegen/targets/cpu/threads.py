"""The threads that run a CPU kernel: the caller's thread, and a pool that later calls reuse.

Python handles Ctrl-C in the main thread, between two bytecodes. So the main thread does not run
long kernels itself: it waits for other threads, and stops the kernel on Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import FrameType

from coordgraph import LaunchError
from coordgraph.validation import whole

__all__ = ["VARIABLE", "run_on_threads", "thread_count"]

VARIABLE = "COORDGRAPH_THREADS"
"""The environment variable that holds the default number of threads of a launch."""
MOST_THREADS = 4096
"""The most threads that a launch may use; larger numbers are refused."""

INTERRUPTIBLE = 0.2
"""Interval, in seconds, at which a waiting main thread checks for Ctrl-C on systems where Ctrl-C
does not end the wait."""

_lock = threading.Lock()
"""The lock that is held while the pool of threads that run CPU kernels is created."""
_pool: ThreadPoolExecutor | None = None
"""The pool of threads that run CPU kernels; None until a launch needs it."""


def thread_count(threads: int | None) -> int:
    """How many threads a launch uses.

    Args:
        threads: the number that the caller passed; None means the value of the environment variable
            `COORDGRAPH_THREADS` or, without it, one thread for each processor.

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


def run_on_threads(
    work: Callable[[int], None],
    threads: int,
    stop: Callable[[], None] = lambda: None,
    *,
    brief: bool = False,
) -> None:
    """Call `work(0)`, `work(1)`, … in `threads` threads; return when all calls have returned.

    Ctrl-C raises KeyboardInterrupt after all calls have returned. Until then, the handler of SIGINT
    calls `stop`, which should make `work` return early.

    Args:
        work: the function to call, with the number of the thread.
        threads: how many threads call it.
        stop: a function that makes all calls of `work` return early.
        brief: whether the calls are so short that the caller's thread may run one of them, although
            this thread cannot handle Ctrl-C before the call returns.
    """
    takes_part = brief or threading.current_thread() is not threading.main_thread()
    if threads == 1 and takes_part:
        work(0)
        return
    with _deferred_interrupt(stop):
        futures: list[Future[None]] = []
        try:
            for number in range(int(takes_part), threads):
                futures.append(_submitted(work, number, threads))
            if takes_part:
                work(0)
        except BaseException:
            stop()
            raise
        finally:
            # On Windows, Ctrl-C interrupts only a wait with a timeout.
            while wait(futures, INTERRUPTIBLE).not_done:
                pass
        for future in futures:
            future.result()


def _submitted(work: Callable[[int], None], number: int, threads: int) -> Future[None]:
    """Have a helper thread call `work(number)`.

    Raises:
        LaunchError: the system refuses to start another thread; the call will not happen.
    """
    future: Future[None] = Future()

    def call() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work(number))
            except BaseException as error:
                future.set_exception(error)

    try:
        _helpers().submit(call)
    except RuntimeError as error:
        # The executor queues a call before it tries to start a thread. If an existing thread has
        # begun the queued call, the call cannot be cancelled, and will finish as usual.
        if future.cancel():
            raise LaunchError(
                f"thread {number} of {threads} cannot be started ({error}); use fewer threads"
            ) from error
    return future


@contextmanager
def _deferred_interrupt(stop: Callable[[], None]) -> Generator[None]:
    """Delay Python's handler of SIGINT until the `with` block ends.

    If the handler is Python's default one, which raises KeyboardInterrupt, a SIGINT calls `stop` at
    once. Python runs signal handlers in the main thread only, so other threads need no delay.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []

    def defer(number: int, frame: FrameType | None) -> None:
        caught.append((number, frame))
        # Python's default handler will raise KeyboardInterrupt, so the launch can end early.
        if before is signal.default_int_handler:
            stop()

    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # the handler is SIG_IGN, SIG_DFL, or was set by C code
        yield
        return
    signal.signal(signal.SIGINT, defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for number, frame in caught[:1]:
            before(number, frame)


def _helpers() -> ThreadPoolExecutor:
    """The pool of threads, created at the first use; the pool grows if all its threads are busy."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="coordgraph")
        return _pool


def _forget() -> None:
    """Drop the pool in a forked child process, because a fork does not copy the pool's threads."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
