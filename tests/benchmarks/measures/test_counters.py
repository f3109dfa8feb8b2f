"""`benchmarks counters` makes a result row with hardware counters for each product and library."""

from __future__ import annotations

import json
import sys
import time
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import codegen
import codegen.call.matmul
from benchmarks.counting import ncu
from benchmarks.counting.ncu import NoCounters, Profiled
from benchmarks.measures import counters
from benchmarks.measures.counters import METRICS, rows_of
from benchmarks.peers import libraries
from benchmarks.reports.record import RESULTS, key_of, load

SMALL = {"m": 8, "n": 16, "k": 24, "layout": "nt", "group": "E", "plan": "128x128x64 data-parallel"}
LARGE = {**SMALL, "m": 4096, "plan": "256x256x64@c2x1 data-parallel"}


def launch(kernel: str, *values: float) -> Profiled:
    return Profiled(kernel, dict(zip(METRICS, values, strict=True)))


LAUNCHES = [
    launch("gemm", 100, 1e-5, 75.0, 10.0, 20.0, 600, 400),
    launch("nvjet_tst", 90, 8e-6, 90.0, 12.0, 25.0, 500, 250),
    launch("splitKreduce_kernel", 20, 2e-6, 0.0, 40.0, 30.0, 100, 50),
    launch("gemm", 50, 5e-6, 97.0, 1.0, 2.0, 30, 10),
    launch("gemmk1_kernel", 55, 5e-6, 95.0, 1.0, 2.0, 20, 10),
]


def test_kernels_of_cublas_are_put_together():
    ours, theirs, *rest = rows_of([SMALL, LARGE], LAUNCHES)
    assert (ours["name"], ours["plan"], ours["cycles"]) == ("coordgraph", SMALL["plan"], 100)
    assert (ours["tensor_active"], ours["memory"], ours["l2"]) == (0.75, 0.1, 0.2)
    assert ours["delivered"] == 1.5
    assert (theirs["name"], theirs["cycles"], theirs["delivered"]) == ("cuBLAS", 110, 2.0)
    assert theirs["seconds"] == pytest.approx(1e-5)
    assert theirs["tensor_active"] == 0.9, "of the longest kernel"
    assert "plan" not in theirs
    assert [row["m"] for row in rest] == [4096, 4096]
    console = Console(width=120, record=True, file=StringIO())
    console.print(counters.table(rows_of([SMALL, LARGE], LAUNCHES)))
    text = console.export_text()
    assert "1.100" in text
    assert "8x16x24 nt" in text


def test_kernels_of_cublaslt_follow_a_second_launch_of_ours():
    launches = [*LAUNCHES[:3], launch("gemm", 101, 1e-5, 75.0, 10.0, 20.0, 600, 400), LAUNCHES[4]]
    rows = rows_of([SMALL], launches, ["cuBLAS", "cuBLASLt"])
    found = [(row["name"], row["cycles"]) for row in rows]
    assert found == [("coordgraph", 100), ("cuBLAS", 110), ("cuBLASLt", 55)]
    with pytest.raises(NoCounters, match=r"needed are 2: one before .* cuBLAS and of cuBLASLt"):
        rows_of([SMALL], LAUNCHES[:3], ["cuBLAS", "cuBLASLt"])


@pytest.mark.parametrize(
    ("launches", "why"),
    [
        (LAUNCHES[:3], "1 kernels of coordgraph, needed are 2"),
        (LAUNCHES[1:], "1 kernels of coordgraph, needed are 2"),
        (LAUNCHES[:4], "no kernel of cuBLAS"),
    ],
)
def test_other_launches_are_refused(launches: list[Profiled], why: str):
    with pytest.raises(NoCounters, match=why):
        rows_of([SMALL, LARGE], launches)


def test_only_what_is_marked_is_counted():
    words = ncu.command("ncu", Path("log"), ["python"], METRICS, counters.MARKED)
    assert words[1:3] == ["--profile-from-start", "off"]
    assert "--kernel-name" not in words
    assert words[words.index("--metrics") + 1].split(",") == list(METRICS)


def test_each_multiplies_once_between_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []

    def record(word: str) -> Any:
        return lambda *_, **__: calls.append(word)

    runtime = SimpleNamespace(cudaProfilerStart=record("start"), cudaProfilerStop=record("stop"))
    cuda = SimpleNamespace(cudart=lambda: runtime, synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    shapes: list[tuple[int, ...]] = []

    def multiply(a: Any, b: Any, out: Any) -> None:
        calls.append("ours")
        shapes.append((*a.shape, *b.shape))

    monkeypatch.setattr(codegen, "matmul", multiply)
    monkeypatch.setattr(codegen.call.matmul, "chosen", lambda a, b: "a plan")
    stored = (np.zeros((8, 24)), np.zeros((16, 24)), np.zeros((8, 16)))
    problem = SimpleNamespace(sets=[stored], as_multiplied=lambda a, b: (a, b.T))
    monkeypatch.setattr(counters, "Problem", lambda *_: problem)
    for name in ("CuBlas", "CuBlasLt"):
        peer = SimpleNamespace(prepare=lambda _, name=name: record(name))
        monkeypatch.setattr(libraries, name, lambda peer=peer: peer)
    peers = ["cuBLAS", "cuBLASLt"]
    jobs = {"dtype": "bf16", "problems": [SMALL], "until": time.time() + 60, "peers": peers}
    counters.launch_all(jobs, tmp_path / "done")
    once = ["ours", "CuBlas", "ours", "CuBlasLt"]
    assert calls == [*once, "start", *once, "stop"]
    assert shapes == [(8, 24, 24, 16)] * 4, "B is given as its transpose"
    (line,) = (tmp_path / "done").read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == {**SMALL, "plan": "a plan"}
    calls.clear()
    counters.launch_all({**jobs, "until": 0.0}, tmp_path / "done")
    assert not calls, "nothing begins after the time is over"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("counters-*.json")), ids=lambda p: p.stem)
def test_what_is_kept_is_of_both(path: Path):
    rows = load(path)["rows"]
    names = {}
    for row in rows:
        names.setdefault(key_of(row), []).append(row["name"])
        assert 0 < row["cycles"]
        assert all(0 <= row[share] <= 1 for share in ("tensor_active", "memory", "l2"))
    assert all(
        of_one in (["coordgraph", "cuBLAS"], ["coordgraph", "cuBLAS", "cuBLASLt"])
        for of_one in names.values()
    )
