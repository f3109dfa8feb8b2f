"""Measures that are run as a whole, on something small: everyone is right, and what is written."""

from __future__ import annotations

import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from benchmarks import groups, schedules
from benchmarks.record import load

torch = pytest.importorskip("torch")  # before tests that need it are imported

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
    """What a command writes."""
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
    from benchmarks.contenders import Unavailable
    from benchmarks.triton_groups import Product, configurations

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


def test_schedules_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = rows_of(
        schedules, tmp_path, monkeypatch, "--tiles", "128x128x64", "--counts", "4", "140",
        "--k", "1024", "--rounds", "2", "--time-limit", "1",
    )  # fmt: skip
    assert len(rows) == 2 * (1 + len(schedules.SCHEDULES))
    assert not [row for row in rows if "problem" in row]
    assert all("utilisation" in row for row in rows if row["ours"])
