"""Run the calls of the fuzzer in several processes.

Worker processes import the function that they run, so it cannot be in `__main__.py`.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import sys
import time
from collections import Counter
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from codegen.targets.cpu import code
from tests.fuzz_torch.cases import case
from tests.fuzz_torch.trial import FINDINGS, Outcome, attempt

__all__ = ["in_processes"]


def in_processes(given: argparse.Namespace) -> int:
    """Try calls in `given.jobs` processes, print the outcomes' counts, and return the exit status.

    A process that dies is a finding, too.
    """
    start = time.monotonic()
    context = multiprocessing.get_context("spawn")
    shared = context.Manager()
    done = shared.list([Counter[Outcome]() for _ in range(given.jobs)])
    last = shared.list([0] * given.jobs)
    workers = [
        context.Process(target=_try_calls, args=(given, number, done, last))
        for number in range(given.jobs)
    ]
    for worker in workers:
        worker.start()
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("calls", total=given.count or given.seconds)
        while any(worker.is_alive() for worker in workers):
            calls = sum(counts.total() for counts in done)
            progress.update(bar, completed=calls if given.count else time.monotonic() - start)
            progress.update(bar, description=f"{calls} calls")
            time.sleep(0.2)
    counts = sum(done, Counter[Outcome]())
    print(f"seed {given.seed}: {counts.total()} calls in {time.monotonic() - start:.0f} s")
    for outcome in Outcome:
        print(f"  {counts[outcome]:6}  {outcome.value}")
    dead = [(last[i], worker.exitcode) for i, worker in enumerate(workers) if worker.exitcode]
    print(f"  {len(dead):6}  the process ended", *(f"(--only {n}: status {x})" for n, x in dead))
    return 1 if dead or any(counts[outcome] for outcome in FINDINGS) else 0


def _try_calls(given: argparse.Namespace, first: int, done: Any, last: Any) -> None:
    """Try every `given.jobs`-th call, beginning with call `first`, and store counts of outcomes.

    Args:
        given: the arguments of the command line.
        first: the number of this process.
        done: a list with the counts of every process.
        last: a list with the number of the call that each process tries.
    """
    faulthandler.enable()  # a process that dies by a signal prints where
    code.QUICK_LEVEL = 0  # kernels are optimised less, since each runs a few times only
    counts, start, number = Counter[Outcome](), time.monotonic(), first
    while number < given.count if given.count else time.monotonic() - start < given.seconds:
        tried, last[first] = case(given.seed, number), number
        result = attempt(tried, given.device)
        counts[result.outcome] += 1
        done[first] = counts
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
