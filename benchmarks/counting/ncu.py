"""Read hardware counters of kernels with the command line of NVIDIA Nsight Compute (`ncu`).

`ncu` runs a Python module in a process of its own, which launches every kernel once; for kernels of
coordgraph the module is `benchmarks.launches`. Before each kernel `ncu` empties the L2 cache; it
replays the kernel as often as the counters need, and restores memory in between. Clocks are not
locked. Counters are those of the whole GPU:

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
"""Options of ncu that count only coordgraph's kernels, not the kernels that fill the operands."""
SECTOR = 32
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_sectors_op_read.sum")
UNITS = {"byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9, "Tbyte": 10**12, "sector": 1}
UNITS |= {"cycle": 1, "%": 1, "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
GRACE = 10.0
"""ncu is killed if it has not ended this many seconds after the time limit for launches."""
FORBIDDEN = "ERR_NVGPUCTRPERM"
"""The error that ncu prints if the driver does not permit this user to read hardware counters."""
ROOT = Path(__file__).resolve().parents[2]


class NoCounters(Exception):
    """Raised if no hardware counters could be read; the message says why and what to do."""


@dataclass(frozen=True)
class Counters:
    """Numbers of bytes that one launch of a kernel moved, read from hardware counters.

    Args:
        dram_read, dram_write: number of bytes that the L2 cache read from memory, and wrote to it.
        l2_read: number of bytes read from the L2 cache.
    """

    dram_read: int
    dram_write: int
    l2_read: int

    def json(self) -> dict[str, int]:
        """All fields as a dict, for a JSON record."""
        return {f"{name}_bytes": value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Profiled:
    """The hardware counters of one kernel launch.

    Args:
        kernel: the kernel's name.
        values: the value of each counter by its name, in bytes or seconds, or without a unit.
    """

    kernel: str
    values: dict[str, float]


def find() -> str:
    """The path of the program `ncu`.

    Raises:
        NoCounters: `ncu` is not installed.
    """
    for path in PATHS:
        if found := shutil.which(path):
            return found
    raise NoCounters(
        "ncu is neither on PATH nor in /usr/local/cuda/bin; install NVIDIA Nsight Compute"
    )


def command(
    ncu: str,
    log: Path,
    child: Sequence[str],
    metrics: Sequence[str] = METRICS,
    which: Sequence[str] = OURS,
) -> list[str]:
    """The command line that runs a child process under ncu.

    Args:
        ncu: the path of `ncu`.
        log: the file that ncu writes its table of counters to.
        child: the command line of the child process.
        metrics: the names of the counters to read.
        which: options of ncu that select the kernels to count.
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
    """Parse the output of `ncu --csv --page raw` for the counters `METRICS`, one item a launch."""
    found: list[Counters] = []
    for launch in read(text, METRICS):
        loaded, written, sectors = (round(launch.values[name]) for name in METRICS)
        found.append(Counters(loaded, written, SECTOR * sectors))
    return found


def read(text: str, metrics: Sequence[str]) -> list[Profiled]:
    """Parse the output of `ncu --csv --page raw` into kernel launches, in order.

    Messages of ncu and of the program come first. The table is a line of names, a line of units,
    and a line per launch.

    Raises:
        NoCounters: the output has no table, or the table lacks a counter.
    """
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if head is None:
        raise NoCounters(f"ncu printed no table: {failure(text)}")
    names, units, *rows = csv.reader(line for line in lines[head:] if line.startswith('"'))
    missing = [name for name in metrics if name not in names]
    if missing:
        raise NoCounters(
            f"ncu has no counters {', '.join(missing)} for this GPU; update Nsight Compute"
        )
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
    """The value of a cell of ncu's table in its base unit.

    Raises:
        NoCounters: the cell is no number, such as `n/a` or `nan`, or the unit is unknown.
    """
    try:
        found = float(text.replace(",", "")) * UNITS[unit]
    except (KeyError, ValueError):
        found = math.nan
    if math.isnan(found):
        raise NoCounters(
            f"ncu printed '{text} {unit}' for a counter, which is not a number with a known unit; "
            "run it again, or with another version of Nsight Compute"
        )
    return found


def failure(text: str) -> str:
    """The reason why ncu failed, found in its output, for an error message."""
    if FORBIDDEN in text:
        return (
            f"the driver permits only administrators to read counters ({FORBIDDEN}): run as root, "
            "or load its module with NVreg_RestrictProfilingToAdminUsers=0"
        )
    lines = [line for line in text.splitlines() if line.strip()]
    faults = [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
    return " ".join(faults or lines[-3:]) or "it printed nothing"


def count(jobs: dict[str, Any], seconds: float) -> dict[tuple[str, str], Counters]:
    """Run `benchmarks.launches` under ncu; returns the counters by (problem size, plan).

    Args:
        jobs: the element type, layout, target, and the problems with the plans to launch on each:
            the input of `benchmarks.launches`.
        seconds: the time from now after which no launch starts. Plans that are not launched have no
            entry in the result.

    Raises:
        NoCounters: ncu is not installed, is not permitted to count, or failed.
    """
    text, launched = profile("benchmarks.launches", jobs, seconds, METRICS, OURS)
    found = parse(text)
    if len(found) != len(launched):
        raise NoCounters(
            f"ncu counted {len(found)} kernels, but {len(launched)} were launched, so counters "
            "cannot be assigned to launches; run it again while no other process profiles the GPU"
        )
    pairs = zip(launched, found, strict=True)
    return {(launch["size"], launch["plan"]): counters for launch, counters in pairs}


def profile(
    module: str,
    jobs: dict[str, Any],
    seconds: float,
    metrics: Sequence[str],
    which: Sequence[str],
) -> tuple[str, list[dict[str, Any]]]:
    """Run `python -m MODULE JOBS DONE` under ncu; returns ncu's output and what DONE says.

    The second part of the result is the list of the JSON objects in DONE, one for each line.

    Args:
        module: the Python module to run. The module reads the JSON file JOBS, starts no launch
            after the time `until` in JOBS, and writes a line of JSON to DONE after each launch or
            problem.
        jobs: the contents of JOBS, without `until`.
        seconds: the time from now after which no launch starts.
        metrics: the names of the counters to read.
        which: options of ncu that select the kernels to count.

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

    Raises:
        NoCounters: the command took longer than `seconds`, and was killed with its children.
    """
    with subprocess.Popen(
        words,
        cwd=ROOT,
        # LC_ALL=C makes ncu print numbers without thousands separators.
        env={**os.environ, "LC_ALL": "C"},
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise NoCounters(f"ncu took longer than {seconds:.0f} s; raise --time-limit") from None
    return process.returncode, printed
