"""Clocks, power and temperature of the GPU while a measure runs, by nvidia-smi."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from typing import Any

__all__ = ["Monitor", "driver_version", "gpu_name", "parse_line", "summary"]

FIELDS = {
    "clocks.sm": "sm_mhz",
    "clocks.mem": "memory_mhz",
    "power.draw.instant": "watts",
    "temperature.gpu": "celsius",
}
INTERVAL_MS = 50


def parse_line(line: str) -> dict[str, float] | None:
    """Parse one line of nvidia-smi's CSV output; None if it contains no reading.

    >>> parse_line("1980, 3201, 512.33, 45")
    {'sm_mhz': 1980.0, 'memory_mhz': 3201.0, 'watts': 512.33, 'celsius': 45.0}
    """
    words = line.split(",")
    if len(words) != len(FIELDS):
        return None
    found: dict[str, float] = {}
    for name, word in zip(FIELDS.values(), words, strict=True):
        try:
            found[name] = float(word)
        except ValueError:  # nvidia-smi prints [N/A] for a field that this GPU lacks: leave it out
            continue
    return found or None


def summary(lines: list[dict[str, float]]) -> dict[str, float]:
    """The median of every field over all readings, by field; {} if there are no readings.

    The key `readings` has the number of readings.
    """
    if not lines:
        return {}
    medians = {
        name: statistics.median(values)
        for name in FIELDS.values()
        if (values := [line[name] for line in lines if name in line])
    }
    return {**medians, "readings": len(lines)}


class Monitor:
    """A context manager that records clocks, power and temperature of CUDA's GPU 0 every 50 ms.

    A monitor records nothing if nvidia-smi is not installed.
    """

    def __init__(self) -> None:
        self._lines: list[tuple[float, dict[str, float]]] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Monitor:
        if shutil.which("nvidia-smi"):
            self._process = subprocess.Popen(
                _query(gpu_name(), ",".join(FIELDS), f"--loop-ms={INTERVAL_MS}"),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._reader.join()
            if self._process.stdout is not None:
                self._process.stdout.close()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := parse_line(line):
                self._lines.append((time.monotonic(), found))

    def since(self, start: float) -> dict[str, float]:
        """Medians of the readings since `start` (by `time.monotonic()`); {} if there are none."""
        return summary([line for when, line in self._lines if when >= start])


def gpu_name() -> str:
    """The name by which nvidia-smi knows CUDA's GPU 0: `GPU-` and its UUID; `0` without CUDA.

    nvidia-smi does not read `CUDA_VISIBLE_DEVICES`: its GPU 0 may be another one.
    """
    try:
        import torch

        return f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    except (ImportError, AssertionError, RuntimeError, AttributeError):
        return "0"


def _query(gpu: str, fields: str, *more: str) -> list[str]:
    return [
        "nvidia-smi",
        "-i",
        gpu,
        f"--query-gpu={fields}",
        "--format=csv,noheader,nounits",
        *more,
    ]


def driver_version() -> str:
    """The NVIDIA driver's version by nvidia-smi; '' if nvidia-smi is missing or fails."""
    if not shutil.which("nvidia-smi"):
        return ""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 30}
    try:
        done = subprocess.run(_query("0", "driver_version"), check=True, **options)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
