"""Tests of `benchmarks.reports.gantt` and `tile_maps`: tables, charts and maps of launches."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.reports.gantt import COLUMNS, compact, shares, simulated
from benchmarks.reports.record import RESULTS, load
from benchmarks.reports.tile_maps import pieces

RECORD = RESULTS / "one-bad-shape-h200-2026-11-23.json.gz"
FIGURES = RESULTS.parents[1] / "docs" / "assets" / "figures"
EVENTS = {
    "begin": [0.0, 1e-6, 3e-6, 0.0],
    "end": [1e-6, 3e-6, 4e-6, 2e-6],
    "workgroup": [0, 0, 0, 1],
    "slot": [7, 7, 7, 3],
    "activity": ["start", "multiply", "send", "multiply"],
    "behind": [False] * 4,
    "m": [None, 0, 0, 1],
    "n": [None, 0, 0, 0],
    "first": [None, 0, None, 0],
    "count": [None, 2, None, 2],
}
"""Events of a launch of 4 µs: one SM starts (1 µs), multiplies (2 µs) and sends (1 µs), another SM
multiplies (2 µs) and is then idle.
"""


def test_shares_are_of_the_time_of_all_sms():
    assert shares(compact("x", EVENTS)) == {
        "µs": 4.0,
        "multiplying": 50.0,
        "epilogue": 0.0,
        "fix-up": 12.5,
        "start": 12.5,
        "idle": 25.0,
    }


def test_events_behind_others_are_left_out():
    row = compact("x", EVENTS | {"behind": [False, False, True, False]})
    assert row["activity"] == ["start", "multiply", "multiply"]
    assert row["end"] == [1000, 3000, 2000]


def test_simulated_and_measured_launches_divide_the_work_alike():
    """Measured and simulated workgroups multiply the same k tiles of the same output tiles."""
    record = load(RECORD)
    names = ("workgroup", "m", "n", "first", "count", "activity")
    for row in record["rows"]:
        made, _ = simulated(record, row["schedule"])
        ours, theirs = (
            sorted(e for e in zip(*(r[x] for x in names), strict=True) if e[-1] == "multiply")
            for r in (made, row)
        )
        assert ours == theirs
        assert sum(event[4] for event in ours) == 162 * 64


@pytest.mark.slow
def test_charts_are_drawn_from_files_of_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("matplotlib")
    from benchmarks.measures.gantt import main

    events, made = tmp_path / "events.json", tmp_path / "made.json.gz"
    events.write_text(json.dumps({"name": "data-parallel", "events": EVENTS}))
    words = f"--events {events} --size 256x128x128 --tile 128x128x64 --driver 1 --device H200"
    monkeypatch.setattr(
        sys, "argv", ["gantt", str(made), "--figures", str(tmp_path), *words.split()]
    )
    main()
    chart, tiles = tmp_path / "made-data-parallel.svg", tmp_path / "made-data-parallel-tiles.svg"
    printed = capsys.readouterr().out
    assert printed.splitlines()[-2:] == [str(chart), str(tiles)]
    assert printed.splitlines()[1].split() == [
        "data-parallel", "measured", "4.0", "50.0", "0.0", "12.5", "12.5", "25.0",
    ]  # fmt: skip
    before = chart.read_bytes(), tiles.read_bytes()
    assert b"measured, H200" in before[0]
    assert b"output tiles" in before[1]
    main()
    # drawing the same record again changes no file
    assert (chart.read_bytes(), tiles.read_bytes()) == before


def test_parts_of_tiles_are_those_of_workgroups_that_finish_or_send():
    """For each main loop, `pieces` says whether the loop computes a whole tile or a part of one.

    For a part, `pieces` says whether the workgroup then finishes the tile or sends a partial sum.
    Here workgroups 0 and 1 sum parts of tile 0; workgroup 1 sums tile 1, and workgroup 2 tile 2.
    """
    rows = [
        (0, 3, 0, 7, "multiply", 0, 0, 0, 3),
        (3, 4, 0, 7, "finish", 0, 0, None, None),
        (0, 1, 1, 8, "multiply", 0, 0, 3, 1),
        (1, 2, 1, 8, "send", 0, 0, None, None),
        (2, 6, 1, 8, "multiply", 0, 1, 0, 4),
        (6, 7, 1, 8, "finish", 0, 1, None, None),
        (7, 9, 2, 8, "multiply", 0, 2, 0, 4),
    ]
    row = {"schedule": "x", **dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))}
    assert list(pieces(row, 4)) == [
        (0, 0, 0, 3, 0, "k tiles of the workgroup that finishes the tile"),
        (0, 0, 3, 1, 1, "k tiles of a workgroup that sends a partial sum"),
        (0, 1, 0, 4, 1, "whole tile, of the first workgroup of its SM"),
        (0, 2, 0, 4, 2, "whole tile, of a later workgroup of its SM"),
    ]


def test_the_committed_charts_are_small_and_of_every_launch_of_the_record():
    stem = RECORD.name.partition(".")[0]
    names = {f"{stem}-{row['schedule'].partition('{')[0]}.svg" for row in load(RECORD)["rows"]}
    # Two-tile Stream-K divides these output tiles exactly as Stream-K does, so the charts contain
    # no map of its tiles.
    names |= {f"{stem}-data-parallel-tiles.svg", f"{stem}-stream-k-tiles.svg"}
    assert {path.name for path in FIGURES.glob(f"{stem}-*.svg")} == names
    assert all((FIGURES / name).stat().st_size < 200_000 for name in names)
