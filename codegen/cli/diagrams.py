"""Writes the mermaid diagrams of `coordgraph run` to a folder of the cache."""

from __future__ import annotations

import hashlib
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from coordgraph import KernelGraph

__all__ = ["FOLDER", "MOST_FILES", "write_diagrams"]

FOLDER = "diagrams"
"""The name of the folder, in the cache directory, for the mermaid diagrams of `coordgraph run`."""
MOST_FILES = 400
"""The largest number of diagram files in the folder; if there are more, the oldest are deleted."""
LONGEST_NAME, DIGEST_LETTERS = 80, 10
PARTS = ("coordinates", "control")


def write_diagrams(graph: KernelGraph, name: str, folder: Path | None) -> dict[str, Path]:
    """Write mermaid texts of a graph's coordinates and control operations; return their paths.

    The keys of the result are `coordinates` and `control`.

    File names contain a digest of the texts, so the diagrams of other graphs are not overwritten.

    Args:
        graph: the graph to draw.
        name: the beginning of the names of the files.
        folder: where to write them. None means the cache directory, or a new temporary folder if
            the cache directory cannot be written to; with `COORDGRAPH_CACHE=off` None writes
            nothing.
    """
    texts = {part: getattr(graph, part).mermaid() for part in PARTS}
    if folder is not None:
        return _write(texts, name, folder)
    from codegen.cache import cache_directory

    with suppress(OSError, RuntimeError):  # there is no home directory, or it is read-only
        cached = cache_directory()
        if cached is None:
            return {}
        found = _write(texts, name, cached / FOLDER)
        _trim(cached / FOLDER)
        return found
    return _write(texts, name, Path(tempfile.mkdtemp(prefix="coordgraph-")))


def _write(texts: dict[str, str], name: str, folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    safe = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:LONGEST_NAME]
    digest = hashlib.sha256("\0".join(texts.values()).encode()).hexdigest()[:DIGEST_LETTERS]
    found: dict[str, Path] = {}
    for part, text in texts.items():
        found[part] = folder / f"{safe}-{digest}.{part}.mmd"
        found[part].write_text(text, encoding="utf-8")
    return found


def _trim(folder: Path) -> None:
    """Delete the oldest `*.mmd` files of a folder until at most `MOST_FILES` of them are left."""
    files = sorted(folder.glob("*.mmd"), key=lambda path: path.stat().st_mtime_ns)
    for path in files[:-MOST_FILES]:
        with suppress(OSError):
            path.unlink()
