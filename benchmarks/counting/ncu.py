"""Hardware counters of kernels, by the command line of NVIDIA Nsight Compute (`ncu`).

`ncu` runs a Python module in a process of its own, which launches every kernel once; for our
kernels the module is `benchmarks.launches`. Before each kernel `ncu` empties the L2 cache; it
replays the kernel as often as the counters need, and restores memory in between. It does not lock
the clocks. Counters are those of the whole device:

  dram__bytes_read, dram__bytes_write   bytes between memory and the L2 cache
  lts__t_sectors_op_read                sectors of 32 bytes that are read from the L2 cache,
                                        including those that one half of it reads from the other
"""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = [
    "METRICS",
    "Counters",
    "NoCounters",
    "Profiled",
    "command",
    "count",
    "find",
    "parse",
    "profile",
    "read",
]

PATHS = ("ncu", "/usr/local/cuda/bin/ncu")
OURS = ("--kernel-name", "regex:^gemm")
"""Options of ncu: count only our kernels, not those that make the operands."""
SECTOR = 32
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_sectors_op_read.sum")
UNITS = {"byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9, "Tbyte": 10**12, "sector": 1}
UNITS |= {"cycle": 1, "%": 1, "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
GRACE = 10.0
"""Seconds that the profiler gets to end after the last launch."""
FORBIDDEN = "ERR_NVGPUCTRPERM"
"""Printed by ncu where the driver does not permit this user to read counters."""
ROOT = Path(__file__).resolve().parents[2]


class NoCounters(Exception):
    """No counters were read; the message says why, and what can be done."""


@dataclass(frozen=True)
class Counters:
    """Bytes that one launch moved.

    Args:
        dram_read, dram_write: between memory and the L2 cache.
        l2_read: read from the L2 cache.
    """

    dram_read: int
    dram_write: int
    l2_read: int

    def json(self) -> dict[str, int]:
        """The fields, for a record."""
        return {f"{name}_bytes": value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Profiled:
    """Counters of one launch.

    Args:
        kernel: the kernel's name.
        values: by the name of the counter: bytes, seconds, or a number without a unit.
    """

    kernel: str
    values: dict[str, float]


def find() -> str:
    """The path of `ncu`.

    Raises:
        NoCounters: it is not installed.
    """
    for path in PATHS:
        if found := shutil.which(path):
            return found
    raise NoCounters("no ncu (Nsight Compute) on PATH nor in /usr/local/cuda/bin")


def command(
    ncu: str,
    log: Path,
    child: Sequence[str],
    metrics: Sequence[str] = METRICS,
    which: Sequence[str] = OURS,
) -> list[str]:
    """The command that runs a child process and counts its kernels.

    Args:
        ncu: path of `ncu`.
        log: the file that the table of counters is written to.
        child: the command of the child process.
        metrics: names of counters.
        which: options of ncu that select the kernels.
    """
    return [
        ncu,
        *which,
        *("--metrics", ",".join(metrics)),
        *("--cache-control", "all", "--clock-control", "none"),
        *("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
        *child,
    ]


def parse(text: str) -> list[Counters]:
    """Parse the output of `ncu --csv --page raw` with `METRICS`; see `read`."""
    found: list[Counters] = []
    for launch in read(text, METRICS):
        loaded, written, sectors = (round(launch.values[name]) for name in METRICS)
        found.append(Counters(loaded, written, SECTOR * sectors))
    return found


def read(text: str, metrics: Sequence[str]) -> list[Profiled]:
    """Parse the output of `ncu --csv --page raw` into its launches, in order.

    The table follows messages of ncu and of the program: a line of names, one of units, and one for
    every launch.

    Raises:
        NoCounters: the output has no table, or a counter is missing in it.
    """
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if head is None:
        raise NoCounters(f"ncu printed no table: {failure(text)}")
    names, units, *rows = csv.reader(line for line in lines[head:] if line.startswith('"'))
    missing = [name for name in metrics if name not in names]
    if missing:
        raise NoCounters(f"ncu has no counters {', '.join(missing)} on this device")
    columns = {name: names.index(name) for name in metrics}
    kernel = names.index("Kernel Name")
    return [
        Profiled(
            row[kernel],
            {name: _number(row[i], units[i]) for name, i in columns.items()},
        )
        for row in rows
        if len(row) == len(names)
    ]


def _number(text: str, unit: str) -> float:
    """The value of a cell in its base unit; NoCounters where it is `n/a` or `nan`."""
    try:
        found = float(text.replace(",", "")) * UNITS[unit]
    except (KeyError, ValueError):
        found = math.nan
    if math.isnan(found):
        raise NoCounters(f"ncu gave '{text} {unit}' for a counter")
    return found


def failure(text: str) -> str:
    """Why ncu failed, from its output, for a message."""
    if FORBIDDEN in text:
        return (
            f"the driver permits only administrators to read counters ({FORBIDDEN}): run as root, "
            "or load its module with NVreg_RestrictProfilingToAdminUsers=0"
        )
    lines = [line for line in text.splitlines() if line.strip()]
    faults = [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
    return " ".join(faults or lines[-3:]) or "it printed nothing"


def count(jobs: dict[str, Any], seconds: float) -> dict[tuple[str, str], Counters]:
    """Count the launches of `benchmarks.launches`; returns counters by size and plan.

    Args:
        jobs: the input of `benchmarks.launches`.
        seconds: no launch begins after so many; those that are left have no counters.

    Raises:
        NoCounters: ncu is not installed, is not permitted to count, or failed.
    """
    text, launched = profile("benchmarks.launches", jobs, seconds, METRICS, OURS)
    found = parse(text)
    if len(found) != len(launched):
        raise NoCounters(f"ncu counted {len(found)} kernels of {len(launched)} launches")
    pairs = zip(launched, found, strict=True)
    return {(launch["size"], launch["plan"]): counters for launch, counters in pairs}


def profile(
    module: str,
    jobs: dict[str, Any],
    seconds: float,
    metrics: Sequence[str],
    which: Sequence[str],
) -> tuple[str, list[dict[str, Any]]]:
    """Run `python -m MODULE JOBS DONE` under ncu; returns ncu's output and the lines of DONE.

    Args:
        module: reads the JSON file JOBS, begins no launch after the time `until` in it, and writes
        a
            line of JSON to DONE after each launch or problem.
        jobs: the contents of JOBS, without `until`.
        seconds: `until` is so many seconds from now.
        metrics, which: see `command`.

    Raises:
        NoCounters: ncu is not installed, is not permitted to count, or failed.
    """
    ncu = find()
    with TemporaryDirectory() as folder:
        todo, done, log = (Path(folder) / name for name in ("jobs.json", "done.jsonl", "ncu.csv"))
        todo.write_text(json.dumps({**jobs, "until": time.time() + seconds}), encoding="utf-8")
        done.touch()
        log.touch()
        child = [sys.executable, "-m", module, str(todo), str(done)]
        status, printed = _run(command(ncu, log, child, metrics, which), seconds + GRACE)
        text = log.read_text(encoding="utf-8", errors="replace")
        launched = [json.loads(line) for line in done.read_text(encoding="utf-8").splitlines()]
    everything = f"{text}\n{printed}"
    if FORBIDDEN in everything or status or not launched:
        raise NoCounters(failure(everything))
    return text, launched


def _run(words: list[str], seconds: float) -> tuple[int, str]:
    """Run a command; returns its exit status and its output.

    After a timeout the command is killed together with its children.
    """
    with subprocess.Popen(
        words,
        cwd=ROOT,
        env={**os.environ, "LC_ALL": "C"},  # numbers without a language's separators
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise NoCounters(f"ncu took longer than {seconds:.0f} s") from None
    return process.returncode, printed
