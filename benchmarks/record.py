"""What a run leaves: a JSON file with when, where and how, and the rows."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "beginning", "environment", "key_of", "load", "result_path", "write"]

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("coordgraph", "llvmlite", "cuda-python", "numpy", "sympy", "triton", "nvidia-cublas")


def beginning(kind: str) -> dict[str, Any]:
    """The beginning of a record of what needs no GPU: what it is, when and how it was made."""
    return {
        "kind": kind,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join([*sys.argv[0].split(), *sys.argv[1:]]),
    }


def environment(kind: str) -> dict[str, Any]:
    """The beginning of a record of a measure on a GPU."""
    import torch

    from benchmarks.monitor import driver_version
    from codegen.nvptx.driver import device

    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions["cuda of torch"] = torch.version.cuda or ""
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    found = device(0)
    return {
        **beginning(kind),
        "device": found.name,
        "architecture": found.architecture,
        "processors": found.processors,
        "driver": driver_version(),
        "versions": versions,
    }


def result_path(folder: Path, record: dict[str, Any]) -> Path:
    """`gemm-20260131T120000.json` in the folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = record["date"].replace(":", "").replace("-", "")[:15]
    return folder / f"{record['kind']}-{stamp}.json"


def write(path: Path, record: dict[str, Any]) -> None:
    """All of it or nothing: a run that ends early leaves what it had."""
    whole = path.with_suffix(".part")
    head = {name: value for name, value in record.items() if name != "rows"}
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2]
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in record["rows"])
    whole.write_text(f'{text},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    whole.replace(path)


def key_of(row: dict[str, Any]) -> tuple[int, int, int, str]:
    """Which problem a row is of: m, n, k and the layout."""
    return row["m"], row["n"], row["k"], row["layout"]


def load(path: Path) -> dict[str, Any]:
    """A record; ValueError where the file holds none."""
    text = path.read_text(encoding="utf-8")
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(record, dict) or "rows" not in record:
        raise ValueError(f"{path} holds no record with rows")
    return record
