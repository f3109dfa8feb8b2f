"""`explain-index`, `diff` and `show --provenance` print derivations, differences and origins."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordgraph import parse
from tests.codegen.cli.commands import coordgraph

SMALL = ("--tile", "16x16x16")
STREAM = ("-s", "stream-k", "-w", "4", *SMALL)
SIZES = ("--m", "64", "--n", "48", "--k", "80")
POINT = "workgroup=2,for_tile=0,for_k=3,A.index.0=7,A.index.1=1"


def test_an_address_is_explained():
    done = coordgraph("explain-index", "A", *STREAM, *SIZES, "--at", POINT)
    assert done.code == 0
    assert done.err == ""
    graph = parse(coordgraph("show", "text", *STREAM, *SIZES).out)
    point = {n: int(v) for n, v in (part.split("=") for part in POINT.split(","))}
    found = graph.explain("A", point)
    assert f"A = {found.value} elements = {2 * (found.value or 0)} bytes\n" in done.out
    assert "Tile(global -> sk.workgroup, sk.local)   made by stream-k\n" in done.out
    data = coordgraph("explain-index", "A", *STREAM, *SIZES, "--at", POINT, "--json").json
    assert data["value"] == found.value
    steps = found.as_data()["steps"]
    assert [step["edge"] for step in data["steps"]] == [step["edge"] for step in steps]


def test_launch_arguments_are_part_of_the_point():
    done = coordgraph("explain-index", "A.0", *STREAM, "--at", f"{POINT},m=64,n=48,k=80")
    assert done.code == 0
    assert "tiles_m = (m + 15) // 16 = 4" in done.out
    assert coordgraph("explain-index", "A.0", *STREAM).out.startswith("A.0: SubDimension(A; 0)")


def test_missing_values_are_named():
    done = coordgraph("explain-index", "A.0", *STREAM, "--at", "workgroup=2,m=64")
    assert done.code == 3
    assert "also depends on for_tile from 0" in done.err
    assert "A.index.0 in 0..15" in done.err
    assert "n in 1..2147479552" in done.err
    found = coordgraph("explain-index", "A.0", *STREAM, "--at", "workgroup=2", "--json")
    assert found.json["error"]["kind"] == "EvaluationError"


@pytest.mark.parametrize(
    ("at", "code", "message"),
    [
        ("workgroup=a b", 2, "--at workgroup=a b: "),
        ("workgroup=2,workgroup=3", 2, "'workgroup' is given twice"),
        ("offsets=(0,x)", 2, "'x' is not a whole number"),
        ("nothing=2", 3, "no coordinate, launch parameter or table 'nothing'"),
    ],
)
def test_wrong_points_are_refused(at: str, code: int, message: str):
    done = coordgraph("explain-index", "A.0", *STREAM, "--at", at)
    assert done.code == code
    assert message in " ".join(done.err.split())


def test_tables_are_part_of_the_point():
    words = ("explain-index", "A.0", *STREAM, "--groups", "m", "--at")
    done = coordgraph(*words, f"{POINT},m=40,n=48,k=80,groups=2,offsets=(0,9,40)")
    assert done.code == 0, done.err
    assert "\nA.0 = " in done.out


def test_forward_and_lowered():
    done = coordgraph(
        *("explain-index", "workgroup", "--forward", "-s", "data-parallel", *SMALL),
        *("--at", "A.0=20,B.1=17,n=48"),
    )
    assert "\nworkgroup = 4\n" in done.out
    words = ("explain-index", "A.shared", *STREAM, "--stage", "lowered", "-t", "cpu")
    done = coordgraph(*words, "--at", "block.m=0,block.row=1,block.k=2")
    assert "memory A.shared: bf16, 2 bytes an element" in done.out


@pytest.fixture
def texts(tmp_path: Path) -> tuple[str, str]:
    """(path of a file with a graph as text, path of a file with another graph as JSON)."""
    paths = (tmp_path / "first.txt", tmp_path / "last.json")
    coordgraph("show", "text", "-s", "stream-k", *SMALL, "-o", str(paths[0]))
    coordgraph("show", "json", "-s", "stream-k{owner=last}", *SMALL, "-o", str(paths[1]))
    return str(paths[0]), str(paths[1])


def test_graphs_that_differ_end_with_1(texts: tuple[str, str]):
    done = coordgraph("diff", *texts)
    assert done.code == 1
    assert "  + dim for_behind: ForLoop" in done.out
    found = coordgraph("diff", *texts, "--json")
    assert found.code == 1
    assert found.json["equal"] is False
    assert found.json["counts"]["dimension"] == {"added": 1}


def test_equal_graphs_end_with_0(texts: tuple[str, str]):
    text = Path(texts[0]).read_text(encoding="utf-8")
    done = coordgraph("diff", texts[0], "-", stdin=text.replace("sk.local", "mine"))
    assert done.code == 0
    assert done.out.splitlines() == [
        "the graphs are equal up to names of dimensions",
        "renamed: sk.local -> mine",
    ]
    assert coordgraph("diff", texts[0], texts[0], "--json").json["equal"] is True


def test_before_and_after_a_pass(texts: tuple[str, str]):
    done = coordgraph("diff", "--pass", "reorder{swap=true}", *SMALL)
    assert done.code == 1
    assert "  + edge Flatten B.tile.1, A.tile.0 -> tile.flat" in done.out
    done = coordgraph("diff", texts[0], "--pass", "lower-to-host")
    assert "  ~ level: scheduled -> lowered" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "0 graphs are given, but two are compared"),
        (("a.txt",), "1 graph is given"),
        (("a.txt", "b.txt", "--pass", "stream-k"), "give one graph with --pass"),
        (("-", "-"), "standard input has only one"),
        (("a.txt", "b.txt", "-w", "3"), "--workgroups has no effect"),
    ],
)
def test_what_cannot_be_compared_is_said(words: tuple[str, ...], message: str):
    done = coordgraph("diff", *words)
    assert done.code == 2
    assert message in " ".join(done.err.replace("│", " ").split())


def test_provenance_is_listed():
    done = coordgraph("show", "--provenance", *STREAM, "--only", "sk.local")
    assert done.code == 0
    assert done.out.splitlines()[0] == "stream-k{workgroups=4}:"
    assert "  + edge Tile global -> sk.workgroup, sk.local" in done.out.splitlines()
    data = coordgraph("show", "--provenance", *STREAM, "--only", "sk.local", "--json").json
    (origin,) = data["origins"]
    assert (origin["key"], origin["made"]) == ("sk.local", "stream-k{workgroups=4}")


def test_provenance_in_documents():
    text = coordgraph("show", "text", "--provenance", *STREAM).out
    assert 'origin dimension sk.local "stream-k{workgroups=4}"' in text
    again = coordgraph("show", "--provenance", "--from", "-", stdin=text)
    assert again.out == coordgraph("show", "--provenance", *STREAM).out
    data = coordgraph("show", "json", "--provenance", *STREAM, "--json").json
    assert data["graph"]["origins"]


@pytest.mark.parametrize("words", [("mermaid",), ("pseudocode",), ("text", "--diff")])
def test_provenance_has_no_place_elsewhere(words: tuple[str, ...]):
    done = coordgraph("show", *words, "--provenance", *STREAM)
    assert done.code == 2
    assert "--provenance does not work with this form" in " ".join(
        done.err.replace("│", " ").split()
    )
