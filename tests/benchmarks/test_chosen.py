"""`benchmarks.chosen`: which of measured plans the model prefers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import chosen

RESULTS = Path(chosen.__file__).parent / "results"


def row(plan: str, seconds: float) -> dict[str, object]:
    return {
        "m": 4096,
        "n": 4096,
        "k": 4096,
        "group": "C",
        "layout": "nt",
        "plan": plan,
        "t": seconds,
    }


def test_the_best_and_the_preferred_plan_are_told_apart() -> None:
    slow_but_large = row("128x256x64 data-parallel{persistent=true} on 132", 200e-6)
    fast_but_small = row("64x64x64 data-parallel{persistent=true} on 132", 100e-6)
    (found,) = chosen.judge([row("cublas", 150e-6), slow_but_large, fast_but_small], "NVIDIA H200")
    assert found.best == pytest.approx(1.5)
    assert found.best_plan == fast_but_small["plan"]
    assert found.chosen == pytest.approx(0.75)
    assert found.chosen_plan == slow_but_large["plan"]


def test_problems_without_cublas_are_left_out() -> None:
    assert not chosen.judge([row("128x256x64 data-parallel on 132", 1e-3)], "NVIDIA H200")


def test_the_kept_measurements_hold_every_group() -> None:
    assert [*RESULTS.glob("sweep-h200-2*.json")]
    for path in RESULTS.glob("sweep-h200-2*.json"):
        found = chosen.judge(json.loads(path.read_text())["rows"], "NVIDIA H200")
        assert {one.group for one in found} == set("ABCDEF")
        assert all(one.chosen <= one.best for one in found)
