"""Mermaid diagrams of graphs have the right contents and colours, and mermaid can draw them."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from sympy import Integer

from coordgraph import CoordinateGraph, Gemm, VerifyError
from coordgraph.control.graph import ControlGraph
from coordgraph.control.operations import Assign, For, If, Kernel, LoadTile, Scope
from coordgraph.coordinates.dimensions import Linear
from coordgraph.coordinates.edges import Flatten, PassThrough, Swizzle
from coordgraph.integers import index_symbol
from coordgraph.show.mermaid import control, coordinates
from passes import DataParallel, StreamK
from tests.support.golden import Golden
from tests.support.mermaid import parse, render

PROBLEM = Gemm().graph()
STREAMED = StreamK(workgroups=132)(PROBLEM)


def drawn(text: str) -> str:
    """The text in mermaid's drawing of a diagram, without word joiners (U+2060)."""
    (svg,) = render([text])
    words = "".join(ElementTree.fromstring(svg).itertext()).replace("\u2060", "")
    return " ".join(words.split())


def test_golden_coordinates(golden: Golden):
    text = coordinates(STREAMED.coordinates, compare_to=PROBLEM.coordinates)
    golden(text, "coordgraph/show/stream-k.mmd")
    parse([text])
    part = STREAMED.mermaid(only=["A", "A.0", "A.1", "A.tile.0", "A.index.0"])
    assert "MacroTileNumber(A; 0)" in drawn(part)
    assert STREAMED.mermaid(compare_to=PROBLEM.coordinates) == text


def test_golden_control(golden: Golden):
    text = control(STREAMED.control, compare_to=PROBLEM.control)
    golden(text, "coordgraph/show/stream-k-control.mmd")
    assert "SendPartial(partial.slot)" in drawn(text)
    assert STREAMED.control.mermaid(compare_to=PROBLEM.control) == text


def test_a_dimension_shows_its_label_id_size_and_note():
    text = STREAMED.mermaid(only=["global"])
    label = "Linear<br/>global, size tiles_k*tiles_m*tiles_n<br/>global M/N/K tiles"
    assert text == f'graph TD\n  global(["{label}"])\n'
    assert "M/N/K" not in STREAMED.mermaid(only=["global"], notes=False)


def test_an_edge_is_a_box_with_numbered_operands_or_an_arrow():
    with CoordinateGraph().edit() as e:
        for name in "abcd":
            e.add(Linear(name))
        e.connect(Flatten(("a", "b"), "c"))
        e.connect(Swizzle(("a", "b"), ("c", "d"), "snake"))
        e.connect(PassThrough("c", "d"))
        e.connect(Swizzle("c", "d", "reflect"))
    lines = [line.strip() for line in coordinates(e.graph).splitlines()[5:]]
    assert lines == [
        'Flatten_a["Flatten"]',
        'a -- "0" --> Flatten_a',
        'b -- "1" --> Flatten_a',
        "Flatten_a --> c",
        'Swizzle_a["Swizzle<br/>function snake"]',
        'a -- "0" --> Swizzle_a',
        'b -- "1" --> Swizzle_a',
        'Swizzle_a -- "0" --> c',
        'Swizzle_a -- "1" --> d',
        'c -- "PassThrough" --> d',
        'c -- "Swizzle, function reflect" --> d',
    ]


def test_green_marks_dangling_numbers_and_loops():
    def green(graph: CoordinateGraph) -> list[str]:
        return [line.split()[1] for line in coordinates(graph).splitlines() if "#3f3" in line]

    assert green(PROBLEM.coordinates) == ["A_tile_0", "B_tile_1", "k_tile"]
    assert green(DataParallel()(PROBLEM).coordinates) == ["k_tile"]


def test_only_draws_the_edges_among_what_is_asked_for():
    text = STREAMED.mermaid(only=["sk.local", "for_tile", "for_k", "global"])
    assert text.count("-->") == 3
    assert "Tile_global" not in text


def test_only_and_direction_are_checked():
    with pytest.raises(VerifyError, match="no dimension 'globl'; did you mean 'global'"):
        STREAMED.mermaid(only=["globl"])
    with pytest.raises(
        VerifyError, match="unknown direction 'UP'; choose one of TD, TB, BT, LR, RL"
    ):
        STREAMED.mermaid(direction="UP")
    assert STREAMED.mermaid(direction="LR").startswith("graph LR\n")


def chains(scopes: int, length: int) -> CoordinateGraph:
    """A graph of scopes `s0`, `s1`, …: in each, a chain of `length` dimensions `s0.0`, `s0.1`, ….

    An edge connects each scope to the next one.
    """
    with CoordinateGraph().edit() as e:
        for scope in range(scopes):
            for number in range(length):
                e.add(Linear(f"s{scope}.{number}"))
                if number:
                    e.connect(PassThrough(f"s{scope}.{number - 1}", f"s{scope}.{number}"))
            if scope:
                e.connect(PassThrough(f"s{scope - 1}.{length - 1}", f"s{scope}.0"))
    return e.graph


def test_a_graph_with_more_arrows_than_mermaid_draws_is_drawn_by_scope():
    assert chains(5, 100).mermaid().count("-->") == 499
    graph = chains(6, 100)
    text = graph.mermaid()
    parse([text])
    assert text.count("-->") == 5
    assert "the graph has 599 arrows, and Mermaid draws 500" in text
    assert 's0(["s0.…<br/>100 dimensions, 99 edges"])' in text
    assert 's0 -- "1 edge" --> s1' in text
    assert "s3.…100 dimensions, 99 edges" in drawn(text)
    assert graph.mermaid(only=[f"s0.{i}" for i in range(100)]).count("-->") == 99
    with graph.edit() as e:
        e.add(Linear("s2.new"))
        e.connect(PassThrough("s2.new", "s4.7"))
    changed = e.graph.mermaid(compare_to=graph)
    assert "class s2 added" in changed
    assert "linkStyle 5 stroke" in changed


def test_more_scopes_than_mermaid_draws_lose_arrows():
    text = chains(700, 1).mermaid()
    parse([text])
    assert text.count("-->") == 500
    assert "199 arrows between scopes are left out" in text


def test_a_control_graph_with_more_arrows_than_mermaid_draws_loses_inner_operations():
    def nest(inner: int, outer: int) -> ControlGraph:
        loop = For("for_k", Integer(0), Integer(4), body=(Scope("part"),) * inner)
        return ControlGraph(Kernel(body=(loop,) * outer))

    assert nest(99, 5).mermaid().count("-->") == 500
    text = nest(100, 5).mermaid()
    parse([text])
    assert text.count("-->") == 5
    assert text.count("… 100 operations inside") == 5
    text = nest(1, 600).mermaid()
    assert text.count("-->") == 500
    assert "… 200 operations inside" in text


def test_a_diff_colours_what_is_new_or_changed():
    before = CoordinateGraph([Linear("a"), Linear("b"), Linear("c")], [PassThrough("a", "b")])
    with before.edit() as e:
        e.replace(Linear("b", note="changed"))
        e.add(Linear("d"))
        e.connect(PassThrough("b", "d"))
        e.connect(PassThrough("a", "b"))
    lines = coordinates(e.graph, compare_to=before).splitlines()
    assert "  class b,d added" in lines
    assert "  linkStyle 1,2 stroke:#2563eb,stroke-width:2px" in lines
    assert "added" not in coordinates(e.graph, compare_to=e.graph)


def test_a_control_diff_colours_what_is_new():
    load = LoadTile("A", ("x",))
    before = ControlGraph(Kernel((Scope("s", (load,)),)))
    after = ControlGraph(Kernel((Scope("s", (load, load, Scope("t"))),)))
    assert "  class op3,op4 added" in control(after, compare_to=before).splitlines()


def test_control_edges_are_labelled():
    branch = If(index_symbol("x") < 3, (Scope("a"), Scope("b")), (Scope("c"),))
    text = control(ControlGraph(Kernel((Assign("x", 1), branch))))
    assert [line.strip() for line in text.splitlines()[1:]] == [
        'op0["Kernel"]',
        'op1["x = 1"]',
        'op2{{"If x #60; 3"}}',
        'op3["Scope(a)"]',
        'op4["Scope(b)"]',
        'op5["Scope(c)"]',
        'op0 -- "Body" --> op1',
        'op1 -- "Sequence" --> op2',
        'op2 -- "Body" --> op3',
        'op3 -- "Sequence" --> op4',
        'op2 -- "Else" --> op5',
    ]
    assert "If x < 3" in drawn(text)


# NAMES must work as ids of nodes, and NOTES as the whole notes of nodes.
NAMES = (
    "end graph style class click call href default subgraph.x interpolate linkStyle direction "
    "constructor __proto__ toString hasOwnProperty _self _blank TD v o x a_b Flatten_o n_end "
    "flowchart-x é 1 -"
).split()
NOTES = (
    *('"quoted"', "#lt; &lt; &amp;", "<b>x</b>", "a*b*c", "_a_ __b__", "`x`", "x;y|z", "{x}[y](z)"),
    *("$$x$$", "%% c", "a --> b", "1. a", "- a", "⌈m/64⌉ 😀", "a\\nb", "fa:fa-car", "http://a.b/c"),
    *("@{x}", ":::x", "'", "~a~", "end", "", " "),
)


def test_any_name_and_any_label_is_drawn():
    notes = [*NOTES, *[""] * (len(NAMES) - len(NOTES))]
    dims = [Linear(name, note=note) for name, note in zip(NAMES, notes, strict=True)]
    edges = [PassThrough("end", "graph"), Flatten(("o", "x"), "v"), PassThrough("a_b", "style")]
    added = CoordinateGraph([*dims, Linear("a.b")], edges)
    text = coordinates(added, compare_to=CoordinateGraph(dims[:3]))
    names = [line.split("(")[0].strip() for line in text.splitlines() if "([" in line]
    assert len(set(names)) == len(NAMES) + 1
    words = drawn(text)
    for note in (*NOTES, *NAMES):
        assert " ".join(note.replace("\\n", "\\ n").split()) in words.replace("\\n", "\\ n"), note


def test_any_operation_is_drawn():
    body = [Scope(note, (Scope("inner"),)) for note in NOTES if note.strip()]
    words = drawn(control(ControlGraph(Kernel(tuple(body)))))
    for note in filter(str.strip, NOTES):
        assert " ".join(f"Scope({note.strip()}".split()) in words, note


def test_an_empty_graph_is_drawn():
    assert coordinates(CoordinateGraph()) == "graph TD\n"
    render([coordinates(CoordinateGraph()), control(ControlGraph())])


def test_notebooks_show_both_graphs():
    bundle = replace(STREAMED, log=())._repr_mimebundle_()
    assert bundle["text/plain"].startswith("// D = ")
    assert bundle["text/markdown"].count("```mermaid\ngraph TD\n") == 2
