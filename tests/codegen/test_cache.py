"""The disk cache: damaged or outdated files cannot make a kernel wrong or fail."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

import codegen
from codegen import cache
from coordgraph import Gemm
from passes import DataParallel
from passes.lowering import LowerToTensorCores
from tests.passes.test_third_party import LastRowFirst, Snake

FILES = {"facts.json": b"{}", "code": bytes(range(256)) * 50}
KEY = cache.key_of("some", "parts")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a cache folder that does not exist yet."""
    made = tmp_path / "there" / "cache"
    monkeypatch.setenv("COORDGRAPH_CACHE", str(made))
    return made


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kernel.zip"))


def test_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    name = "COORDGRAPH_CACHE"
    assert codegen.cache_directory() == folder
    monkeypatch.setenv("COORDGRAPH_CACHE", "~/kernels")
    assert codegen.cache_directory() == Path.home() / "kernels"
    for word in ("off", "OFF", " off "):
        monkeypatch.setenv("COORDGRAPH_CACHE", word)
        assert codegen.cache_directory() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for unset in (lambda: monkeypatch.setenv(name, ""), lambda: monkeypatch.delenv(name)):
        unset()
        found = codegen.cache_directory()
        assert found is not None
        assert "coordgraph" in str(found)


def test_an_entry(folder: Path):
    assert cache.load(KEY) is None
    cache.store(KEY, FILES)
    assert cache.load(KEY) == FILES
    cache.store(KEY, {"code": b"other"})
    assert cache.load(KEY) == {"code": b"other"}
    assert cache.load(cache.key_of("others")) is None
    assert len(entries(folder)) == 1
    assert not list(folder.glob("*.tmp"))


def test_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch):
    cache.store(KEY, FILES)
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    assert cache.load(KEY) is None
    cache.store(cache.key_of("more"), FILES)
    with cache.building(KEY):
        pass
    assert len(entries(folder)) == 1


def test_keys_keep_parts_apart():
    keys = {
        cache.key_of(*parts) for parts in (("a", "b"), ("ab",), ("ab", ""), ("", "ab"), ("b", "a"))
    }
    assert len(keys) == 5
    assert cache.key_of("a", "b") == cache.key_of("a", "b")


def test_keys_know_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Cache keys depend on every source file and on LLVM's version."""

    def key(changed: str = "") -> str:
        (root / "passes" / "x.py").write_text(changed)
        cache._generator.cache_clear()
        return cache.key_of("a")

    root = tmp_path / "lib"
    for package in cache.PACKAGES:
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").write_text("")
    monkeypatch.setattr(cache, "__file__", str(root / "codegen" / "cache.py"))
    try:
        one = key()
        assert key() == one
        assert key("y = 1") != one
        monkeypatch.setattr(cache, "version", lambda name: "0.0.0")
        assert key() != one
        # Without source files, each call returns a random cache key, so no kernel is loaded that
        # another version of the library has stored on disk.
        (root / "coordgraph" / "__init__.py").unlink()
        assert key() != key()
    finally:
        cache._generator.cache_clear()


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "text", "folder"])
def test_damaged_entries_are_ignored_and_replaced(folder: Path, damage: str):
    cache.store(KEY, FILES)
    (path,) = entries(folder)
    whole = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        middle = len(whole) // 3
        bad = bytes([whole[middle] ^ 0x55])
        path.write_bytes(
            {
                "empty": b"",
                "cut": whole[: len(whole) // 2],
                "changed": whole[:middle] + bad + whole[middle + 1 :],
                "text": b"no archive",
            }[damage]
        )
    assert cache.load(KEY) is None
    cache.store(KEY, FILES)
    if damage != "folder":
        assert cache.load(KEY) == FILES
    assert not list(folder.glob("*.tmp"))


def test_every_changed_byte_is_noticed(folder: Path):
    cache.store(KEY, {"code": b"abcdefgh" * 9})
    (path,) = entries(folder)
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert cache.load(KEY) is None


def test_a_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path / "file" / "cache"))
    cache.store(KEY, FILES)
    assert cache.load(KEY) is None
    with cache.building(KEY):
        pass


def test_the_least_recently_used_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "MOST_ENTRIES", 10)
    keys = [cache.key_of(str(i)) for i in range(11)]
    for age, key in enumerate(keys[:10]):
        cache.store(key, FILES)
        os.utime(folder / f"{key}.kernel.zip", (1000 + age, 1000 + age))
    assert cache.load(keys[0]) == FILES  # loading an entry makes it the most recently used one
    cache.store(keys[10], FILES)
    left = [cache.load(key) is not None for key in keys]
    assert left == [True, False, False, *[True] * 8]


def test_large_entries_are_bounded_too(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "MOST_BYTES", 100_000)
    for i in range(8):
        cache.store(cache.key_of(str(i)), {"code": os.urandom(30_000)})
        os.utime(entries(folder)[0])
    assert 1 <= len(entries(folder)) <= 3
    assert sum(path.stat().st_size for path in entries(folder)) <= 100_000


def test_what_a_killed_process_left_is_cleared(folder: Path):
    cache.store(KEY, FILES)
    fresh, old = folder / "x.1.tmp", folder / "x.2.tmp"
    for path in (fresh, old):
        path.write_text("half")
    os.utime(old, (1000, 1000))
    cache.store(KEY, FILES)
    assert (fresh.exists(), old.exists()) == (True, False)


def test_readers_see_whole_entries(folder: Path):
    """Readers see complete entries while other processes rewrite them."""
    cache.store(KEY, FILES)
    stop, seen = threading.Event(), []

    def write() -> None:
        while not stop.is_set():
            cache.store(KEY, FILES)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        seen = [cache.load(KEY) for _ in range(200)]
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert all(found == FILES for found in seen)


HOLD = """
import sys, time
from codegen import cache
with cache.building(sys.argv[1]):
    print("mine", flush=True)
    time.sleep(1.0)
    cache.store(sys.argv[1], {"code": b"theirs"})
"""


def test_one_process_builds_and_the_others_wait(folder: Path):
    command = [sys.executable, "-c", HOLD, KEY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        assert cache.load(KEY) is None
        with cache.building(KEY):
            assert cache.load(KEY) == {"code": b"theirs"}
        assert other.wait(20) == 0


def test_nobody_waits_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "LONGEST_WAIT", 0.1)
    command = [sys.executable, "-c", HOLD, KEY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        start = time.perf_counter()
        with cache.building(KEY):
            assert time.perf_counter() - start < 1
        assert other.wait(20) == 0


def test_an_error_while_building_frees_the_lock(folder: Path):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"), cache.building(KEY):
            raise RuntimeError("broken")


def test_entries_are_archives_that_any_tool_opens(folder: Path):
    cache.store(KEY, FILES)
    (path,) = entries(folder)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == FILES


def test_only_what_our_sources_define_is_kept():
    """Kernels made with an edge or a lowering pass of another package are not cached on disk.

    The cache key depends on the library's sources, which do not define that edge or pass.
    """
    tiled = Gemm().graph((64, 64, 32))
    ours = DataParallel()(tiled)
    assert cache.cacheable(ours, LowerToTensorCores(), None)
    assert not cache.cacheable(DataParallel()(LastRowFirst()(tiled)))
    assert not cache.cacheable(ours, Snake())
