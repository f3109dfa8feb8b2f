"""Measured times of plans for a problem on a device, kept for later calls.

The times are in `tuned.json` in the folder of the kernel cache, with one entry for each problem,
layout, types, GPU, driver and version of the generator. If the file cannot be read or written, the
times are kept in the process only.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.cache import cache_directory, key_of
from codegen.call.request import PlanRequest
from coordgraph import CoordGraphError
from passes.choosing import Plan

__all__ = ["Measured", "forget", "remember", "remembered"]

FILE, LOCK, MOST_ENTRIES, LONGEST_WAIT = "tuned.json", "tuned.lock", 5000, 20.0

_known: dict[str, dict[str, float]] = {}
"""For each problem's key: seconds of a launch by the plan's text, the fastest plan first."""
_read_from: Path | None = None
_lock = threading.RLock()


@dataclass(frozen=True)
class Measured:
    """Measured plans of a problem with median seconds of a launch, the fastest first."""

    times: tuple[tuple[Plan, float], ...]

    @property
    def plan(self) -> Plan:
        """The fastest plan."""
        return self.times[0][0]

    @property
    def seconds(self) -> float:
        """The time of the fastest plan in seconds."""
        return self.times[0][1]


def remembered(request: PlanRequest) -> Measured | None:
    """The measured times of plans for a problem on a device; None if none were measured."""
    with _lock:
        _read()
        times = _known.get(_key(request)) if _known else None
    if not times:
        return None
    try:
        return Measured(tuple((Plan.parse(text), seconds) for text, seconds in times.items()))
    except CoordGraphError:  # the file was edited, and this text is not a plan
        return None


def remember(request: PlanRequest, seconds: Mapping[Plan, float]) -> None:
    """Store the measured seconds of plans for later calls, also of other processes."""
    key = _key(request)
    times = _fastest_first({str(plan): taken for plan, taken in seconds.items()})
    best = next(iter(times))
    with _lock:
        _known[key] = times
    folder = cache_directory()
    if folder is None:
        return
    import filelock

    # If `tuned.json` is read-only, or cannot be locked in time, the times are not written to it.
    with suppress(OSError, NotImplementedError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with filelock.FileLock(folder / LOCK, timeout=LONGEST_WAIT):
            entries = _entries(folder)
            entries[key] = {
                "plan": best,
                "seconds": times[best],
                "times": times,
                "problem": _text(request),
            }
            _write(folder, dict(list(entries.items())[-MOST_ENTRIES:]))


def forget() -> None:
    """Drop the measured times of plans kept in this process; later calls read the file again."""
    global _read_from
    with _lock:
        _known.clear()
        _read_from = None


def _read() -> None:
    """Read the file of measured times, unless it was read from the current cache folder before."""
    global _read_from
    folder = cache_directory()
    if folder == _read_from:
        return
    _known.clear()
    _read_from = folder
    if folder is not None:
        _known.update({key: _times(entry) for key, entry in _entries(folder).items()})


def _entries(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads((folder / FILE).read_text("utf-8"))
        return {key: entry for key, entry in found.items() if isinstance(entry["plan"], str)}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _times(entry: Mapping[str, Any]) -> dict[str, float]:
    """The times in seconds in an entry of the file, by plan text; {} if the entry is malformed."""
    try:
        return _fastest_first({text: float(taken) for text, taken in entry["times"].items()})
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _fastest_first(times: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(times.items(), key=lambda item: item[1]))


def _write(folder: Path, entries: Mapping[str, Any]) -> None:
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=FILE, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(entries, file, indent=1)
        os.replace(name, folder / FILE)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _text(request: PlanRequest) -> str:
    g = request.gemm
    layout = "".join("t" if turned else "n" for turned in (g.transpose_a, g.transpose_b))
    kinds = f"{g.dtype} {g.out_dtype or g.dtype} {request.instructions}"
    kinds += " C" if request.reads_c else ""
    where = f"{request.device} {request.processors} {request.target}"
    many = f"{request.batches} of " if g.batched else ""
    if g.grouped:
        many = f"{request.batches} groups of {g.group_axis} in "
    return f"{many}{g.m}x{g.n}x{g.k} {layout} {kinds} {where}"


def _key(request: PlanRequest) -> str:
    driver = "none"
    if request.target != "cpu":
        from codegen.targets.nvptx.driver import cuda

        driver = str(cuda("cuDriverGetVersion"))
    return key_of("tuned", _text(request), driver)
