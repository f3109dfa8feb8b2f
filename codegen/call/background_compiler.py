"""Builds kernels in the background: one thread, which compiles in a process of low priority.

Generating code holds Python's interpreter lock, so that a thread of this process that compiles
would delay every call. Therefore the thread lets another process compile each kernel into the cache
on disk, and then loads the kernel. Without a cache on disk the thread itself compiles.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import threading
import warnings
from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from codegen.cache import cache_directory
from codegen.call import build
from codegen.call.arrangement import Prepared
from codegen.call.compile_workers import Job, run_job, start_worker
from codegen.kernel import Kernel
from coordgraph import CodegenError, CoordGraphError

__all__ = ["build_behind", "is_waiting", "wait"]

MOST_WAITING = 64
"""Largest number of kernels that wait to be built. Calls that want further kernels ask again after
the next kernel is built."""
THREAD = "coordgraph build"
"""The name of the thread that builds kernels."""
NICE = 10
"""Increase of the nice value of the process that compiles, which lowers its priority."""
IDLE = 20.0
"""Number of idle seconds after which the compiling process is ended, since it holds GPU memory."""
LONGEST_EXIT = 1.0
"""At exit, the longest time in seconds to wait until the thread that builds kernels has ended."""


@dataclass(eq=False)
class _Waiting:
    """A kernel that waits to be built or is being built.

    Attributes:
        job: the kernel's plan, its problem and device, and the arrays of the call that needs it.
        entries: entries of the cache of prepared calls (`Prepared`) for calls that want this
            kernel. Until the kernel is built, another kernel serves these calls.
    """

    job: Job
    entries: list[Prepared] = field(default_factory=list[Prepared])


class _Compiler:
    """The queue of kernels to build, and the thread that builds them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[Hashable, _Waiting] = {}
        self._queue: deque[_Waiting] = deque()
        self._not_queued: list[Prepared] = []
        """Entries of the cache of prepared calls whose kernel did not fit into the queue. They
        expire when the next kernel is built, so that such a call asks for its kernel again."""
        self._thread: threading.Thread | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._closed = False

    def is_waiting(self, job: Job) -> bool:
        return _key(job) in self._waiting

    def build(self, job: Job, entry: Prepared) -> None:
        key = _key(job)
        with self._changed:
            waiting = self._waiting.get(key)
            if waiting is None:
                if _is_settled(job):
                    _expire([entry])
                    return
                if self._closed:
                    return
                if len(self._waiting) >= MOST_WAITING:
                    self._not_queued.append(entry)
                    return
                try:
                    self._start()
                except RuntimeError:  # this process is ending, so no thread can be started
                    return
                waiting = self._waiting[key] = _Waiting(job)
                self._queue.append(waiting)
                self._changed.notify_all()
            waiting.entries.append(entry)

    def wait(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout)

    def close(self) -> None:
        """Stop at the end of this process: end the worker process, and build nothing more."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
            thread, worker = self._thread, self._worker
        if worker is not None:
            worker.kill()
        if thread is not None:
            thread.join(LONGEST_EXIT)

    def _start(self) -> None:
        """Start the thread, unless it runs; the caller holds the lock."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        """Build the kernels of the queue, until there is no work for `IDLE` seconds."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed, IDLE)
                if not self._queue:
                    self._thread, worker, self._worker = None, self._worker, None
                    break
                waiting = self._queue.popleft()
            try:
                self._compile(waiting.job)
                if not self._closed:
                    _load(waiting.job)
            finally:
                with self._changed:
                    del self._waiting[_key(waiting.job)]
                    entries = [*waiting.entries, *self._not_queued]
                    self._not_queued.clear()
                    self._changed.notify_all()
                _expire(entries)
        _end(worker)

    def _compile(self, job: Job) -> None:
        """Let another process compile a kernel into the cache on disk, if there is such a cache.

        If the process fails, nothing is reported: `_load` then compiles the kernel, and gets the
        error.
        """
        if cache_directory() is None:
            return
        with suppress(Exception):  # the job cannot be pickled, or the process cannot be started
            if job.is_done:
                return
            sent = pickle.dumps(job)
            with self._changed:
                if self._closed:
                    return
                if self._worker is None or self._worker.poll() is not None:
                    _end(self._worker)
                    self._worker = start_worker(NICE)
                worker = self._worker
            run_job(worker, sent)


def _key(job: Job) -> Hashable:
    """The key of a job in the queue: the kernel's plan and problem, the GPU, arrays' alignment."""
    request = job.request
    return job.plan.kernel, request.kind, request.ordinal, *job.unaligned


def _is_settled(job: Job) -> bool:
    """Whether a kernel is loaded, or cannot be built."""
    found = build.known(job.plan, job.request)
    if isinstance(found, Kernel):
        return found.is_loaded_for(job.views, job.scalars)
    return found is not None


def _load(job: Job) -> None:
    """Load a kernel in this process; if that fails, warn, and keep the error.

    The error is kept where calls look for the kernel, so that no call builds the kernel again.
    """
    try:
        build.kernel_of(job.plan, job.request).load_for(job.views, job.scalars)
    except Exception as error:  # errors of any kind must neither end the thread nor break a call
        ours = isinstance(error, CoordGraphError)
        kept = error if ours else CodegenError(f"{type(error).__name__}: {error}")
        build.fail(job.plan, job.request, kept)
        with suppress(RuntimeWarning):  # Python may be set to raise warnings as errors
            warnings.warn(
                f"the kernel of the plan '{job.plan.kernel}' cannot be built, so calls use other "
                f"plans: {kept}",
                RuntimeWarning,
                stacklevel=1,
            )


def _expired(*arguments: Any, **operands: Any) -> Any:
    """Raise CodegenError, upon which `matmul` chooses a plan again.

    When a better kernel is ready, this function replaces the launch function of a prepared call.
    """
    raise CodegenError(
        "the kernel that was built in the background is ready; choose the plan of the call again"
    )


def _expire(entries: list[Prepared]) -> None:
    """Make the next call that finds one of these prepared calls in the cache choose a plan again.

    Entries are changed in place, so that other threads cannot put unchanged entries back into the
    cache of prepared calls.
    """
    for entry in entries:
        entry.launch = _expired


def _end(worker: subprocess.Popen[bytes] | None) -> None:
    """End a worker process, and close its pipes."""
    if worker is None:
        return
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


_compiler = _Compiler()


def build_behind(job: Job, entry: Prepared) -> None:
    """Build a kernel in the background, once, even if several calls ask for it.

    Args:
        job: the kernel's plan, its problem and device, and the arrays of the call that needs it.
        entry: the entry of the cache of prepared calls by which another kernel serves the call
            meanwhile. When the kernel is built, or cannot be built, the entry is made to raise
            CodegenError, so that the next call chooses a plan again.
    """
    _compiler.build(job, entry)


def is_waiting(job: Job) -> bool:
    """Whether a kernel waits to be built in the background, or is being built."""
    return _compiler.is_waiting(job)


def wait(timeout: float) -> bool:
    """Wait until no kernel is left to build in the background; False after `timeout` seconds."""
    return _compiler.wait(timeout)


def _forget() -> None:
    """Begin with an empty queue in a forked child, which has no thread and no worker process."""
    global _compiler
    _compiler = _Compiler()


atexit.register(lambda: _compiler.close())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
