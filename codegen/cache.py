"""The cache of generated kernels on disk: one file each, found by what it was made from.

`COORDGRAPH_CACHE` names its folder, or turns it off (`off`). It only ever saves time: an entry that
is damaged, of another version or cannot be written is made anew or done without. A file is a digest
of the rest and a zip archive, which any tool opens, since archives may begin with something else.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import time
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from coordgraph import KernelGraph

__all__ = ["building", "cache_directory", "cacheable", "key_of", "load", "store"]

VARIABLE, OFF = "COORDGRAPH_CACHE", "off"
SUFFIX = ".kernel.zip"
DIGEST_BYTES = 32
PACKAGES = ("coordgraph", "passes", "codegen")
MOST_ENTRIES, MOST_BYTES = 2000, 1 << 30
KEPT = 0.9
"""The share of either bound that is left when old entries are deleted."""
LOCKS = 64
ABANDONED = 3600.0
"""Seconds after which nobody writes a file any more."""
LONGEST_WAIT = 120.0
"""Seconds to wait for another process that makes the same kernel."""


def cache_directory() -> Path | None:
    """The folder of the cache, whether or not it is there yet; None where the cache is off."""
    chosen = os.environ.get(VARIABLE, "").strip()
    if chosen.lower() == OFF:
        return None
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("coordgraph", appauthor=False))


def cacheable(graph: KernelGraph, *others: object) -> bool:
    """True where everything that code depends on is in the graph's text and in our sources.

    Edges, dimensions, operations and lowerings from elsewhere have a meaning that may change
    without either.
    """
    parts = (*graph.coordinates, *graph.coordinates.edges, *graph.control.operations, *others)
    return all(_ours(kind.__module__) for kind in {type(part) for part in parts})


def _ours(module: str) -> bool:
    return module.partition(".")[0] in (*PACKAGES, "builtins")


def key_of(*parts: str) -> str:
    """The name under which something is kept that is made from these parts by this version."""
    digest = hashlib.sha256(_generator().encode())
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:40]


@cache
def _generator() -> str:
    """What generates code: our sources, and LLVM."""
    digest = hashlib.sha256(version("llvmlite").encode())
    root = Path(__file__).resolve().parents[1]
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    # Without sources there is nothing to tell versions apart by: nothing is found again.
    return (
        digest.hexdigest() if (root / PACKAGES[0] / "__init__.py").exists() else os.urandom(8).hex()
    )


def load(key: str) -> dict[str, bytes] | None:
    """The files of an entry, or None where there is none that can be read."""
    folder = cache_directory()
    if folder is None:
        return None
    path = folder / f"{key}{SUFFIX}"
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    digest, archived = whole[:DIGEST_BYTES], whole[DIGEST_BYTES:]
    if _digest(archived) != digest:
        return None
    with suppress(OSError):
        os.utime(path)  # used just now: `_trim` deletes what was not used for longest
    with zipfile.ZipFile(io.BytesIO(archived)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def store(key: str, files: Mapping[str, bytes]) -> None:
    """Keep files under a key; who reads it sees all of them or none."""
    folder = cache_directory()
    if folder is None:
        return
    archived = io.BytesIO()
    with zipfile.ZipFile(archived, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for member, content in files.items():
            archive.writestr(member, content)
    whole = _digest(archived.getvalue()) + archived.getvalue()
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=f"{key}.", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(whole)
            os.replace(name, folder / f"{key}{SUFFIX}")
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
        _trim(folder)


def _trim(folder: Path) -> None:
    """Delete the entries that were not used for longest, where there are too many or too large."""
    for path in folder.glob("*.tmp"):  # of a process that was killed
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()
    found: list[tuple[int, int, Path]] = []
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError):  # another process may delete it meanwhile
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, path))
    count, size = len(found), sum(each for _, each, _ in found)
    if count <= MOST_ENTRIES and size <= MOST_BYTES:
        return
    for _, each, path in sorted(found, key=lambda entry: entry[0]):
        if count <= KEPT * MOST_ENTRIES and size <= KEPT * MOST_BYTES:
            return
        with suppress(OSError):
            path.unlink()
        count, size = count - 1, size - each


@contextmanager
def building(key: str) -> Generator[None]:
    """One process at a time makes an entry; the others wait, and then find it."""
    folder = cache_directory()
    if folder is None:
        yield
        return
    import filelock

    lock = filelock.FileLock(folder / f"{int(key, 16) % LOCKS}.lock", timeout=LONGEST_WAIT)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError):  # not writable, not lockable, or a wait too long
        yield
        return
    try:
        yield
    finally:
        lock.release()
