"""The on-disk cache of compiled kernels: one file for each kernel, named by its cache key.

The environment variable `COORDGRAPH_CACHE` is the folder of the cache, or `off` for no cache. The
cache only saves time: if a file is damaged, or was written by another version, the kernel is
compiled again; if a file cannot be written, nothing is cached. A file begins with the SHA-256 (32
bytes) of the zip archive that follows. Tools for zip archives can open the file unchanged.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import time
import zipfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from coordgraph import KernelGraph

__all__ = ["building", "cache_directory", "cacheable", "key_of", "load", "store"]

VARIABLE, OFF = "COORDGRAPH_CACHE", "off"
"""VARIABLE: the environment variable that holds the folder of the cache. OFF: the value of that
variable for no cache."""
SUFFIX = ".kernel.zip"
"""The suffix of the name of a cache file; the part before it is the cache key."""
DIGEST_BYTES = 32
"""Number of bytes of the SHA-256 at the start of a cache file."""
PACKAGES = ("coordgraph", "passes", "codegen")
"""The packages whose sources are part of every cache key."""
MOST_ENTRIES, MOST_BYTES = 2000, 1 << 30
"""The number of entries, and of bytes, above which the cache is trimmed."""
KEPT = 0.9
"""Trimming deletes entries until at most this fraction of MOST_ENTRIES and MOST_BYTES is left."""
LOCKS = 64
"""How many lock files the cache has; a cache key selects one of them."""
ABANDONED = 3600.0
"""Age in seconds at which a temporary file of the cache is deleted: its writer must have ended."""
LONGEST_WAIT = 120.0
"""The longest time, in seconds, to wait for another process that compiles the same kernel; after
that this process compiles it too."""


def cache_directory() -> Path | None:
    """The folder of the on-disk kernel cache, which may not exist yet; None if the cache is off."""
    chosen = os.environ.get(VARIABLE, "").strip()
    if chosen.lower() == OFF:
        return None
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("coordgraph", appauthor=False))


def cacheable(graph: KernelGraph, *others: object) -> bool:
    """Whether a cache key can cover everything that the compiled code depends on.

    A key covers the graph's text and the sources of this library. So a kernel cannot be cached if
    the class of an edge, a dimension, an operation or the lowering is defined outside the library:
    the source of that class may change while the key stays the same.

    Args:
        graph: the graph to compile.
        others: further objects that the code depends on, such as a lowering pass.
    """
    parts = (*graph.coordinates, *graph.coordinates.edges, *graph.control.operations, *others)
    return all(_ours(kind.__module__) for kind in {type(part) for part in parts})


def _ours(module: str) -> bool:
    """Whether a module is part of this library, or of Python's builtins."""
    return module.partition(".")[0] in (*PACKAGES, "builtins")


def key_of(*parts: str) -> str:
    """The cache key, 40 hex digits, of the code that this library version generates from `parts`.

    Args:
        parts: texts that determine the code, such as the text of the graph and the target.
    """
    digest = hashlib.sha256(_generator().encode())
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:40]


@cache
def _generator() -> str:
    """A digest of everything that generates code: the library's sources and LLVM's version."""
    digest = hashlib.sha256(version("llvmlite").encode())
    root = Path(__file__).resolve().parents[1]
    for path in sorted(path for package in PACKAGES for path in _sources(root / package)):
        digest.update(f"{path[len(str(root)) + 1 :]}\0".encode())
        with open(path, "rb") as file:
            digest.update(file.read())
    # Without source files (a frozen application) library versions cannot be distinguished. A random
    # digest then prevents this process from reading entries that another version has written.
    return (
        digest.hexdigest() if (root / PACKAGES[0] / "__init__.py").exists() else os.urandom(8).hex()
    )


def _sources(package: Path) -> Iterator[str]:
    """Paths of a package's source files, as strings, because making `Path` objects is slow."""
    for folder, _, names in os.walk(package):
        yield from (f"{folder}{os.sep}{name}" for name in names if name.endswith(".py"))


def load(key: str) -> dict[str, bytes] | None:
    """The files of the cache entry `key`: contents by file name; None if missing or damaged."""
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
        os.utime(path)  # mark as used: `_trim` deletes the least recently used entries
    with zipfile.ZipFile(io.BytesIO(archived)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _digest(content: bytes) -> bytes:
    """The SHA-256 of `content`."""
    return hashlib.sha256(content).digest()


def store(key: str, files: Mapping[str, bytes]) -> None:
    """Write an entry to the cache, atomically: readers see all of its files or none.

    Args:
        key: the cache key, from `key_of`.
        files: the contents of the files, by name.
    """
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
    """Delete least recently used cache entries in `folder`, if it has too many entries or bytes."""
    for path in folder.glob("*.tmp"):  # a temporary file stays behind if its writer is killed
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()
    found: list[tuple[int, int, Path]] = []
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError):  # another process may delete the file meanwhile
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
    """Hold the lock of a cache key, so that only one process compiles the kernel.

    Other processes wait for the lock, and then find the entry in the cache. If the folder cannot be
    written or locked, or the lock is not free after 120 seconds, the `with` block runs without it.
    """
    folder = cache_directory()
    if folder is None:
        yield
        return
    import filelock

    lock = filelock.FileLock(folder / f"{int(key, 16) % LOCKS}.lock", timeout=LONGEST_WAIT)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError):  # OSError includes filelock.Timeout
        yield
        return
    try:
        yield
    finally:
        lock.release()
