"""Tests of `python -m benchmarks timeline`, which times kernels that record a timeline."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from benchmarks.measures import overhead


def row(name: str, median: float, **more: Any) -> dict[str, Any]:
    sizes = {"shape": "given", "m": 8, "n": 8, "k": 8}
    return {"name": name, **sizes, "seconds": {"median": median}, "plan": name, **more}


def summary() -> dict[str, Any]:
    seconds = dict.fromkeys(overhead.SHARES, 1e-6)
    counts = {"slots": 2, "workgroups_per_slot": 1, "makespan_seconds": 5e-6}
    return {"slot_seconds": seconds, **counts}


def test_the_overhead_is_that_of_the_same_plan():
    rows = [
        row("p", 1e-6),
        row("p + records", 1.02e-6),
        row("q", 4e-6),
        row("q + records", 5e-6),
        row("r + records", 5e-6),
        {"name": "s + records", "problem": "spilled"},
    ]
    overhead.add_overheads(rows)
    assert [r.get("overhead") for r in rows[:4]] == [
        None,
        pytest.approx(0.02),
        None,
        pytest.approx(0.25),
    ]
    assert not any("overhead" in r for r in rows[4:])


def test_the_table_has_times_and_shares():
    rows = [row("p", 1e-6), row("p + records", 1.5e-6, overhead=0.5, timeline=summary())]
    rows.append({"name": "q", "shape": "given", "problem": "spilled"})
    console = Console(width=200, record=True, file=StringIO())
    overhead.show(rows, console)
    text = console.export_text()
    assert "+50.0%" in text
    assert "1.0 " in text
    assert "10%" in text
    assert "spilled" in text


def test_plans_of_all_kinds_are_the_default():
    options = overhead.parser().parse_args([])
    assert len(options.plans) == len(overhead.PLANS)
    assert {plan.consumers for plan in options.plans} == {"cooperative", "pingpong"}
