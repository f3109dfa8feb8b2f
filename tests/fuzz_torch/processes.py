"""Run the calls of the fuzzer in several processes.

Worker processes import the function that they run, so it cannot be in `__main__.py`.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from codegen.targets.cpu import code
from tests.fuzz_torch.cases import Case, case
from tests.fuzz_torch.trial import FINDINGS, Outcome, Result, attempt

__all__ = ["in_processes"]

CALLS = 1600
"""How many calls a process tries. Each call leaves about 3 MB of kernels and proofs in memory. On a
GPU, a new process takes several seconds to start."""


def in_processes(
    given: argparse.Namespace,
    make: Callable[[int, int], Case] = case,
    compare: Callable[[Case, str], Result] = attempt,
) -> int:
    """Try calls in `given.jobs` processes, print the outcomes' counts, and return the exit status.

    A process that crashes is a finding, too. A new process tries the crashed one's other calls.

    Args:
        given: the arguments of the command line.
        make: a function of a seed and a number that returns a call to try.
        compare: a function of a call and a device that makes the call and compares its result with
            PyTorch's.
    """
    start = time.monotonic()
    context = multiprocessing.get_context("spawn")
    shared = context.Manager()
    done = shared.list([Counter[Outcome]() for _ in range(given.jobs)])
    last = shared.list([None for _ in range(given.jobs)])
    until = start + given.seconds

    def started(job: int, number: int) -> Any:
        last[job] = None
        arguments = given, make, compare, job, number, until, done, last
        worker = context.Process(target=_try_calls, args=arguments)
        worker.start()
        return worker

    workers = {job: started(job, job) for job in range(given.jobs)}
    dead = list[str]()
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("calls", total=given.count or given.seconds)
        while workers:
            for job, worker in [*workers.items()]:
                if worker.is_alive():
                    continue
                del workers[job]
                number = last[job]
                if worker.exitcode:
                    dead.append(f"(--only {number}: status {worker.exitcode})")
                    print(f"--seed {given.seed}: the process ended {dead[-1]}", flush=True)
                if number is not None and _remains(given, number + given.jobs, until):
                    workers[job] = started(job, number + given.jobs)
            calls = sum(counts.total() for counts in done)
            progress.update(bar, completed=calls if given.count else time.monotonic() - start)
            progress.update(bar, description=f"{calls} calls")
            time.sleep(0.2)
    counts = sum(done, Counter[Outcome]())
    print(f"seed {given.seed}: {counts.total()} calls in {time.monotonic() - start:.0f} s")
    for outcome in Outcome:
        print(f"  {counts[outcome]:6}  {outcome.value}")
    print(f"  {len(dead):6}  the process ended", *dead)
    return 1 if dead or any(counts[outcome] for outcome in FINDINGS) else 0


def _remains(given: argparse.Namespace, number: int, until: float) -> bool:
    """Whether call `number` is below `given.count`, or, without a count, whether time is left."""
    return number < given.count if given.count else time.monotonic() < until


def _try_calls(
    given: argparse.Namespace,
    make: Callable[[int, int], Case],
    compare: Callable[[Case, str], Result],
    job: int,
    number: int,
    until: float,
    done: Any,
    last: Any,
) -> None:
    """Try every `given.jobs`-th call, beginning with call `number`, and store counts of outcomes.

    The process ends after `CALLS` calls. A new process, whose memory has no kernels, tries others.

    Args:
        given, make, compare: the arguments of `in_processes`.
        job: the number of this series of calls.
        number: the first call.
        until: the time of `time.monotonic` until which calls are tried, if no count is given.
        done: a list with the counts of every series.
        last: a list with the number of the call that was tried last in each series.
    """
    faulthandler.enable()  # a process that dies by a signal prints where
    code.QUICK_LEVEL = 0  # kernels are optimised less, since each runs a few times only
    counts = done[job]
    for _ in range(CALLS):
        if not _remains(given, number, until):
            break
        tried, last[job] = make(given.seed, number), number
        try:
            result = compare(tried, given.device)
        except Exception:
            result = Result(Outcome.BROKEN, traceback.format_exc())
        counts[result.outcome] += 1
        done[job] = counts
        if result.outcome in FINDINGS:
            text = f"--seed {given.seed} --only {number}: {tried}\n  {result.outcome}"
            print(f"{text}: {result.detail}", flush=True)
        if given.device == "cuda":
            # An illegal access of a kernel is reported here, with the call that made it. It ends
            # the process, because no later call can use the GPU in it.
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                print(f"--seed {given.seed} --only {number}: {tried}\n  {error}", flush=True)
                sys.exit(1)
        number += given.jobs
