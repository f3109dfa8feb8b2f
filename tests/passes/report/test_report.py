"""Tests of HTML reports: the data of a report (times, advice), and the page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import codegen
from coordgraph import Gemm, KernelGraph, LaunchError, VerifyError, parse
from passes import DataParallel, HeterogeneousTiles, Pass, Pipeline, StreamK, TwoTileStreamK
from passes.report import HtmlReport, Subject, make_report
from passes.report.timelines import ACTIVITIES, BUCKETS, buckets_of
from passes.simulation import Activity, Kernel, simulate
from tests.support.sampling import quick_cases

WAVES = {"m": 2304, "n": 2304, "k": 1024}


def scheduled(step: Pass, tile: tuple[int, int, int] = (128, 128, 64)) -> KernelGraph:
    return step(Gemm("bf16").graph(tile))


@pytest.fixture(scope="module")
def data_parallel() -> HtmlReport:
    return make_report(Subject(scheduled(DataParallel()), WAVES))


@quick_cases(1)
@pytest.mark.parametrize("step", [DataParallel(), StreamK(), TwoTileStreamK()])
def test_buckets_agree_with_the_simulation(step: Pass):
    graph = scheduled(step)
    run = simulate(graph, WAVES)
    found = make_report(Subject(graph, WAVES)).data["runs"][0]
    total = found["slots"] * found["makespan"] / 1e9
    buckets = found["buckets"]
    assert set(buckets) == set(BUCKETS)
    assert sum(buckets.values()) == pytest.approx(total)
    assert buckets["multiply"] == pytest.approx(run.seconds(Activity.MULTIPLY), rel=1e-3)
    assert buckets["wait"] == pytest.approx(run.waiting, rel=1e-3, abs=1e-9)
    epilogue = run.seconds(Activity.FINISH) + run.seconds(Activity.DRAIN)
    assert buckets["epilogue"] == pytest.approx(epilogue, rel=1e-3)
    idle = buckets["launch"] + buckets["gap"] + buckets["tail"]
    assert idle == pytest.approx(run.idle, rel=1e-3, abs=1e-6)


def test_overlapping_events_are_counted_once():
    """Time in which events of a CTA slot overlap is counted once, for multiplying if possible."""
    multiply, finish = (ACTIVITIES.index(name) for name in ("multiply", "finish"))
    events = {
        "begin": [10, 20, 60],
        "end": [50, 40, 80],
        "slot": [0, 0, 0],
        "activity": [multiply, finish, finish],
    }
    buckets = buckets_of(events, slots=2, makespan=100)
    nanoseconds = {name: round(seconds * 1e9) for name, seconds in buckets.items() if seconds}
    assert nanoseconds == {"multiply": 40, "epilogue": 20, "launch": 10, "gap": 10, "tail": 120}


@pytest.mark.slow
def test_tiles_outside_d_do_not_count_as_multiplying():
    """A report shows the time of output tiles outside D as such, not as time for multiplying.

    The graph is wrong: it counts tiles of 4 rows, so it has 32 times too many tiles of 128 rows.
    """
    text = str(scheduled(StreamK()))
    wrong = text.replace("(m + 127) // 128", "(m + 3) // 4")
    assert wrong != text
    sizes = {"m": 512, "n": 512, "k": 512, "workgroups": 132}
    found = make_report(Subject(parse(wrong), sizes)).data
    head, buckets = found["headline"], found["runs"][0]["buckets"]
    assert head["answer"] == "No"
    assert head["utilisation"] < 0.1
    assert head["cause"] == "tiles outside D"
    assert "outside D" in head["why"]
    assert buckets["outside D"] > 8 * buckets["multiply"]
    assert sum(buckets.values()) == pytest.approx(
        found["runs"][0]["slots"] * found["runs"][0]["makespan"] / 1e9
    )


def test_the_first_view_names_the_limit_of_multiplying():
    sizes = {"m": 2304, "n": 2304, "k": 4096}
    found = make_report(Subject(scheduled(StreamK()), sizes)).data
    head = found["headline"]
    assert head["utilisation"] > 0.9
    assert head["answer"] == "Mostly"  # "Yes" needs a larger fraction of the peak
    bounds = {row["name"]: row["model"] for row in found["terms"]["limits"]}
    limit = head["limit"]
    assert (limit["name"], limit["seconds"]) == ("l2", bounds["l2"])
    assert limit["tensor"] == pytest.approx(head["of_peak"] / head["utilisation"])
    assert "limited by L2 requests" in limit["text"]
    assert "132 SMs × 4096 operations per cycle × 1.75 GHz" in head["peak_source"]


def test_no_rate_limits_a_launch_of_one_tile():
    found = make_report(Subject(scheduled(DataParallel()), {"m": 128, "n": 128, "k": 64})).data
    assert found["headline"]["limit"]["name"] == ""
    assert "no rate limits" in found["headline"]["limit"]["text"]


@quick_cases(1)
@pytest.mark.parametrize("step", [DataParallel(), StreamK()])
def test_terms_of_the_model_add_up_to_its_total(step: Pass):
    found = make_report(Subject(scheduled(step), WAVES)).data["terms"]
    modelled = [row["model"] for row in found["rows"] if row["model"] is not None]
    assert sum(modelled) == pytest.approx(found["total"]["model"])
    largest = max(row["model"] for row in found["limits"])
    assert {row["name"]: row["model"] for row in found["rows"]}["main"] >= largest


def test_the_first_view_names_the_last_wave(data_parallel: HtmlReport):
    head = data_parallel.data["headline"]
    assert head["answer"] == "No"
    assert head["cause"] == "the last wave"
    assert "324 tiles on 132 SMs are 2.45 waves; the last wave is 45 % full." in head["why"]
    assert head["advice"].startswith("Try the ")


def test_the_first_view_counts_workgroups_without_work():
    found = scheduled(StreamK()).report(m=300, n=300, k=300)
    why = found.data["headline"]["why"]
    assert "of 132 workgroups have no work, because there are too few k tiles" in why
    assert len(repr(found)) < 100


def test_addresses_of_tiles_of_two_shapes_and_of_a_free_grid():
    """A report derives addresses of A, B and D, for each tile shape and number of workgroups.

    If the call gives no number of workgroups, the derivation uses that of the simulation.
    """
    shapes = HeterogeneousTiles(small_m=64)
    for graph in (scheduled(shapes), scheduled(StreamK())):
        every = graph.report(m=2304, n=2304, k=300).data["addresses"]
        found = [entry for entry in every if entry["name"] in ("A", "B", "D")]
        assert len(found) == 3 * len(graph.tilings)
        assert all(entry["derivation"]["value"] is not None for entry in found)


def test_proofs_include_those_of_the_compiled_graph():
    kernel = codegen.compile(scheduled(DataParallel()), "sm_90a")
    proofs = kernel.report(m=300, n=300, k=300).data["proofs"]
    assert "memory order (lowered)" in [verdict["check"] for verdict in proofs["verdicts"]]


def test_the_instructions_are_named_with_the_reason():
    graph = DataParallel()(Gemm("bf16").graph((48, 48, 32)))
    machine = graph.report(m=300, n=300, k=300).data["machine"]
    assert machine["instructions"] == "mma.sync"
    assert "since wgmma + TMA refuses: tile 48x48x32" in machine["fallback"]
    assert machine["fallback"].endswith("Simulated times are those of wgmma, which is faster.")
    fast = scheduled(DataParallel()).report(m=300, n=300, k=300).data["machine"]
    assert (fast["instructions"], fast["fallback"]) == ("wgmma", "")


def test_a_timeline_of_another_type_is_refused():
    with pytest.raises(VerifyError, match="'measured' has the type int; give a Timeline"):
        scheduled(StreamK()).report(m=300, n=300, k=300, measured=3)


def test_alternatives_are_simulations(data_parallel: HtmlReport):
    found = {a["name"]: a for a in data_parallel.data["headline"]["alternatives"]}
    run = simulate(scheduled(StreamK()), WAVES)
    assert found["stream-k"]["seconds"] == run.makespan
    base = simulate(scheduled(DataParallel()), WAVES).makespan
    assert found["stream-k"]["change"] == pytest.approx(run.makespan / base - 1)
    assert "data-parallel" not in found
    assert any(a["option"] == "--plan" for a in found.values())


@pytest.mark.slow
def test_nothing_is_advised_that_is_slower():
    graph = scheduled(DataParallel(), (128, 256, 64))
    found = make_report(Subject(graph, {"m": 8192, "n": 8448, "k": 8192})).data["headline"]
    faster = [a for a in found["alternatives"] if a["change"] < -0.02]
    assert found["advice"].startswith("Try" if faster else "No other")


def test_tiles_of_two_shapes():
    graph = scheduled(HeterogeneousTiles(), (128, 256, 64))
    found = make_report(Subject(graph, {"m": 2304, "n": 2304, "k": 1024})).data
    assert len(found["tiles"]["shapes"]) > 1
    run = found["runs"][0]["events"]
    area = np.zeros((2304 // 16, 2304 // 16), int)
    seen = {key for key in zip(run["tiling"], run["m"], run["n"], strict=True) if key[1] >= 0}
    for tiling, m, n in seen:
        rows, columns = (e // 16 for e in found["tiles"]["shapes"][tiling][:2])
        area[m * rows : (m + 1) * rows, n * columns : (n + 1) * columns] += 1
    assert (area == 1).all()


def measured_columns(**changes: Any) -> dict[str, Any]:
    columns = simulate(scheduled(DataParallel()), WAVES).event_columns()
    scaled = {name: (2 * np.array(columns[name])).tolist() for name in ("begin", "end")}
    return {**columns, **scaled, **changes}


@quick_cases(1)
@pytest.mark.parametrize("wrap", [dict, lambda columns: {"events": columns}])
def test_a_measured_run_is_shown_beside_the_simulated_one(wrap: Callable[[Any], Any]):
    subject = Subject(scheduled(DataParallel()), WAVES, measured=wrap(measured_columns()))
    found = make_report(subject).data
    simulated, measured = found["runs"]
    assert [r["name"] for r in (simulated, measured)] == ["simulated", "measured"]
    assert measured["makespan"] == pytest.approx(2 * simulated["makespan"], rel=1e-2)
    assert measured["events"]["tiling"] == simulated["events"]["tiling"]
    assert found["headline"]["source"] == "measured"
    assert found["headline"]["seconds"] == measured["makespan"] / 1e9


@pytest.mark.slow
def test_only_a_timeline_with_dropped_records_may_lack_tiles():
    """A measured timeline without some tiles is refused, unless the kernel dropped records."""
    columns = measured_columns()
    kept = [i for i, m in enumerate(columns["m"]) if m != 17]
    assert len(kept) < len(columns["m"])
    part = {name: [column[i] for i in kept] for name, column in columns.items()}
    graph = scheduled(DataParallel())
    with pytest.raises(VerifyError, match="17 tiles along m, the launch 18"):
        make_report(Subject(graph, WAVES, measured={"events": part}))
    dropped = {"events": part, "dropped_records": 18}
    assert len(make_report(Subject(graph, WAVES, measured=dropped)).data["runs"]) == 2


def test_measured_rows_are_those_of_the_simulation():
    """The page shows the workgroups of a measured and of a simulated timeline in the same order.

    The page also names the SM of each measured row.
    """
    columns = measured_columns()
    turned = [(5 * slot + 3) % 132 for slot in columns["slot"]]
    subject = Subject(scheduled(DataParallel()), WAVES, measured={**columns, "slot": turned})
    simulated, measured = make_report(subject).data["runs"]
    assert measured["slots"] == simulated["slots"] == 132
    assert measured["events"]["slot"] == simulated["events"]["slot"]
    assert measured["processors"] == [[(5 * slot + 3) % 132] for slot in range(132)]


@pytest.mark.slow
def test_a_measured_cluster_is_one_row():
    """Both CTAs of a cluster record events; the page shows those of the CTA with rank 0."""
    graph = scheduled(StreamK(workgroups=66), (256, 128, 64))
    kernel = Kernel(cluster=(2, 1, 1))
    one = simulate(graph, WAVES, kernel=kernel).event_columns()
    count = len(one["begin"])
    both = {name: [x for x in column for _ in "ab"] for name, column in one.items()}
    both["rank"] = [0, 1] * count
    both["slot"] = [
        2 * (65 - slot) + (rank + slot) % 2
        for slot, rank in zip(both["slot"], both["rank"], strict=True)
    ]
    found = make_report(Subject(graph, WAVES, kernel=kernel, measured=both)).data
    simulated, measured = found["runs"]
    assert measured["slots"] == simulated["slots"] == 66
    assert measured["events"]["slot"] == simulated["events"]["slot"]
    assert measured["events"]["workgroup"] == simulated["events"]["workgroup"]
    assert measured["processors"][0] == [130, 131]
    # Idle time is not compared: in the simulation it includes the time before the first workgroup
    # starts.
    for bucket in ("multiply", "fix-up", "epilogue"):
        assert measured["buckets"][bucket] == pytest.approx(simulated["buckets"][bucket])


@pytest.mark.slow
def test_a_producer_does_not_count_as_multiplying():
    """A Hopper producer's LOAD events do not count as multiplying."""
    columns = measured_columns()
    count = len(columns["begin"])
    loads = {
        **columns,
        "begin": [0.0] * count,
        "end": [max(columns["end"])] * count,
        "activity": ["multiply"] * count,
    }
    both = {name: [*columns[name], *loads[name]] for name in columns}
    both["role"] = ["consumer"] * count + ["producer"] * count
    graph = scheduled(DataParallel())
    plain = make_report(Subject(graph, WAVES, measured=columns)).data["runs"][1]
    found = make_report(Subject(graph, WAVES, measured=both)).data["runs"][1]
    assert found["buckets"] == plain["buckets"]
    assert len(found["events"]["role"]) == 2 * count


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activity": ["rest"] * 3}, "differ in length"),
        ({"begin": []}, "differ in length"),
    ],
)
def test_malformed_measurements_are_refused(changes: dict[str, Any], message: str):
    subject = Subject(scheduled(DataParallel()), WAVES, measured=measured_columns(**changes))
    with pytest.raises(VerifyError, match=message):
        make_report(subject)


def test_measurements_without_a_column_are_refused():
    columns = measured_columns()
    del columns["slot"]
    with pytest.raises(VerifyError, match="no column 'slot'"):
        make_report(Subject(scheduled(DataParallel()), WAVES, measured=columns))


def test_a_missing_size_is_named():
    with pytest.raises(LaunchError, match="give k, as in report"):
        scheduled(DataParallel()).report(m=256, n=256)


def test_an_unknown_option_is_refused():
    with pytest.raises(LaunchError, match="has no argument sizes"):
        scheduled(DataParallel()).report(m=256, n=256, k=64, sizes=3)


def test_graph_report_writes_one_file(tmp_path: Path):
    path = tmp_path / "report.html"
    found = scheduled(DataParallel()).report(path, m=512, n=512, k=256, title="</script><b>")
    text = path.read_text("utf-8")
    assert text == found.html()
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    addresses = set(re.findall(r"\w+://[^\s\"'\\<]+", text))
    # the XML namespace looks like an address, but no browser loads it
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert "<b>" not in text
    embedded = text.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(embedded) == json.loads(json.dumps(found.data))
    assert "<!--" not in text
    assert "/*STYLE*/" not in text


def test_a_notebook_shows_the_page_in_a_frame(data_parallel: HtmlReport):
    shown = data_parallel._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "&lt;!doctype html&gt;" in shown
    assert "<script" not in shown


def test_terms_stand_beside_the_runs(data_parallel: HtmlReport):
    found = data_parallel.data["terms"]
    run = data_parallel.data["runs"][0]
    assert found["note"] == ""
    assert sum(row["runs"][0] for row in found["rows"]) == pytest.approx(run["makespan"] / 1e9)
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["fixup"]["model"] == 0
    assert rows["main"]["model"] == pytest.approx(rows["main"]["runs"][0], rel=0.5)
    assert {row["name"] for row in found["limits"]} == {"loop", "dram", "l2", "power"}


def test_machines_without_a_model_say_so():
    found = scheduled(DataParallel()).report(m=512, n=512, k=256, machine="NVIDIA A100-SXM4-80GB")
    assert "The cost model covers wgmma" in found.data["terms"]["note"]
    assert found.data["terms"]["total"]["model"] is None


def test_addresses_have_an_example(data_parallel: HtmlReport):
    found = {entry["name"]: entry["derivation"] for entry in data_parallel.data["addresses"]}
    assert {"A", "B", "C", "D"} <= set(found)
    for derivation in found.values():
        assert derivation["value"] is not None
        assert derivation["steps"]
        assert derivation["padding"] is False
    d, tile = found["D"], {name: int(value) for name, value in found["D"]["given"].items()}
    workgroup = tile["workgroup"]
    row = 128 * (workgroup // 18) + tile["D.index.0"]
    column = 128 * (workgroup % 18) + tile["D.index.1"]
    assert d["value"] == row * 2304 + column


def test_rewrites_have_a_tree_and_a_picture():
    found = scheduled(TwoTileStreamK()).report(m=512, n=512, k=256).data["passes"]
    assert [rewrite["pass"] for rewrite in found] == ["two-tile-stream-k"]
    (rewrite,) = found
    assert rewrite["counts"]["dimension"] == {"added": 15}
    assert rewrite["coordinates"]["svg"].startswith("<svg")
    lines = {(row["line"], row.get("change")) for row in rewrite["control"]}
    assert ("SendPartial slot=partial.slot", "added") in lines
    assert {("InitAccumulator", "moved"), ("InitAccumulator", "added")} <= lines
    assert ("MultiplyAccumulate", None) in lines


def test_a_pass_that_changes_only_coordinates_shows_the_control_graph():
    graph = Pipeline.parse("reorder{swap=true},data-parallel")(Gemm("bf16").graph())
    first, second = graph.report(m=512, n=512, k=256).data["passes"]
    assert first["pass"].startswith("reorder")
    assert not any("change" in row for row in first["control"])
    assert len(first["control"]) > 3
    assert any("change" in row for row in second["control"])


def test_a_refuted_check_is_shown_with_its_counterexample():
    """The report of a graph that stores no tile shows the refuted check and its counterexample."""
    graph = scheduled(DataParallel())
    text = "\n".join(line for line in graph.text().splitlines() if "StoreTile" not in line)
    found = parse(text).report(m=512, n=512, k=256).data["proofs"]
    assert found["refuted"]
    wrong = [v for v in found["verdicts"] if v["verdict"] == "refuted"]
    assert wrong[0]["counterexamples"][0]["problem"]


@pytest.mark.slow
def test_pictures_are_svg_documents(data_parallel: HtmlReport, tmp_path: Path):
    found = data_parallel.pictures()
    assert {"time", "tiles", "timeline-simulated", "pass-1-coordinates"} == set(found)
    for svg in found.values():
        ElementTree.fromstring(svg)
    tiles = ElementTree.fromstring(found["tiles"])
    rectangles = [e for e in tiles if e.tag.endswith("rect")]
    assert len(rectangles) == 324
    files = data_parallel.save_pictures(tmp_path / "pictures")
    assert sorted(files) == sorted((tmp_path / "pictures").iterdir())
    assert {path.suffix for path in files} == {".svg", ".png"}
