"""Tests of `coordgraph report`: the page, its pictures, a measured timeline, JSON, errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from codegen.cli.completion import gpu_targets
from codegen.cli.names import HOSTS, TARGET_NAMES
from tests.codegen.cli.commands import coordgraph
from tests.support.sampling import quick_cases

SIZES = ("--m", "512", "--n", "640", "--k", "256")


def test_a_page_is_written(tmp_path: Path):
    path = tmp_path / "page.html"
    done = coordgraph("report", *SIZES, "-s", "data-parallel", "-t", "sm_80", "-o", str(path))
    assert done.code == 0
    assert "20 tiles leave 112 of 132 SMs without work." in done.out
    text = path.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "mma.sync" in text


@pytest.mark.slow
def test_a_folder_gets_every_picture(tmp_path: Path):
    folder = tmp_path / "folder"
    assert coordgraph("report", *SIZES, "-o", str(folder)).code == 0
    names = {path.name for path in folder.iterdir()}
    assert {"report.html", "tiles.svg", "tiles.png", "time.svg", "timeline-simulated.png"} <= names
    assert (folder / "tiles.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "tiles.svg").read_text("utf-8").count("<rect") > 20


@pytest.mark.slow
def test_a_measured_timeline_is_read(tmp_path: Path):
    events = tmp_path / "events.json"
    options = (*SIZES, "-s", "stream-k")
    assert coordgraph("simulate", *options, "--events", str(events)).code == 0
    found = coordgraph("report", *options, "--measured", str(events), "--json", "-o", "-").json
    assert [run["name"] for run in found["runs"]] == ["simulated", "measured"]
    assert found["headline"]["source"] == "measured"
    assert found["output"] is None


@pytest.mark.slow
def test_a_chrome_trace_is_recognised(tmp_path: Path):
    events = tmp_path / "timeline.json"
    events.write_text(json.dumps({"traceEvents": [], "displayTimeUnit": "ns"}))
    done = coordgraph("report", *SIZES, "--measured", str(events), "-o", "-")
    assert done.code == 3
    assert "is a Chrome trace" in done.err
    assert "'coordgraph trace --events FILE'" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (("--k", "512"), "4 k tiles, the launch 8"),
        (("--n", "896"), "5 tiles along n, the launch 7"),
        (("-w", "7"), "80 workgroups, the launch 7"),
        (("-s", "reorder{swap=true},stream-k"), "workgroup 4 multiplies the output tile (0, 1)"),
    ],
)
def test_a_timeline_of_another_launch_is_refused(
    tmp_path: Path, options: tuple[str, ...], difference: str
):
    events = tmp_path / "events.json"
    launch = (*SIZES, "--tile", "128x128x64", "-s", "stream-k")
    assert coordgraph("simulate", *launch, "--events", str(events)).code == 0
    page = tmp_path / "page.html"
    done = coordgraph("report", *launch, *options, "--measured", str(events), "-o", str(page))
    assert done.code == 3
    assert difference in done.err
    assert not page.exists()


@pytest.mark.slow
def test_advice_names_the_simulated_time(tmp_path: Path):
    events = tmp_path / "events.json"
    launch = ("--m", "2304", "--n", "2304", "--k", "4096", "-s", "data-parallel")
    assert coordgraph("simulate", *launch, "--events", str(events)).code == 0
    found = json.loads(events.read_text())
    for side in ("begin", "end"):
        found["events"][side] = [2 * time for time in found["events"][side]]
    events.write_text(json.dumps(found))
    head = coordgraph("report", *launch, "--measured", str(events), "--json", "-o", "-").json
    base = found["makespan_seconds"] * 1e6
    assert head["headline"]["seconds"] * 1e6 == pytest.approx(2 * base, rel=1e-3)
    assert f"% of the simulated {base:.3g} µs)" in head["headline"]["advice"]


@quick_cases(1)
@pytest.mark.parametrize("text", ["[1]", "{", '{"begin": []}'])
def test_a_malformed_timeline_is_refused(tmp_path: Path, text: str):
    events = tmp_path / "events.json"
    events.write_text(text)
    page = tmp_path / "page.html"
    done = coordgraph("report", *SIZES, "--measured", str(events), "-o", str(page))
    assert done.code in (2, 3)
    assert "measured" in done.err
    assert not page.exists()


@pytest.mark.slow
def test_the_page_is_printed_on_stdout():
    done = coordgraph("report", *SIZES, "-s", "data-parallel", "-o", "-")
    assert done.out.startswith("<!doctype html>")
    data = done.out.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(data)["tiles"]["count"] == 20


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("-t", "cpu"), 2, "the report simulates GPUs, and cpu is no GPU; leave out --target cpu"),
        (("-t", "interpreter"), 2, "choose a GPU with --machine"),
        (("--dtype", "f32"), 3, "e4m3 and e5m2, not f32; choose one of these"),
        (("--dtype", "f32", "--plan", "auto"), 3, "choose one of these types for A and B"),
    ],
)
def test_what_no_machine_runs_is_refused(options: tuple[str, ...], code: int, words: str):
    done = coordgraph("report", *SIZES, *options, "--json", "-o", "-")
    assert done.code == code
    assert words in done.json["error"]["message"]
    assert "target='cpu'" not in done.out


def test_the_help_lists_only_targets_that_are_accepted():
    said = " ".join(coordgraph("report", "--help").out.replace("│", " ").split())
    listed = said.partition("The GPU architecture to compile for: ")[2].partition(" --import")[0]
    assert "sm_80, sm_86," in listed
    assert not {"cpu", "interpreter"} & set(re.findall(r"\w+", listed))
    assert gpu_targets("") == [name for name in TARGET_NAMES if name not in HOSTS]


@pytest.mark.slow
def test_batches_and_groups_have_pages():
    batch = coordgraph("report", *SIZES, "--batches", "3", "--json", "-o", "-")
    assert batch.code == 0, batch.err
    assert len(batch.json["tiles"]["products"]) == 3
    options = ("--groups", "m", "--extents", "200,0,56", "--n", "640", "--k", "256")
    groups = coordgraph("report", *options, "--dtype", "f16", "--json", "-o", "-")
    assert groups.code == 0, groups.err
    assert groups.json["terms"]["note"]
