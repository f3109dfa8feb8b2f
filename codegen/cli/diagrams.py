"""Where diagrams go that nobody asked a place for."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

from coordgraph import KernelGraph

__all__ = ["cache_folder", "write_diagrams"]


def cache_folder() -> Path:
    """The user's folder for what can be made again."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "coordgraph"


def write_diagrams(graph: KernelGraph, name: str, folder: Path | None) -> dict[str, Path]:
    """The mermaid texts of a graph as files; an error only where the folder was asked for."""
    if folder is not None:
        return _write(graph, name, folder)
    try:
        return _write(graph, name, cache_folder() / "diagrams")
    except (OSError, RuntimeError):  # no home, or none that can be written to
        return _write(graph, name, Path(tempfile.mkdtemp(prefix="coordgraph-")))


def _write(graph: KernelGraph, name: str, folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    safe = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
    found: dict[str, Path] = {}
    for part in ("coordinates", "control"):
        found[part] = folder / f"{safe}.{part}.mmd"
        found[part].write_text(getattr(graph, part).mermaid(), encoding="utf-8")
    return found
