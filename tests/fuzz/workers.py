"""Runs mutated inputs in a forked process, so that a crash or a hang does not end the fuzzer."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import multiprocessing as mp
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self

from tests.fuzz.mutants import Mutant, mutant
from tests.fuzz.trial import Outcome, Result, attempt

__all__ = ["Workers"]

MEMORY = 12 << 30
"""Bytes of address space that a process may allocate after its start."""
LIFETIME = 400
"""Number of mutants after which a process is replaced, so that its caches stay small."""
POLLED, WAITS = 0.5, 10
"""POLLED: interval in seconds at which the CPU time of a process is read. WAITS: the limit of
wall-clock time, as a multiple of the limit of CPU time.
"""
NOTE_BYTES = 64
M_ARENA_MAX = -8
"""The option of the C library's `mallopt` that limits the number of its memory pools."""


class Workers:
    """A process that tries mutants one after another; when it ends, another one is forked.

    Use it as a context manager, which ends the process.

    Args:
        limit: CPU seconds that one mutant may take; the limit of wall-clock time is 10 times as
            much.
        make: a function that returns the mutant of a seed and a number.
    """

    def __init__(self, limit: float, make: Callable[[int, int], Mutant] = mutant) -> None:
        self.limit, self.make = limit, make
        self._note = mmap.mmap(-1, NOTE_BYTES)
        self._process: BaseProcess | None = None
        self._pipe: Connection
        self._tried = 0
        self._errors = tempfile.TemporaryFile()

    def try_mutant(self, seed: int, number: int) -> Result:
        """Try one mutant; if its process dies or is stopped, the result says so."""
        if self._process is None or self._tried >= LIFETIME:
            self._start()
        self._tried += 1
        try:
            self._pipe.send((seed, number))
            if self._answers():
                outcome, stage, detail = self._pipe.recv()
                return Result(Outcome(outcome), stage, detail)
        except (EOFError, OSError):
            assert self._process is not None
            self._process.join()
            code = self._process.exitcode or 0
            what = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            stage = self._stage
            self._end()
            return Result(Outcome.CRASH, stage, f"{what}\n{self._stderr()}")
        stage = self._stage
        self._stacks()
        self._end()
        return Result(Outcome.HANG, stage, f"limit {self.limit:g} s\n{self._stderr()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._note.close()
        self._errors.close()

    def _end(self) -> None:
        """End the forked process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
            self._pipe.close()
            self._process = None

    @property
    def _stage(self) -> str:
        return self._note[:NOTE_BYTES].rstrip(b"\0").decode()

    def _answers(self) -> bool:
        """Wait for the result of a mutant; return False if the time limit is exceeded."""
        begun, since = self._spent(), time.monotonic()
        while not self._pipe.poll(POLLED):
            if self._spent() - begun > self.limit or time.monotonic() - since > WAITS * self.limit:
                return False
        return True

    def _spent(self) -> float:
        """CPU seconds that the forked process has used."""
        assert self._process is not None
        try:
            text = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii")
        except OSError:
            return 0.0  # the process has died; `try_mutant` then finds its pipe closed
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _stacks(self) -> None:
        """Make a process that hangs print the stacks of its threads to standard error."""
        assert self._process is not None
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGUSR1)
        self._process.join(0.5)

    def _stderr(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[:3000]

    def _start(self) -> None:
        self._end()
        self._errors.seek(0)
        self._errors.truncate()
        context = mp.get_context("fork")
        self._pipe, theirs = context.Pipe()
        process = context.Process(target=self._serve, args=(theirs,), daemon=True)
        process.start()
        self._process = process
        theirs.close()
        self._tried = 0

    def _serve(self, pipe: Connection) -> None:
        os.dup2(self._errors.fileno(), 2)
        sys.stderr = os.fdopen(2, "w")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)
        # each memory pool (arena) of the C library reserves 64 MiB of the limited address space
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        while True:
            try:
                seed, number = pipe.recv()
            except EOFError:
                return
            found = attempt(self.make(seed, number), self._write)
            pipe.send((found.outcome.value, found.stage, found.detail[-6000:]))

    def _write(self, stage: str) -> None:
        self._note[:NOTE_BYTES] = stage.encode()[:NOTE_BYTES].ljust(NOTE_BYTES, b"\0")
