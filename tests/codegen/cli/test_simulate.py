"""`coordgraph simulate` prints a summary and a timeline, and writes JSON and events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.codegen.cli.commands import coordgraph

SIZES = ("--m", "2304", "--n", "2304", "--k", "4096")


def test_the_summary_and_the_timeline():
    whole = coordgraph("simulate", *SIZES, "-s", "data-parallel")
    assert whole.code == 0
    assert "2304 x 2304 x 4096 on NVIDIA H200" in whole.out
    assert "132 workgroups at a time; fitted to measured times" in whole.out
    assert "0; workspace 0 B" in whole.out
    assert "waiting" not in whole.out
    rows = [line for line in whole.out.splitlines() if "█" in line]
    first, last = rows[0], rows[-2]  # the last row of the chart is its legend
    # the last SM computes one wave of tiles less than the first
    assert first.count("█") > last.count("█") + 10
    shared = coordgraph("simulate", *SIZES, "-s", "stream-k")
    assert "waiting      no workgroup" in shared.out
    late = coordgraph("simulate", "--m", "512", "--n", "512", "--k", "8192", "-s", "stream-k")
    assert "workgroups, " in late.out.partition("waiting ")[2]
    assert "126; workspace" in shared.out or "127; workspace" in shared.out


def test_tiles_that_wgmma_cannot_multiply_are_named():
    whole = coordgraph("simulate", *SIZES, "-s", "data-parallel")
    assert "code         wgmma" in whole.out
    small = coordgraph("simulate", *SIZES, "-s", "data-parallel", "--tile", "48x48x32")
    assert "code         mma.sync, since wgmma + TMA refuses: tile 48x48x32" in small.out


def test_json_has_the_problem_and_the_results():
    found = coordgraph("simulate", *SIZES, "-s", "stream-k", "--machine", "a100", "--json").json
    assert found["machine"] == "NVIDIA A100-SXM4-80GB"
    assert found["products"] == [[2304, 2304, 4096]]
    assert found["pipeline"] == "stream-k"
    assert found["workgroups"] == 108
    total = sum(found["slot_seconds"].values())
    assert total == pytest.approx(found["slots"] * found["makespan_seconds"])


def test_events_are_written_as_columns(tmp_path: Path):
    path = tmp_path / "events.json"
    done = coordgraph("simulate", *SIZES, "-s", "stream-k", "--events", str(path))
    assert str(path) in done.out
    record = json.loads(path.read_text())
    events = record["events"]
    assert len(events["begin"]) == len(events["m"]) > 500
    assert max(events["end"]) == record["makespan_seconds"]
    assert {"start", "multiply", "send", "receive", "finish"} <= {*events["activity"]}


def test_plans_graphs_batches_and_groups():
    plan = "256x128x64@c2x1@pingpong data-parallel{persistent=true} on 66"
    found = coordgraph("simulate", *SIZES, "--plan", plan, "--json").json
    assert (found["plan"], found["slots"], found["workgroups"]) == (plan, 66, 66)
    text = coordgraph("show", "text", "-s", "stream-k").out
    from_text = coordgraph("simulate", *SIZES, "--from", "-", "--json", stdin=text)
    direct = coordgraph("simulate", *SIZES, "-s", "stream-k", "--json")
    assert from_text.json["makespan_seconds"] == direct.json["makespan_seconds"]
    batch = coordgraph("simulate", *SIZES, "--batches", "2", "-s", "stream-k", "--json").json
    assert batch["makespan_seconds"] > 1.8 * direct.json["makespan_seconds"]
    groups = ("--groups", "m", "--extents", "2000,0,560", "--n", "2304", "--k", "4096")
    assert coordgraph("simulate", *groups, "-s", "stream-k", "--json").json["fix_ups"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            (*SIZES, "--machine", "H9"),
            "'H9' is not known; use a Machine, or one of: NVIDIA H200",
        ),
        (SIZES[:4], "sizes are missing; give --k too"),
        (("--m", "8", "--n", "8", "--k", "0"), "nothing is multiplied"),
        ((*SIZES, "--plan", "256x128x64@c2x1 stream-k on 66", "--machine", "A100"), "need wgmma"),
        ((*SIZES, "--dtype", "f32"), "e4m3 and e5m2, not f32; choose one of these types"),
        ((*SIZES, "--tile", "512x512x64"), "needs 1024 accumulator registers in each thread"),
        ((*SIZES, "--tile", "100x100x10"), "must be a multiple of 16x16x16"),
    ],
)
def test_errors(words: tuple[str, ...], message: str):
    done = coordgraph("simulate", *words)
    assert done.code in (2, 3)
    assert message in " ".join(done.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (("--tile", "16x16x16"), "at least 117 million steps with the tile 16x16x16"),
        (("--tile", "128x128x32", "--batches", "9"), "at least 16.5 million steps"),
    ],
)
def test_a_launch_that_takes_minutes_is_refused(options: tuple[str, ...], count: str):
    """A launch with too many steps is refused before they are recorded in gigabytes of memory."""
    done = coordgraph("simulate", "--m", "100000", "--n", "100000", "--k", "64", *options)
    assert done.code == 3
    assert count in done.err
    assert "choose a larger tile or a smaller problem" in done.err


def test_a_graph_whose_workgroups_wait_for_ever():
    text = coordgraph("show", "text", "-s", "stream-k").out
    wrong = text.replace("SendPartial slot=partial.slot", "InitAccumulator")
    assert wrong != text
    done = coordgraph("simulate", *SIZES, "--from", "-", stdin=wrong)
    assert done.code == 3
    assert "workgroup 0 waits for a partial sum of output tile (0, 2) in slot 1" in done.err
