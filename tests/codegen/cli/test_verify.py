"""`coordgraph verify` prints verdicts of the checks of a schedule, or of a graph in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.cli.errors import ExitCode
from coordgraph.verification.memory_order.check import NOT_COVERED
from tests.codegen.cli.commands import coordgraph

TILE = ("--tile", "8x8x8")
CHECKS = ["sizes", "cover", "fix-up", "progress", "bounds"]


def unboxed(error: str) -> str:
    """The words of an error about arguments, without the box around them."""
    return " ".join(error.replace("│", " ").split())


def stream_k() -> str:
    return coordgraph("show", "text", "-s", "stream-k", *TILE).out


def test_a_right_schedule_passes():
    done = coordgraph("verify", "-s", "stream-k", *TILE)
    assert (done.code, done.err) == (ExitCode.OK, "")
    head, *rows = done.out.splitlines()
    assert head.split() == ["check", "verdict", "method", "detail", "time"]
    assert [row.split()[0] for row in rows] == CHECKS
    assert "proved for all sizes" in rows[3]


@pytest.mark.parametrize("where", ["file", "stdin", "option"])
def test_a_wrong_graph_is_refuted(where: str, tmp_path: Path):
    text = stream_k().replace("start=workgroup + 1", "start=workgroup")
    path = tmp_path / "graph.txt"
    path.write_text(text, encoding="utf-8")
    given = {"file": [str(path)], "stdin": ["-"], "option": ["--from", str(path)]}[where]
    done = coordgraph("verify", *given, stdin=text)
    assert done.code == ExitCode.CHECK_FAILED
    assert "fix-up    refuted" in done.out
    assert "fix-up: with m=" in done.out


def test_verdicts_as_json():
    text = stream_k().replace('tiles_m*tiles_n "global', 'tiles_m "global')
    done = coordgraph("verify", "-", "--json", stdin=text)
    assert done.code == ExitCode.CHECK_FAILED
    found = done.json
    assert found["refuted"]
    assert found["schedule"] == ["stream-k"]
    assert [verdict["check"] for verdict in found["verdicts"]] == CHECKS
    (sizes, *_) = found["verdicts"]
    assert sizes["verdict"] == "refuted"
    assert "Flatten(" in sizes["counterexamples"][0]["problem"]
    assert set(sizes["counterexamples"][0]["launch"]["parameters"]) == {"m", "n", "k", "workgroups"}


def test_given_sizes_are_fixed():
    done = coordgraph(
        *("verify", "--m", "20", "--n", "9", "--k", "30", "-w", "3", "--json", *TILE),
        *("--level", "all"),
    )
    assert done.code == ExitCode.OK
    (launch,) = done.json["launches"]
    assert {tuple(v["launches"]) for v in done.json["verdicts"] if "holds" in v["verdict"]} == {
        (launch,)
    }


def test_a_verdict_says_how_many_launches_were_examined():
    done = coordgraph("verify", "-s", "stream-k", *TILE)
    found = coordgraph("verify", "-s", "stream-k", *TILE, "--json").json
    cover = found["verdicts"][1]
    assert len(cover["launches"]) > 1
    assert f"cover     holds for {len(cover['launches'])} launches" in done.out


def test_a_file_and_a_schedule_are_refused():
    done = coordgraph("verify", "-", "-s", "stream-k", stdin=stream_k())
    assert done.code == ExitCode.USAGE
    assert "leave out --schedule" in unboxed(done.err)
    done = coordgraph("verify", "-", stdin=coordgraph("show", "text", "--stage", "0").out)
    assert done.code == ExitCode.REFUSED
    assert "the graph has no schedule" in done.err


def test_a_file_that_is_not_text_is_named(tmp_path: Path):
    path = tmp_path / "rnd.bin"
    path.write_bytes(b"coord\x8f")
    done = coordgraph("verify", str(path))
    assert done.code == ExitCode.USAGE
    assert "rnd.bin is not UTF-8 text: byte 0x8f at offset 5; give a graph" in done.err


def test_a_file_takes_sizes():
    sizes = ("--m", "20", "--n", "9", "--k", "30", "-w", "3")
    done = coordgraph("verify", "-", *sizes, "--json", stdin=stream_k())
    assert (done.code, done.json["launches"]) == (ExitCode.OK, ["m=20, n=9, k=30, workgroups=3"])
    done = coordgraph("verify", "-", *sizes[:2], "--json", stdin=stream_k())
    assert len(done.json["launches"]) > 1
    assert all(launch.startswith("m=20, ") for launch in done.json["launches"])


@pytest.mark.slow
def test_batches_and_extents_are_those_of_run():
    batch = coordgraph("verify", "-s", "stream-k", *TILE, "--batches", "5", "--json")
    assert batch.code == ExitCode.OK
    assert batch.json["launches"]
    assert all("batches=5" in launch for launch in batch.json["launches"])
    groups = ("--groups", "m", "--extents", "20,0,9", "--n", "12", "--k", "30")
    done = coordgraph("verify", "-s", "stream-k", *TILE, *groups, "-w", "3", "--json")
    assert done.code == ExitCode.OK
    (launch,) = done.json["launches"]
    assert "m=29" in launch
    assert "offsets=[0, 20, 20, 29]" in launch
    text = coordgraph("show", "text", "-s", "stream-k", *TILE, "--groups", "m").out
    sizes = (*groups[2:], "-w", "3")
    found = coordgraph("verify", "-", *sizes, "--json", stdin=text).json["launches"]
    assert found == ["m=29, n=12, k=30, groups=3, workgroups=3, offsets=[0, 20, 20, 29]"]
    done = coordgraph("verify", "-s", "stream-k", *TILE, *groups)
    assert done.code == ExitCode.USAGE
    assert "give --workgroups" in unboxed(done.err)
    done = coordgraph("verify", "-s", "stream-k", *TILE, *groups[:2], "--batches", "5")
    assert done.code == ExitCode.USAGE
    done = coordgraph("verify", "-", "--batches", "5", stdin=stream_k())
    assert "no launch argument batches" in unboxed(done.err)


def test_a_file_refuses_options_that_it_cannot_take():
    given = ("--tile", "16x16x16", "--dtype", "f32", "--transpose-a", "--groups", "m")
    done = coordgraph("verify", "-", *given, stdin=stream_k())
    assert done.code == ExitCode.USAGE
    assert "leave out --dtype, --transpose-a, --groups, --tile" in unboxed(done.err)
    tiles = coordgraph("show", "text", "-s", "data-parallel", "--m", "40", *TILE).out
    done = coordgraph("verify", "-", "-w", "3", stdin=tiles)
    assert done.code == ExitCode.USAGE
    assert "no launch argument workgroups; it takes n, k" in unboxed(done.err)
    done = coordgraph("verify", "-", "--m", "41", stdin=tiles)
    assert done.code == ExitCode.USAGE
    assert "has m = 40" in unboxed(done.err)


def test_a_property_that_is_not_examined_has_an_exit_code_of_its_own():
    large = ("--m", "80000", "--n", "80000", "--k", "8", "-w", "3")
    done = coordgraph("verify", "-s", "stream-k", *TILE, *large)
    assert done.code == ExitCode.NOT_EXAMINED == 5
    assert "cover     not examined" in done.out


def test_a_gpu_target_checks_the_lowered_graph():
    options = ("-s", "stream-k", "--tile", "64x64x32", "--target", "sm_80")
    done = coordgraph("verify", *options, "--json")
    assert done.code == ExitCode.OK
    assert [verdict["check"] for verdict in done.json["verdicts"]] == [
        *CHECKS,
        "memory order",
        "vectors",
    ]
    assert done.json["not_covered"] == NOT_COVERED
    assert coordgraph("verify", "-s", "stream-k", *TILE, "--json").json["not_covered"] == ""


def test_a_lowered_graph_from_a_file_is_checked(tmp_path: Path):
    options = ("--stage", "lowered", "-s", "stream-k", "--tile", "64x64x32", "-t", "sm_80")
    text = coordgraph("show", "text", *options).out
    path = tmp_path / "lowered.txt"
    path.write_text(text.replace("SignalFlag flag=flags", "SignalFlag flag=flags order=relaxed"))
    done = coordgraph("verify", str(path))
    assert done.code == ExitCode.CHECK_FAILED
    assert "memory order: with m=" in done.out
    assert "StoreFragment (writes partials)" in done.out
    assert "<-- second" in done.out
    assert done.out.splitlines()[-1] == NOT_COVERED


@pytest.mark.parametrize(
    ("schedule", "code", "verdict"),
    [
        ("data-parallel", ExitCode.OK, "proved for all sizes"),
        ("split-k", ExitCode.OK, "holds for these sizes"),
        ("stream-k", ExitCode.CHECK_FAILED, "refuted"),
    ],
)
def test_a_named_check_runs_alone(schedule: str, code: ExitCode, verdict: str):
    words = ("verify", "-s", schedule, *TILE, "--checks", "batch-invariance")
    done = coordgraph(*words, "--json")
    assert done.code == code
    (found,) = done.json["verdicts"]
    assert (found["check"], found["verdict"]) == ("batch-invariance", verdict)
    if code == ExitCode.CHECK_FAILED:
        assert "batch-invariance: with m=" in coordgraph(*words).out


def test_an_unknown_check_is_named():
    done = coordgraph("verify", "-s", "stream-k", *TILE, "--checks", "speed")
    assert "a scheduled graph has no check 'speed'; its checks are sizes, cover" in done.err


def test_a_plan_is_lowered_with_its_cluster():
    """The plan needs a cluster: a workgroup alone has too few registers for the tile."""
    plan = "512x192x64@c8x1 data-parallel"
    done = coordgraph("verify", "--plan", plan, "--target", "sm_90a", "--transpose-b")
    assert done.code == ExitCode.OK, done.err
    assert "memory order" in done.out


def test_a_plan_with_an_unknown_shape_of_cluster_is_refused():
    plan = "128x256x64@c8x8 data-parallel"
    done = coordgraph("verify", "--plan", plan, "--target", "sm_90a", "--transpose-b")
    assert done.code != ExitCode.OK
    assert "cluster" in done.err
