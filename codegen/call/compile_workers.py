"""`CompileWorkers`: processes that compile kernels in parallel into the kernel cache on disk.

Generating code holds Python's interpreter lock, so threads would not help. The processes run this
module: `python -m codegen.call.compile_workers` reads pickled jobs from its standard input. They
are not made by `multiprocessing`, which would import the caller's main module again.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from codegen.cache import cache_directory, key_of, load, store
from codegen.call.request import PlanRequest
from passes.choosing import Plan

__all__ = ["CompileWorkers"]

MOST_WORKERS, LEAST_KERNELS = 8, 3
"""MOST_WORKERS: largest number of processes. LEAST_KERNELS: fewer kernels than this are left to the
calling process, which compiles them sooner than new processes start."""
DONE = b"\n"


class CompileWorkers:
    """A context manager that compiles kernels for a request in other processes.

    The processes end with the `with` block. If a process cannot compile a kernel, it reports no
    error: the caller compiles the kernel again and gets the error. Without a kernel cache on disk
    nothing is compiled.

    Args:
        request: the problem and the device.
        most: the largest number of processes.
    """

    def __init__(self, request: PlanRequest, most: int | None = None) -> None:
        self.request = request
        self.most = MOST_WORKERS if most is None else most
        self._known: set[str] = set()
        self.started: list[subprocess.Popen[bytes]] = []
        """The processes, which start when they are first needed."""
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()

    def __enter__(self) -> CompileWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.started:
            assert worker.stdin is not None
            with suppress(OSError):
                worker.stdin.close()  # ends the loop of the worker's `main`
        for worker in self.started:
            try:
                worker.wait(timeout=5)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()

    def compile(
        self, plans: Sequence[Plan], advance: Callable[[int], None] = lambda done: None
    ) -> None:
        """Compile the kernels of some plans into the cache, as many at a time as there are CPUs.

        Args:
            plans: the plans; those whose kernels were compiled before, by this or an earlier
                process, are skipped.
            advance: is called with the number of kernels that are done, in this thread.
        """
        new = {plan.kernel: plan for plan in plans if plan.kernel not in self._known}
        self._known |= new.keys()
        if cache_directory() is None:
            return
        new = {name: p for name, p in new.items() if load(_done_key(self.request, p)) is None}
        if len(new) < LEAST_KERNELS:
            return
        try:
            jobs = [pickle.dumps((self.request, plan)) for plan in new.values()]
        except (pickle.PicklingError, AttributeError, TypeError):
            # An epilogue function that cannot be imported by name cannot be sent to the processes,
            # so this process compiles the kernels later.
            return
        count = min(self.most, os.cpu_count() or 1, len(jobs))
        with suppress(OSError):
            while len(self.started) < count:
                self._start()
        if self.started:
            with ThreadPoolExecutor(len(self.started)) as threads:
                for done, _ in enumerate(threads.map(self._run, jobs)):
                    advance(done + 1)

    def _start(self) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)
        }
        worker = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self.started.append(worker)
        self._idle.put(worker)

    def _run(self, job: bytes) -> None:
        """Send a job to an idle process, and wait until the process has answered or ended."""
        worker = self._idle.get()
        assert worker.stdin is not None
        assert worker.stdout is not None
        with suppress(OSError):
            worker.stdin.write(job)
            worker.stdin.flush()
            worker.stdout.read(len(DONE))
        self._idle.put(worker)


def _done_key(request: PlanRequest, plan: Plan) -> str:
    """The cache key of the entry that says that a plan's kernel was compiled into the cache.

    If that kernel has been deleted from the cache since, the calling process compiles it.
    """
    options = request.target, request.device, request.alignment, request.reads_c, plan.kernel
    return key_of("compiled", repr(request.any_size), *map(str, options))


def main() -> None:
    """Compile and load the kernels of the jobs on standard input, one after another."""
    from codegen.call.build import kernel_of
    from codegen.targets.nvptx.driver import device
    from coordgraph import CoordGraphError

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints go to stderr, not to the answers
    while True:
        try:
            request, plan = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        with suppress(CoordGraphError):
            kernel: Any = kernel_of(plan, request)
            # Loading a kernel stores its code in the cache on disk, where the process that calls
            # the kernel finds it.
            kernel.preload(device(request.ordinal), reads_c=request.reads_c)
            store(_done_key(request, plan), {"compiled": b""})
        answers.write(DONE)
        answers.flush()


if __name__ == "__main__":
    main()
