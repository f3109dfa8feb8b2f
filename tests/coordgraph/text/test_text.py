"""The text form of graphs: `parse(print(g)) == g`, and `parse` accepts free formatting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import pytest
from sympy import And, Expr, Ge, Integer, Lt, Symbol
from sympy.logic.boolalg import Boolean

import coordgraph
from benchmarks.measures.graph_scaling import chain
from coordgraph import Gemm, KernelGraph, VerifyError, parse
from coordgraph.control.graph import ControlGraph
from coordgraph.control.operations import (
    OPERATIONS,
    Assign,
    Body,
    For,
    If,
    Kernel,
    Operation,
    Scope,
)
from coordgraph.coordinates.dimensions import DIMENSIONS, Dimension, Linear
from coordgraph.coordinates.edges import EDGES, PassThrough, Tile
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.integers import Select, index_symbol, size_symbol
from coordgraph.parameters import Parameter, Parameters
from coordgraph.text import from_json, parse_graph, print_graph, to_json
from tests.coordgraph.text.graphs import MAKERS, PIPELINES, scheduled
from tests.support.golden import Golden
from tests.support.sampling import quick_cases

THREE = Integer(3)
WRITTEN = """
# A scrap of a graph, as somebody writes it.
coordgraph 1   # the version

log "by hand"
control { Kernel workgroup=wg {
    For dim = loop start=0 stop=min(n, 4*q) {   # q is a parameter
      Assign name=q.x value=loop+1
      If condition=q.x < n and not n == 3 { Scope name="two words" } else {
        Barrier

        Barrier
      }
    }
} }
edge Tile all -> loop, wg
dim loop: ForLoop size=(q + 3) // 4 name=Main "the loop"
dim "all": Linear size=q
dim wg: Workgroup size=4
param q in 1..100
param n in 0..100 = q - 1 "one less"
gemm dtype=f16
"""


def around(*operations: Operation, **parts: object) -> KernelGraph:
    return replace(KernelGraph(Gemm(), control=ControlGraph(Kernel(tuple(operations)))), **parts)


@quick_cases(6)
@pytest.mark.parametrize("number", range(len(MAKERS)))
def test_the_law(number: int):
    graph = MAKERS[number]()
    text = print_graph(graph)
    read = parse_graph(text)
    assert read == graph
    assert hash(read.coordinates) == hash(graph.coordinates)
    assert print_graph(read) == text
    read.verify()


@pytest.mark.parametrize("pipeline", ["", "two-tile-stream-k{first=dp}"])
def test_golden(pipeline: str, golden: Golden):
    name = pipeline.partition("{")[0] or "problem"
    golden(print_graph(scheduled(Gemm(), pipeline)), f"coordgraph/text/{name}.txt")


def test_an_empty_graph():
    graph = KernelGraph(Gemm())
    assert print_graph(graph).splitlines() == [
        "coordgraph 1",
        "gemm out_dtype=bf16",
        "level problem",
        "control {",
        "  Kernel",
        "}",
    ]
    assert parse(print_graph(graph)) == graph
    assert parse("coordgraph 1\ngemm") == graph


def test_what_a_person_writes():
    graph = parse(WRITTEN)
    q, n, x, loop = size_symbol("q"), index_symbol("n"), index_symbol("q.x"), index_symbol("loop")
    assert graph.gemm == Gemm("f16")
    assert graph.parameters.items == (
        Parameter("q", 1, 100),
        Parameter("n", 0, 100, q - 1, "one less"),
    )
    assert list(graph.coordinates.dimensions) == ["loop", "all", "wg"]
    assert graph.coordinates["loop"].note == "the loop"
    assert graph.coordinates.edges == (Tile("all", ("loop", "wg")),)
    (outer,) = graph.control.root.body
    assert isinstance(outer, For)
    assert outer.body[0] == Assign("q.x", loop + 1)
    branch = outer.body[1]
    assert isinstance(branch, If)
    assert branch.condition == (x < n) & coordgraph.integers.parse_expression("n != 3", lambda _: n)
    assert branch.body == (Scope("two words"),)
    assert [op.kind for op in branch.orelse] == ["Barrier", "Barrier"]
    assert graph.log == ("by hand",)
    assert parse(print_graph(graph)) == graph


def test_a_branch_with_nothing_before_its_else():
    graph = around(If(index_symbol("x") < 3, (), (Scope("s"),)))
    text = print_graph(graph)
    assert "    If condition=x < 3 {\n    } else {\n      Scope name=s\n    }\n" in text
    assert parse(text) == graph


def test_line_ends_of_other_systems():
    assert parse(WRITTEN.replace("\n", "\r\n")) == parse(WRITTEN)


def test_the_symbol_of_a_parameter_follows_its_minimum():
    graph = parse("coordgraph 1\ngemm\nparam a in 0..9\nparam b in 1..9\ndim x: Linear size=a*b")
    assert graph.coordinates.size("x") == index_symbol("a") * size_symbol("b")


def test_symbols_that_nothing_declares_are_written_too():
    free = Linear("x", size_symbol("here") * index_symbol("there"))
    graph = replace(KernelGraph(Gemm()), coordinates=CoordinateGraph([free]))
    text = print_graph(graph)
    assert "symbol here positive\nsymbol there nonnegative\n" in text
    assert parse(text) == graph
    assert from_json(to_json(graph)) == graph


@pytest.mark.parametrize(
    "note",
    ["", "é ⌈m/64⌉ 😀", 'a "b" \\ # c', "\n\r\t\0\x7f\x85\u2028", "\ud800", "none", "a.b", "-"],
)
def test_any_string_stays_what_it_is(note: str):
    graph = around(
        Scope(note), coordinates=CoordinateGraph([Linear("x", None, note)]), log=(note, note)
    )
    text = print_graph(graph)
    assert len(text.splitlines()) == len(text.split("\n")) - 1
    text.encode()
    assert parse(text) == graph
    assert from_json(to_json(graph)) == graph


def test_parse_is_exported():
    assert coordgraph.parse is parse_graph
    assert coordgraph.from_json is from_json
    graph = scheduled(Gemm(), PIPELINES[-1])
    assert coordgraph.parse(graph.text()) == graph
    assert str(graph) == graph.text()


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the registries of operations, dimensions and edges, so new classes last for one test."""
    for module, name, registry in (
        ("control.operations", "OPERATIONS", OPERATIONS),
        ("coordinates.dimensions", "DIMENSIONS", DIMENSIONS),
        ("coordinates.edges.base", "EDGES", EDGES),
    ):
        copy = dict(registry)
        for where in (f"coordgraph.{module}", "coordgraph.text.reader", "coordgraph.text.plain"):
            monkeypatch.setattr(f"{where}.{name}", copy)


def third_party() -> KernelGraph:
    """A graph with classes of dimensions and edges that are defined here, not by the library."""

    @dataclass(frozen=True)
    class Bank(Dimension):
        way: int = -1
        names: tuple[str, ...] = ()

    @dataclass(frozen=True)
    class Fold(PassThrough):
        by: Expr | int = 2
        pairs: tuple[tuple[int, str], ...] = ()
        when: Boolean | None = None
        mode: Literal["near", "far"] = "near"
        size: Expr | None = THREE
        tags: tuple[str, ...] | None = ()

    @dataclass(frozen=True)
    class Race(Operation):
        label: str | None
        fast: bool
        where: Boolean
        turns: tuple[Expr, Expr]
        winner: Body = ()
        loser: Body = ()
        BODIES = ("winner", "loser")

    x = index_symbol("x")
    none = index_symbol("none")
    with CoordinateGraph().edit() as e:
        e.add(Bank("x", size_symbol("q") * 3, "note", -4, ("a", "b c", "none")))
        e.add(Bank("y", size_symbol("q") * 3))
        e.add(Bank("none"))
        e.connect(
            Fold("x", "y", x + 1, ((1, "one"), (-2, "the two")), Lt(x, 3), "far", None, ("t",))
        )
        e.connect(Fold("x", "y", Integer(2), (), None, "near", none, None))
    condition = And(Lt(x, 5), Ge(index_symbol("y"), 1))
    inner = Race("none", False, Lt(x, 1), (x, Integer(0)))
    return around(
        Race(None, True, condition, (Select(Lt(x, 2), x, 4), x), (), (inner, Scope("s"))),
        Race("w", True, condition, (x, x), (inner,), (inner,)),
        inner,
        coordinates=e.graph,
        parameters=Parameters((Parameter("q"),)),
    )


@pytest.mark.usefixtures("registries")
def test_classes_of_others_need_nothing_more():
    graph = third_party()
    text = print_graph(graph)
    assert 'edge Fold x -> y by=x + 1 pairs=((1, one), (-2, "the two")) when=x < 3' in text
    assert "  Race label=none fast=true" in text
    assert "turns=(select(x < 2, x, 4), x) {\n    } loser {\n      Race" in text
    assert parse(text) == graph
    assert print_graph(parse(text)) == text
    assert from_json(to_json(graph)) == graph


@pytest.mark.usefixtures("registries")
def test_a_field_with_no_written_form_is_named():
    @dataclass(frozen=True)
    class Odd(Operation):
        table: dict[str, int]

    with pytest.raises(VerifyError, match=r"Odd\.table: a field of type dict\[str, int\]"):
        print_graph(around(Odd({})))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (around(Assign("a", Symbol("b"))), "'b' is neither an index_symbol nor a size_symbol"),
        (
            around(Assign("a", index_symbol("b") + size_symbol("b"))),
            "two symbols have the name 'b'",
        ),
        (around(Assign("a", index_symbol("min"))), "'min' cannot be printed"),
        (around(Assign("a", index_symbol("b") ** -1)), "cannot be written"),
        (around(Assign("a", Integer(10) ** 200)), "digits"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(graph: KernelGraph, message: str):
    with pytest.raises(VerifyError, match=message):
        print_graph(graph)
    with pytest.raises(VerifyError, match=message):
        to_json(graph)


def nested(depth: int) -> KernelGraph:
    op = Scope("innermost")
    for _ in range(depth - 1):
        op = Scope("s", (op,))
    return around(op)


def test_nesting_has_one_limit():
    graph = nested(100)
    assert parse(print_graph(graph)) == graph
    assert from_json(to_json(graph)) == graph
    for write in (print_graph, to_json):
        with pytest.raises(VerifyError, match="nest more than 100 levels"):
            write(nested(101))


def test_a_thousand_edges():
    graph = chain(1000)
    text = print_graph(graph)
    assert len(graph.coordinates.edges) >= 1000
    assert parse(text) == graph
    assert from_json(to_json(graph)) == graph
