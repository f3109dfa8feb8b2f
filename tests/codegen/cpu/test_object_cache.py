"""The cache of object files: a file is loaded only where LLVM would generate the same code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import codegen
from codegen.targets.cpu import code
from coordgraph import Gemm
from passes import StreamK
from tests.codegen.cli.commands import ROOT, coordgraph

GRAPH = StreamK(workgroups=3)(Gemm("f32").graph((32, 32, 16)))
A = np.random.default_rng(0).standard_normal((70, 50), dtype=np.float32)
B = np.random.default_rng(1).standard_normal((50, 90), dtype=np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the cache on disk; the caches in memory are cleared."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path / "cache"))
    forget(monkeypatch)
    return tmp_path / "cache"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_CODES", code.LRUCache(4))


def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    forget(monkeypatch)
    return codegen.compile(GRAPH, "cpu")


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kernel.zip"))


def no_llvm(*_: Any, **__: Any) -> Any:
    raise AssertionError("LLVM compiles")


def test_a_second_kernel_is_loaded_and_gives_the_same_bits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    first = made(monkeypatch)
    assert not first.from_cache
    assert len(entries(folder)) == 1
    d = first(A, B)
    np.testing.assert_allclose(d, A @ B, atol=1e-4)
    monkeypatch.setattr(code, "optimize", no_llvm)
    second = made(monkeypatch)
    assert second.from_cache
    assert second(A, B).tobytes() == d.tobytes()
    assert len(entries(folder)) == 1


@pytest.mark.slow
def test_another_process_loads_it(folder: Path, monkeypatch: pytest.MonkeyPatch):
    d = made(monkeypatch)(A, B)
    script = (
        "from tests.codegen.cpu.test_object_cache import A, B, GRAPH, code, codegen, no_llvm\n"
        "import sys\n"
        "code.optimize = no_llvm\n"
        "sys.stdout.buffer.write(codegen.compile(GRAPH, 'cpu')(A, B).tobytes())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=ROOT, check=True)
    assert done.stdout == d.tobytes()


class _Features:
    def flatten(self) -> str:
        return "+other"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("get_host_cpu_name", lambda: "other"),
        ("get_host_cpu_features", _Features),
        ("get_process_triple", lambda: "other-none-none"),
        ("llvm_version_info", (0, 0, 0)),
    ],
)
def test_the_key_has_the_machine_and_llvm(
    name: str, value: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
):
    before = code._key("text")
    assert code._key("text") == before != code._key("other text")
    monkeypatch.setattr(llvm, name, value)
    assert code._key("text") != before


@pytest.mark.parametrize(
    "damage", [None, *(pytest.param(some, marks=pytest.mark.slow) for some in (b"", b"nothing"))]
)
def test_what_is_damaged_is_made_again(
    damage: bytes | None, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    made(monkeypatch)
    (entry,) = entries(folder)
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-100] + bytes(100) if damage is None else damage)
    again = made(monkeypatch)
    assert not again.from_cache
    np.testing.assert_allclose(again(A, B), A @ B, atol=1e-4)
    assert made(monkeypatch).from_cache


@pytest.mark.slow
def test_nothing_is_kept_where_the_cache_is_off(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    for _ in range(2):
        kernel = made(monkeypatch)
        assert not kernel.from_cache
    np.testing.assert_allclose(kernel(A, B), A @ B, atol=1e-4)
    assert not folder.exists()


@pytest.mark.slow
def test_reports_say_where_the_code_comes_from(monkeypatch: pytest.MonkeyPatch):
    words = ("compile", "-t", "cpu", "--tile", "32x32x16", "--dtype", "f32", "--json")
    found = []
    for _ in range(2):
        forget(monkeypatch)
        found.append(coordgraph(*words).json)
    assert [each["from_cache"] for each in found] == [False, True]
    assert found[0]["compiled"] == "lowering, LLVM IR, machine code by LLVM"
    assert found[1]["compiled"] == "lowering, LLVM IR, machine code from the cache"
