"""Hardware counters of kernels, by NVIDIA's Nsight Compute on the command line (`ncu`).

`ncu` runs a module in a process of its own, which launches every kernel once: for our kernels
`benchmarks.launches`. It empties the L2 cache before each, launches it as often as the counters
need, with what it wrote put back in between, and leaves the clocks alone. Counters are those of the
whole device:

  dram__bytes_read, dram__bytes_write   bytes between the memory and the L2 cache
  lts__t_sectors_op_read                sectors of 32 bytes that are read in the L2 cache, those
                                        that one half of it asks the other for among them
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

PLACES = ("ncu", "/usr/local/cuda/bin/ncu")
OURS = ("--kernel-name", "regex:^gemm")
"""Only our kernels, by their name; operands are made by others."""
SECTOR = 32
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_sectors_op_read.sum")
UNITS = {"byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9, "Tbyte": 10**12, "sector": 1}
UNITS |= {"cycle": 1, "%": 1, "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
GRACE = 10.0
"""Seconds for the profiler to end, once no launch follows."""
FORBIDDEN = "ERR_NVGPUCTRPERM"
ROOT = Path(__file__).resolve().parents[1]


class NoCounters(Exception):
    """Nothing was counted; says why, and what can be done."""


@dataclass(frozen=True)
class Counters:
    """Bytes of one launch.

    Args:
        dram_read, dram_write: between the memory and the L2 cache.
        l2_read: read in the L2 cache.
    """

    dram_read: int
    dram_write: int
    l2_read: int

    def json(self) -> dict[str, int]:
        return {f"{name}_bytes": value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Profiled:
    """One launch: the kernel's name, and its counters by their names, in bytes, seconds or one."""

    kernel: str
    values: dict[str, float]


def find() -> str:
    """Where `ncu` is.

    Raises:
        NoCounters: it is nowhere.
    """
    for place in PLACES:
        if found := shutil.which(place):
            return found
    raise NoCounters("no ncu (Nsight Compute) on PATH nor in /usr/local/cuda/bin")


def command(
    ncu: str,
    log: Path,
    child: Sequence[str],
    metrics: Sequence[str] = METRICS,
    which: Sequence[str] = OURS,
) -> list[str]:
    """What counts the kernels of a child process; the table goes to a file.

    Args:
        metrics: the counters.
        which: options that say which kernels.
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
    """The launches of what `ncu --csv --page raw` prints, in order, with `METRICS`; see `read`."""
    found: list[Counters] = []
    for launch in read(text, METRICS):
        loaded, written, sectors = (round(launch.values[name]) for name in METRICS)
        found.append(Counters(loaded, written, SECTOR * sectors))
    return found


def read(text: str, metrics: Sequence[str]) -> list[Profiled]:
    """The launches of what `ncu --csv --page raw` prints, in order.

    Lines of its own and of the program stand before the table: a line of names, one of units, and
    one for every launch.

    Raises:
        NoCounters: there is no table, or one without the counters.
    """
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if head is None:
        raise NoCounters(f"ncu printed no table: {said(text)}")
    names, units, *rows = csv.reader(line for line in lines[head:] if line.startswith('"'))
    missing = [name for name in metrics if name not in names]
    if missing:
        raise NoCounters(f"ncu has no counters {', '.join(missing)} on this device")
    places = {name: names.index(name) for name in metrics}
    kernel = names.index("Kernel Name")
    return [
        Profiled(
            row[kernel],
            {name: _number(row[place], units[place]) for name, place in places.items()},
        )
        for row in rows
        if len(row) == len(names)
    ]


def _number(text: str, unit: str) -> float:
    """A cell. NoCounters where it holds no number: `n/a`, or `nan`."""
    try:
        found = float(text.replace(",", "")) * UNITS[unit]
    except (KeyError, ValueError):
        found = math.nan
    if math.isnan(found):
        raise NoCounters(f"ncu gave '{text} {unit}' for a counter")
    return found


def said(text: str) -> str:
    """What ncu complains of, for a message."""
    if FORBIDDEN in text:
        return (
            f"the driver keeps its counters to administrators ({FORBIDDEN}): run as root, or load "
            "its module with NVreg_RestrictProfilingToAdminUsers=0"
        )
    lines = [line for line in text.splitlines() if line.strip()]
    faults = [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
    return " ".join(faults or lines[-3:]) or "it said nothing"


def count(jobs: dict[str, Any], seconds: float) -> dict[tuple[str, str], Counters]:
    """Counters of launches, by the size and the plan of each.

    Args:
        jobs: what `benchmarks.launches` does.
        seconds: no launch begins after so many; those that are left have no counters.

    Raises:
        NoCounters: there is no ncu, it may not count, or it failed.
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
    """What ncu prints of the kernels that `python -m MODULE JOBS DONE` launches, and DONE's lines.

    Args:
        module: it does what the JSON file JOBS says, until the time `until` in it, and writes a
            line of JSON to DONE when something has ended.
        jobs: what the file holds, beside `until`.
        seconds: until then.
        metrics, which: see `command`.

    Raises:
        NoCounters: there is no ncu, it may not count, or it failed.
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
        raise NoCounters(said(everything))
    return text, launched


def _run(words: list[str], seconds: float) -> tuple[int, str]:
    """Exit status and all that is printed; what takes longer is ended, with its children."""
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
