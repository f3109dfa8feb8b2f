"""`CompileWorkers`: processes that compile kernels in parallel into the kernel cache on disk.

Generating code holds Python's interpreter lock, so threads would not help. The processes run this
module: `python -m codegen.call.compile_workers` reads pickled jobs from its standard input. The
processes are not made by `multiprocessing`, which would import the caller's main module again.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

from codegen.cache import cache_directory, key_of, load, store
from codegen.call.alignment import alignment_of
from codegen.call.request import PlanRequest
from codegen.call.views import TensorView
from coordgraph.gemm import OFFSETS
from passes.choosing import Plan
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["CompileWorkers", "Job", "run_job", "start_worker"]

MOST_WORKERS, LEAST_KERNELS = 8, 3
"""MOST_WORKERS: largest number of processes. LEAST_KERNELS: fewer kernels than this are left to the
calling process, which compiles them sooner than new processes start."""
ENDING_SECONDS = 5.0
"""The processes of a `CompileWorkers` that have not ended this many seconds after the end of the
`with` block are killed."""
DONE, REFUSED = b"\n", b"-"
"""A process's answers to a job. REFUSED: no code can be generated for the kernel, or its registers
spill. DONE: it was compiled, or the process failed for another reason, such as too little memory,
so that the calling process may succeed."""


class Job(NamedTuple):
    """A kernel to compile into the cache on disk.

    Attributes:
        request: the problem and the device.
        plan: the plan of the kernel.
        views, scalars: the arrays and numbers of a call, which decide which variant of the kernel's
            code is compiled. Without arrays, it is the variant for arrays whose addresses and rows
            are multiples of 16 bytes.
    """

    request: PlanRequest
    plan: Plan
    views: Mapping[str, TensorView] = {}
    scalars: Mapping[str, float] = {}

    @property
    def done_key(self) -> str:
        """The cache key of a marker: an entry that is stored when this kernel has been compiled.

        If the kernel was deleted from the cache later but its marker was not, no worker compiles
        the kernel again; the process that calls the kernel compiles it.
        """
        r = self.request
        options = r.target, r.device, r.alignment, r.reads_c, self.plan.kernel, *self.unaligned
        return key_of("compiled", repr(r.any_size), *map(str, options))

    @property
    def unaligned(self) -> list[tuple[str, int]]:
        """Names and alignments of the matrices that are not aligned to 16 bytes, which TMA needs.

        The alignments decide which variant of a kernel's code, with or without TMA, a call runs.
        """
        if not self.views:
            return []
        gemm = self.request.gemm
        row = (gemm.n or 0,)
        made = TensorView(0, (1, *row), (*row, 1), gemm.out_dtype or gemm.dtype)
        found = {"D": made, **self.views}
        each = ((name, alignment_of(found[name])) for name in sorted(found) if name != OFFSETS)
        return [(name, alignment) for name, alignment in each if alignment < ALIGNED_BYTES]

    @property
    def is_done(self) -> bool:
        """Whether the kernel was compiled into the cache, by any process."""
        return load(self.done_key) is not None


class CompileWorkers:
    """A context manager that compiles kernels for a request in other processes.

    The processes end with the `with` block. If a process cannot compile a kernel, it reports this
    but not the error: a caller that needs the error compiles the kernel again. Without a kernel
    cache on disk nothing is compiled.

    Args:
        request: the problem and the device.
        most: the largest number of processes.
    """

    def __init__(self, request: PlanRequest, most: int | None = None) -> None:
        self.request = request
        self.most = MOST_WORKERS if most is None else most
        self._known: set[str] = set()
        self._refused: set[str] = set()
        """`_known` has the keys of all jobs so far; `_refused` of those whose kernels cannot be
        built."""
        self.started: list[subprocess.Popen[bytes]] = []
        """All processes that were started, also those that have ended. They start when `compile`
        first has work for them."""
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()

    def __enter__(self) -> CompileWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.started:
            assert worker.stdin is not None
            with suppress(OSError):
                worker.stdin.close()  # the worker's `main` ends at the end of its input
        end = time.monotonic() + ENDING_SECONDS
        for worker in self.started:
            try:
                worker.wait(timeout=max(end - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()

    def compile(
        self, plans: Sequence[Plan], advance: Callable[[int], None] = lambda done: None
    ) -> set[Plan]:
        """Compile the kernels of some plans into the cache on disk, in parallel.

        At most `self.most` processes compile, and no more than there are CPUs. If fewer than
        LEAST_KERNELS kernels are missing in the cache, or there is no cache, nothing is compiled.

        Args:
            plans: the plans; those whose kernels were compiled before, by this or an earlier
                process, are skipped.
            advance: is called with the number of kernels that are done, in this thread.

        Returns:
            Plans whose kernels cannot be built. The others can be, or were not tried.
        """
        jobs = [Job(self.request, plan) for plan in plans]
        self.run(jobs, advance)
        return {job.plan for job in jobs if job.done_key in self._refused}

    def run(self, jobs: Sequence[Job], advance: Callable[[int], None] = lambda done: None) -> None:
        """Compile the kernels of some jobs, whose requests may differ, as `compile` does.

        Args:
            jobs: the kernels, each for the arrays of a call or for aligned ones.
            advance: is called with the number of kernels that are done, in this thread.
        """
        if cache_directory() is None:
            return
        new = {job.done_key: job for job in jobs}
        new = {key: job for key, job in new.items() if key not in self._known}
        self._known |= new.keys()
        new = {key: job for key, job in new.items() if not job.is_done}
        if len(new) < LEAST_KERNELS:
            return
        try:
            pickled = [pickle.dumps(job) for job in new.values()]
        except (pickle.PicklingError, AttributeError, TypeError):
            # An epilogue function that cannot be imported by name cannot be sent to the processes,
            # so this process compiles the kernels later.
            return
        count = min(self.most, os.cpu_count() or 1, len(pickled))
        with suppress(OSError):
            while len(self.started) < count:
                self.started.append(worker := start_worker())
                self._idle.put(worker)
        if self.started:
            with ThreadPoolExecutor(len(self.started)) as threads:
                answers = zip(new, threads.map(self._run, pickled), strict=True)
                for done, (key, built) in enumerate(answers):
                    if not built:
                        self._refused.add(key)
                    advance(done + 1)

    def _run(self, job: bytes) -> bool:
        """Let an idle process do a job; False if the kernel cannot be built, as in `run_job`.

        A process that has ended is replaced, until twice `most` processes were started. After that
        it stays in the queue, and jobs that are sent to it are left to the caller.
        """
        worker = self._idle.get()
        try:
            answer = run_job(worker, job)
            if answer is None and len(self.started) < 2 * self.most:
                with suppress(OSError):
                    self.started.append(started := start_worker())
                    worker = started
        finally:
            self._idle.put(worker)
        return answer is not False


def start_worker(nice: int = 0) -> subprocess.Popen[bytes]:
    """Start a process that runs `main`; it ends when its standard input is closed.

    Args:
        nice: by how much to lower the priority of the process, where the system can do so.

    Raises:
        OSError: the process cannot be started.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)
    }
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(nice)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


def run_job(worker: subprocess.Popen[bytes], job: bytes) -> bool | None:
    """Send a job to a process, and wait until the process has answered or ended.

    Args:
        worker: a process that `start_worker` has started.
        job: a pickled `Job`.

    Returns:
        False if the process found that the kernel cannot be built. None if the process has ended.
        Otherwise True.
    """
    assert worker.stdin is not None
    assert worker.stdout is not None
    with suppress(OSError):
        worker.stdin.write(job)
        worker.stdin.flush()
        answer = worker.stdout.read(len(DONE))
        return answer != REFUSED if answer else None
    return None


def main() -> None:
    """Compile and load the kernels of the jobs on standard input, one after another."""
    from codegen.call.build import kernel_of
    from codegen.targets.nvptx.driver import device
    from codegen.targets.nvptx.launch.loaded_function import Spilled
    from coordgraph import CoordGraphError

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Answers go to the original stdout; whatever else the process prints goes to stderr.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if hasattr(os, "nice"):
        os.nice(int(sys.argv[1]))
    while True:
        try:
            job: Job = pickle.load(sys.stdin.buffer)
        except EOFError:
            # The system frees the process's GPU memory. Eight processes end in 0.5 seconds so; with
            # Python's own end they took 1 to 1.5 seconds (H200).
            os._exit(0)
        answer = REFUSED
        with suppress(CoordGraphError):
            request = job.request
            kernel: Any = kernel_of(job.plan, request)
            answer = DONE
            try:
                # Loading a kernel stores its code in the cache on disk, where the process that
                # calls the kernel finds it.
                if job.views:
                    kernel.load_for(job.views, job.scalars)
                else:
                    kernel.preload(device(request.ordinal), reads_c=request.reads_c)
            except Spilled:
                answer = REFUSED
            else:
                store(job.done_key, {"compiled": b""})
        answers.write(answer)
        answers.flush()


if __name__ == "__main__":
    main()
