"""`show`, `eval`, `opt`, `passes` and `explain` print the expected text, and refuse wrong input."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from coordgraph import Gemm, from_json, parse
from passes import PASSES, DataParallel, Pipeline, StreamK, lowering
from passes.options import allowed_values
from tests.codegen.cli.commands import coordgraph, process
from tests.support.mermaid import parse as parse_mermaid
from tests.support.sampling import quick_cases

PIPELINE = "reorder{swap=true},stream-k"
TILE = ("--tile", "16x16x16")
# Passes of the library only: other tests register passes too, which are not checked here.
LOWERINGS = (lowering.LowerToHost, lowering.LowerToTensorCores, lowering.LowerToHopper)
OWN_PASSES = sorted(n for n, kind in PASSES.items() if kind.__module__.startswith("passes."))
OPENINGS = {"mermaid": "graph TD", "text": "coordgraph 1", "pseudocode": "//", "json": "{"}


@quick_cases(7)
@pytest.mark.parametrize("form", OPENINGS)
@pytest.mark.parametrize("stage", ["0", "1", "2", "problem", "reorder", "stream-k", "lowered"])
def test_every_stage_shows_in_every_form(stage: str, form: str):
    done = coordgraph("show", form, "-s", PIPELINE, "--stage", stage, *TILE)
    assert done.code == 0
    assert done.err == ""
    assert done.out.startswith(OPENINGS[form])


def test_stages_differ_and_the_last_is_shown():
    shown = {s: coordgraph("show", "text", "-s", PIPELINE, "--stage", s).out for s in "012"}
    assert len(set(shown.values())) == 3
    assert coordgraph("show", "text", "-s", PIPELINE).out == shown["2"]
    levels = [parse(text).level for text in shown.values()]
    assert levels == ["problem", "problem", "scheduled"]


def test_diagrams_parse():
    texts = [
        coordgraph("show", "mermaid", "-p", part, "-s", "stream-k", "--diff").out
        for part in ("coordinates", "control")
    ]
    assert all("classDef added" in text for text in texts)
    parse_mermaid(texts)


def test_a_diff_of_texts_is_a_diff():
    lines = coordgraph("show", "text", "-s", "data-parallel", "--diff").out.splitlines()
    assert lines[:2] == ["--- problem", "+++ data-parallel"]
    assert "+dim workgroup: Workgroup size=tiles_m*tiles_n" in lines
    assert "-level problem" in lines


def test_show_in_json():
    found = coordgraph("show", "json", "-s", PIPELINE, "--json").json
    assert found["stages"] == ["problem", "reorder{swap=true}", "stream-k"]
    assert (found["stage"], found["name"]) == (2, "stream-k")
    graph = from_json(found["graph"])
    assert graph.log == ("reorder{swap=true}", "stream-k")
    text = coordgraph("show", "mermaid", "-s", PIPELINE, "--json").json["text"]
    assert text == graph.mermaid()


def test_sizes_that_are_given_are_fixed():
    text = coordgraph("show", "text", "--stage", "0", "--m", "100", "--tile", "32x32x32").out
    gemm = parse(text).gemm
    assert (gemm.m, gemm.n) == (100, None)
    assert "dim A.tile.0: MacroTileNumber size=4" in text


@quick_cases(1)
@pytest.mark.parametrize(
    ("words", "gemm"),
    [
        (("--batched",), Gemm("f32", batched=True)),
        (("--groups", "m", "--transpose-b"), Gemm("f32", grouped=True, transpose_b=True)),
        (("--groups", "k"), Gemm("f32", grouped=True, group_axis="k")),
        (("--groups", "mnk"), Gemm("f32", grouped=True, group_axis="mnk")),
    ],
    ids=["batched", "m", "k", "mnk"],
)
def test_batches_and_groups(words: tuple[str, ...], gemm: Gemm):
    told = ("-s", "data-parallel{persistent=true}", "--tile", "16x16x16", "--dtype", "f32", *words)
    wanted = DataParallel(persistent=True)(gemm.graph((16, 16, 16)))
    assert coordgraph("show", "text", *told).out == wanted.text()
    compiled = coordgraph("compile", *told, "--target", "cpu", "-e", "graph")
    assert (compiled.code, "grouped=true" in compiled.out) == (0, gemm.grouped)


def test_groups_that_are_refused():
    wrong = coordgraph("show", "--groups", "n")
    assert wrong.code == 2
    assert "groups may divide m, k or mnk, not 'n'" in " ".join(wrong.err.replace("│", " ").split())
    fixed = coordgraph("show", "--groups", "mnk", "--m", "64")
    assert fixed.code != 0
    assert "given by offsets at launch" in " ".join(fixed.err.replace("│", " ").split())
    auto = coordgraph("compile", "--groups", "k", "--plan", "auto", "--target", "sm_90a")
    assert auto.code == 2
    assert "--plan auto chooses plans for single products only" in " ".join(
        auto.err.replace("│", " ").split()
    )


@pytest.mark.slow
def test_graphs_are_piped_from_command_to_command(tmp_path: Path):
    """A pipeline of real processes passes graphs on as text and as JSON."""
    path = tmp_path / "gemm.txt"
    assert coordgraph("show", "text", "--stage", "0", "-o", str(path)).code == 0
    through = process("opt", "-p", PIPELINE, stdin=path.read_text())
    assert (through.code, through.err) == (0, "")
    assert through.out == str(Pipeline.parse(PIPELINE)(parse(path.read_text())))
    data = coordgraph("show", "json", "--from", "-", stdin=through.out)
    assert from_json(json.loads(data.out)) == parse(through.out)
    again = coordgraph("show", "text", "--from", "-", stdin=data.out)
    assert again.out == through.out
    code = coordgraph("compile", "--from", "-", "-t", "cpu", "-e", "index", stdin=through.out)
    assert "SignalFlag: flags = workgroup" in code.out


def test_opt_in_json_with_times_and_dumps(tmp_path: Path):
    source = coordgraph("show", "text", "--stage", "0").out
    done = coordgraph(
        *("opt", "-", "-p", PIPELINE, "-w", "6", "--verify", "--time", "--json"),
        *("--dump-dir", str(tmp_path / "dumps")),
        stdin=source,
    )
    found = done.json
    assert found["pipeline"] == "reorder{swap=true},stream-k{workgroups=6}"
    assert found["level"] == "scheduled"
    assert [name for name, _ in found["seconds"]["passes"]] == found["log"]
    names = ["0-input.txt", "1-reorder.txt", "2-stream-k.txt"]
    assert sorted(path.name for path in (tmp_path / "dumps").iterdir()) == names
    assert Path(found["dumps"][-1]).read_text() == found["graph"]
    assert parse(found["graph"]).log == ("reorder{swap=true}", "stream-k{workgroups=6}")


def test_times_go_to_stderr_and_the_graph_to_a_file(tmp_path: Path):
    path = tmp_path / "out.txt"
    source = coordgraph("show", "text", "--stage", "0").out
    done = coordgraph("opt", "-p", "stream-k", "--time", "-o", str(path), stdin=source)
    assert (done.code, done.out) == (0, "")
    assert "stream-k" in done.err
    assert parse(path.read_text()).level == "scheduled"


def test_a_pipeline_that_fails_leaves_a_reproducer(tmp_path: Path):
    source = coordgraph("show", "text", "--stage", "0").out
    words = ("-p", "reorder{swap=true},reorder{swap=true},stream-k")
    done = coordgraph("opt", *words, "--dump-dir", str(tmp_path), stdin=source)
    assert done.code == 3
    assert "there is nothing to swap" in done.err
    assert f"reproducer: {tmp_path / 'reproducer.txt'}" in done.err
    reproducer = (tmp_path / "reproducer.txt").read_text()
    assert "# coordgraph opt --pipeline 'reorder{swap=true},stream-k'" in reproducer
    again = coordgraph("opt", "-p", "reorder{swap=true},stream-k", "--json", stdin=reproducer)
    assert again.code == 3
    error = again.json["error"]
    assert "there is nothing to swap" in error["message"]
    kept = Path(error["notes"][0].removeprefix("reproducer: "))
    assert kept.read_text() == error["reproducer"]
    kept.unlink()


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        ("coordgraph 1\nnonsense here\n", (2, 1), "unknown statement 'nonsense'"),
        ("", (1, 1), "the first line"),
        ('{"coordgraph": 1,\n "gemm" 3}', (2, 9), "not valid JSON"),
    ],
)
def test_malformed_graphs_are_refused_with_their_place(text, where, why):
    done = coordgraph("show", "--from", "-", "--json", stdin=text)
    error = done.json["error"]
    assert done.code == 3
    assert (error["line"], error["column"]) == where
    assert why in error["message"]
    assert error["notes"] == ["in stdin"]


def test_an_index_with_numbers():
    """`coordgraph eval` prints the indices that are computed by hand for an iteration of a
    workgroup.
    """
    done = coordgraph(
        *("eval", "A.tile.0", "B.tile.1", "A.1", "--tile", "128x128x32", "--json"),
        *("-s", "stream-k", "-w", "32"),
        *("--at", "workgroup=5,for_tile=0,for_k=3,A.index.1=7", "--with", "m=1280,n=1536,k=1024"),
    )
    found = done.json
    # The 10 x 12 tiles have 32 iterations each, so each of the 32 workgroups computes 120
    # iterations.
    at = 5 * 120 + 3
    expected = [at // (32 * 12), at // 32 % 12, at % 32 * 32 + 7]
    assert found["parameters"]["share"] == 120
    assert [r["value"] for r in found["results"]] == expected
    assert [r["guard"] for r in found["results"]] == ["true"] * 3
    path = found["results"][0]["path"]
    assert "Flatten(A.tile.0, B.tile.1, k_tile -> global)" in path
    assert found["results"][0]["expression"] == "(5*share + 3) // (tiles_k*tiles_n)"


def test_launch_arguments_are_given_with_the_point_or_apart():
    where = ("eval", "A.0", "-s", "data-parallel")
    one = coordgraph(*where, "--at", "A.tile.0=3,A.index.0=1,m=500", "--json").json
    two = coordgraph(*where, "--at", "A.tile.0=3,A.index.0=1", "--with", "m=500", "--json").json
    assert one == two
    assert one["parameters"]["m"] == 500


def test_an_index_in_symbols_and_its_guard():
    done = coordgraph("eval", "A.0", "--at", "A.tile.0=3,A.index.0", "--json")
    (found,) = done.json["results"]
    assert (found["expression"], found["value"]) == ("A.index.0 + 384", None)
    assert found["guard"] == "A.index.0 + 384 < m"


def test_padding_is_seen():
    words = ("eval", "A.0", "--at", "A.tile.0=3,A.index.0=20", "--json", "--with")
    inside, outside = (coordgraph(*words, f"m={m}").json["results"][0] for m in (405, 404))
    assert (inside["value"], inside["guard"]) == (404, "true")
    assert (outside["value"], outside["guard"]) == (404, "false")


def test_forward_leads_to_the_machine():
    done = coordgraph(
        *("eval", "workgroup", "A.index.0", "--forward", "-s", "data-parallel", "--json"),
        *("--at", "A.0=300,B.1=130", "--with", "m=1280,n=1536,k=64"),
    )
    assert [r["value"] for r in done.json["results"]] == [2 * 12 + 1, 300 % 128]


def test_eval_names_the_other_direction_if_that_has_a_path():
    point = ("eval", "A.tile.0", "--at", "A.0", "--stage", "0")
    done = coordgraph(*point)
    assert done.code == 3
    assert "no reverse path leads to 'A.tile.0'" in done.err
    assert "there is a forward path: give --forward" in done.err
    assert "A.tile.0 = A.0 // 128" in coordgraph(*point, "--forward").out
    back = coordgraph("eval", "A.0", "--at", "A.tile.0,A.index.0", "--forward")
    assert "there is a reverse path: leave --forward out" in back.err
    neither = coordgraph("eval", "A.0", "--at", "B.1")
    assert neither.code == 3
    assert "there is a" not in neither.err


def test_values_may_be_expressions_and_commas_in_them():
    done = coordgraph("eval", "A.tile.0", "--at", "A.tile.0=min(2, tiles_m - 1)", "--json")
    assert done.json["results"][0]["expression"] == "min(2, tiles_m - 1)"


def test_eval_for_people():
    done = coordgraph("eval", "partials", "-s", "stream-k")
    assert done.code == 0
    assert "partials = 128*D.index.0 + D.index.1 + 16384*workgroup" in done.out
    assert "path   PassThrough(sk.workgroup -> workgroup)" in done.out


def test_a_diagram_of_some_coordinates():
    graph = StreamK()(Gemm("bf16").graph((256, 256, 64)))
    kept = ["A.tile.0", "B.tile.1", "k_tile", "global"]
    words = ("show", "mermaid", "-s", "stream-k", "--tile", "256x256x64")
    expected = graph.coordinates.mermaid(only=kept)
    one = ("--only", ",".join(kept))
    two = ("--only", ",".join(kept[:2]), "--only", " k_tile,global")
    assert coordgraph(*words, *one).out == expected
    assert coordgraph(*words, *two).out == expected
    assert coordgraph(*words, *one, "--json").json["text"] == expected
    assert len(coordgraph(*words).out) > len(expected)
    wrong = coordgraph(*words, "--only", "A.tile.7")
    assert (wrong.code, "did you mean 'A.tile.1'" in wrong.err) == (3, True)
    for others in (("show", "--only", "A"), (*words, "-p", "control", "--only", "A")):
        refused = coordgraph(*others, "--json")
        assert (refused.code, "coordinates" in refused.json["error"]["message"]) == (2, True)


def test_passes_lists_all_of_them():
    found = coordgraph("passes", "--json").json["passes"]
    assert {entry["name"] for entry in found} >= set(PASSES)
    (entry,) = (entry for entry in found if entry["name"] == "two-tile-stream-k")
    defaults = {option["name"]: option["default"] for option in entry["options"]}
    given = {"workgroups": "none", "owner": "first", "first": "sk", "waves": "strided"}
    assert defaults.items() >= given.items()
    plain = coordgraph("passes").out
    assert all(entry["name"] in plain and entry["summary"] in plain for entry in found)


@quick_cases(6)
@pytest.mark.parametrize("name", OWN_PASSES)
def test_explain_prints_the_docstring(name: str):
    done = coordgraph("explain", name)
    assert done.code == 0
    assert "Before: " in done.out
    data = coordgraph("explain", name, "--json").json
    assert data["name"] == name
    assert data["documentation"].partition("\nArgs:")[0] in done.out


@quick_cases(5)
@pytest.mark.parametrize("name", OWN_PASSES)
def test_explain_says_what_every_option_means(name: str):
    """`explain PASS` lists all options, inherited ones too, with values, default and meaning."""
    kind = PASSES[name]
    done, told = coordgraph("explain", kind.name), coordgraph("explain", kind.name, "--json").json
    listed = {o["name"]: o for o in told["options"]}
    assert list(listed) == [f.name for f in fields(kind)]
    assert "Args:" not in done.out
    for f in fields(kind):
        o = listed[f.name]
        assert Pipeline.parse(f"{kind.name}{{{f.name}={o['default']}}}").passes == (kind(),)
        assert f"\n{f.name}: {o['type']} = {o['default']}\n    {o['meaning']}\n" in done.out
        assert len(o["meaning"]) > 8, f"{kind.__qualname__}: no entry of {f.name} under Args"
        assert "see `" not in o["meaning"]
        for value in filter(None, allowed_values(kind)[f.name]):
            assert f"`{value}`" in o["meaning"], f"{kind.name}, {f.name}: {value} is not explained"
