"""Records: the JSON file of a run, with its date, machine, command line, and rows of results."""

from __future__ import annotations

import datetime
import gzip
import importlib.metadata
import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

from passes.choosing.times import read_json

__all__ = ["RESULTS", "environment", "header", "key_of", "load", "result_path", "write"]

RESULTS = Path(__file__).parents[1] / "results"
PACKAGES = ("coordgraph", "llvmlite", "cuda-python", "numpy", "sympy", "triton", "nvidia-cublas")
DIGITS = 6
"""Significant digits of numbers in a record; runs differ in the third or fourth digit anyway."""


def header(kind: str) -> dict[str, Any]:
    """The first fields of every record: the measure, the date and the command line."""
    return {
        "kind": kind,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join([*sys.argv[0].split(), *sys.argv[1:]]),
    }


def environment(kind: str) -> dict[str, Any]:
    """The first fields of a record of a GPU run: `header`, the GPU, driver and package versions."""
    import torch

    from benchmarks.timing.monitor import driver_version
    from codegen.targets.nvptx.driver import device

    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions["cuda of torch"] = torch.version.cuda or ""
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    found = device(0)
    return {
        **header(kind),
        "device": found.name,
        "architecture": found.architecture,
        "processors": found.processors,
        "driver": driver_version(),
        "versions": versions,
    }


def result_path(folder: Path, record: dict[str, Any]) -> Path:
    """The path of a new record, as `FOLDER/gemm-20260131T120000.json`; creates the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = record["date"].replace(":", "").replace("-", "")[:15]
    return folder / f"{record['kind']}-{stamp}.json"


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record as JSON, compressed by gzip if the name ends in `.gz`.

    The file is replaced atomically, so an interrupted run leaves the last complete record.
    """
    record = _rounded(record)
    head = {name: value for name, value in record.items() if name != "rows"}
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2]
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in record["rows"])
    data = f'{text},\n "rows": [\n{lines}\n ]\n}}\n'.encode()
    partial = path.with_name(f"{path.name}.part")
    # mtime=0 leaves the time out of the gzip header, so that equal records give equal files.
    partial.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    partial.replace(path)


def _rounded(value: Any) -> Any:
    """A JSON value with every floating-point number rounded to `DIGITS` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def key_of(row: dict[str, Any]) -> tuple[int, int, int, str]:
    """The problem of a row of a record: m, n, k and the layout."""
    return row["m"], row["n"], row["k"], row["layout"]


def load(path: Path) -> dict[str, Any]:
    """Read a record from a JSON file, which may be compressed by gzip.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file does not contain a record with rows.
    """
    record = read_json(path)
    if not isinstance(record, dict) or "rows" not in record:
        raise ValueError(
            f"{path} is not a record with rows; give a file that `python -m benchmarks` wrote"
        )
    return record
