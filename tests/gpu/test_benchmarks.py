"""Benchmark commands on small problems: kernels give right results, and result rows are written."""

from __future__ import annotations

import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from benchmarks.counting import ncu
from benchmarks.measures import epilogue, groups, overhead, random_sizes, schedules, traffic
from benchmarks.reports.record import load

# Skips this file without torch, before the imports below need it.
torch = pytest.importorskip("torch")

from tests.gpu.test_batches_and_groups import (  # noqa: E402
    check_groups,
    normal,
    on_device,
    poisoned,
)

pytestmark = pytest.mark.usefixtures("gpu")


def rows_of(
    measure: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str
) -> list[dict[str, Any]]:
    """Run a benchmark command and return the rows of its results file."""
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words, "--results", str(folder)])
    measure.main()
    (path,) = folder.glob("*.json")
    return load(path)["rows"]


@pytest.mark.parametrize(
    ("sizes", "n", "k"),
    [
        ([0, 300, 1, 0, 127, 129, 700, 0], 512, 1024),
        ([5], 264, 200),
        ([64] * 33, 256, 512),
    ],
)
def test_the_triton_kernel_of_groups(sizes: list[int], n: int, k: int):
    pytest.importorskip("triton")
    from benchmarks.peers.contender import Unavailable
    from benchmarks.peers.triton_groups import Product, configurations

    offsets = [0, *accumulate(sizes)]
    a, b, given = normal(offsets[-1], k), normal(len(sizes), n, k), on_device(offsets)
    ran = 0
    for config in configurations():
        d = poisoned(offsets[-1], n)
        try:
            Product(config)(a, b, d, given)
        except Unavailable:
            continue
        check_groups(d, a, b, offsets)
        ran += 1
    assert ran


def test_groups_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = rows_of(
        groups, tmp_path, monkeypatch, "--shapes", "1024x512x512", "--counts", "1", "9",
        "--rounds", "2", "--plans", "128x128x64 data-parallel{persistent=true}",
        "128x128x64 stream-k{owner=last,least_segment=4}",
    )  # fmt: skip
    assert {row["groups"] for row in rows} == {1, 9}
    assert not [row for row in rows if "problem" in row]
    assert all(row["of_cublas"] > 0 for row in rows)
    if "Triton" in {row["name"] for row in rows}:
        assert all("configuration" in row for row in rows if row["name"] == "Triton")


def test_the_cost_of_records_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = rows_of(
        overhead, tmp_path, monkeypatch, "--shapes", "1024x512x512", "--rounds", "2",
        "--plans", "128x128x64 stream-k on 20", "128x128x64 data-parallel",
    )  # fmt: skip
    assert not [row for row in rows if "problem" in row]
    assert ["overhead" in row for row in rows] == [False, True] * 2
    assert all(row["timeline"]["utilisation"] > 0 for row in rows[1::2])


def test_schedules_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = rows_of(
        schedules, tmp_path, monkeypatch, "--tiles", "128x128x64", "--counts", "4", "140",
        "--k", "1024", "--rounds", "2", "--time-limit", "1",
    )  # fmt: skip
    assert len(rows) == 2 * (1 + len(schedules.SCHEDULES))
    assert not [row for row in rows if "problem" in row]
    assert all("utilisation" in row for row in rows if row["ours"])


def test_orders_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """`traffic` measures tile orders, with hardware counters if the device gives them.

    The L2 cache is empty before each launch, so all of A and B is read from DRAM at least once. The
    bytes read from the L2 cache may be fewer than all workgroups ask for, because requests of
    neighbouring SMs for the same line may be merged.
    """
    rows = rows_of(
        traffic, tmp_path, monkeypatch, "--shapes", "2048x2048x1024", "--rounds", "2",
        "--orders", "none", "rasterize{width=4}",
    )  # fmt: skip
    assert len(rows) == 2 * len(traffic.SCHEDULES)
    assert not [row for row in rows if "problem" in row]
    assert [row["relative_time"] for row in rows[::2]] == [1.0, 1.0]
    if "no counters" not in capsys.readouterr().out:
        once = rows[0]["compulsory_bytes"]
        assert all(row["dram_read_bytes"] >= 0.95 * once for row in rows)
        assert all(row["l2_read_bytes"] >= 0.95 * once for row in rows)


def test_random_sizes_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = rows_of(
        random_sizes, tmp_path, monkeypatch, "--count", "2", "--high", "1024", "--rounds", "2",
        "--layouts", "nt,nn", "--candidates", "2",
    )  # fmt: skip
    assert not [row for row in rows if "problem" in row]
    assert len(random_sizes.compare(rows)) == 2 * 2


def test_an_epilogue_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("coordgraph.epilogue")
    rows = rows_of(
        epilogue, tmp_path, monkeypatch, "--shapes", "512x768x4096", "--rounds", "2",
        "--layouts", "nt", "nn",
    )  # fmt: skip
    names = {row["name"] for row in rows if "problem" not in row}
    assert names >= {"plain kernel", "fused kernel", "codegen.matmul", "torch eager"}
    assert len(epilogue.costs(rows)) == 2


def test_counters_are_those_of_our_kernels():
    """Nsight Compute gives counters for every plan's kernel; skipped if the device has none."""
    size = {"size": "1024x1024x512", "m": 1024, "n": 1024, "k": 512}
    plans = ["128x128x64 data-parallel", "128x128x64 stream-k{owner=last} on 60"]
    jobs = {"dtype": "bf16", "layout": "nn", "target": "native"}
    try:
        found = ncu.count({**jobs, "problems": [{**size, "plans": plans}]}, 60.0)
    except ncu.NoCounters as error:
        pytest.skip(str(error))
    assert set(found) == {(size["size"], plan) for plan in plans}
    assert all(one.dram_read >= 0.95 * 2 * 2 * 1024 * 512 for one in found.values())
