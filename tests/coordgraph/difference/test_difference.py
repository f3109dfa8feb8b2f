"""Differences of graphs: every small change of a graph is found, and equal graphs have none."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Integer

from coordgraph import CoordinateGraph, Gemm, KernelGraph, VerifyError, parse
from coordgraph.control.operations import For, InitAccumulator
from coordgraph.coordinates.edges import Split
from coordgraph.difference import Kind
from coordgraph.difference.renaming import renamed
from passes import Pipeline
from passes.lowering.host import LowerToHost
from tests.passes.schedules import ORDERED, symbolic
from tests.support.golden import Golden


def test_only_graphs_are_compared():
    with pytest.raises(VerifyError, match="other = 3 is not a KernelGraph"):
        scheduled("").diff(3)  # type: ignore[arg-type]


@cache
def scheduled(pipeline: str) -> KernelGraph:
    graph = Gemm("bf16").graph((128, 128, 32))
    return Pipeline.parse(pipeline)(graph) if pipeline else graph


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("", "data-parallel", "data-parallel"),
        ("stream-k", "stream-k{owner=last}", "owner"),
        ("stream-k{workgroups=32}", "stream-k{workgroups=64}", "workgroups"),
        ("stream-k", "reorder{swap=true},stream-k", "reorder"),
    ],
)
def test_a_reader_sees_what_changed(before: str, after: str, name: str, golden: Golden):
    golden(scheduled(before).diff(scheduled(after)).text(), f"coordgraph/difference/{name}.txt")


@pytest.mark.slow
@settings(max_examples=8)
@given(st.sampled_from(ORDERED))
def test_a_graph_equals_itself_read_from_text(case: tuple[str, str]):
    graph = symbolic(*case)
    found = graph.diff(parse(graph.text()))
    assert found.equal
    assert not found.renamed
    assert not found.control
    assert found.text() == "the graphs are equal\n"


@pytest.mark.slow
@settings(max_examples=8)
@given(st.sampled_from(ORDERED), st.data())
def test_other_names_of_dimensions_are_no_difference(case: tuple[str, str], data: st.DataObject):
    graph = symbolic(*case)
    own = [d.id for d in graph.coordinates if d.id not in Gemm("f32").graph((4, 4, 4)).coordinates]
    some = data.draw(st.lists(st.sampled_from(own), unique=True, min_size=1)) if own else []
    names = {name: f"x_{i}" for i, name in enumerate(some)}
    other = renamed(graph, names)
    assert other != graph or not names
    found = graph.diff(other)
    assert found.equal, found.text()
    assert {*found.renamed} == {*names}
    assert graph.text() == renamed(other, {b: a for a, b in names.items()}).text()


@settings(max_examples=8)
@given(st.sampled_from(ORDERED), st.sampled_from(ORDERED))
def test_different_graphs_differ_in_both_directions(
    first: tuple[str, str], second: tuple[str, str]
):
    one, other = symbolic(*first), symbolic(*second)
    there, back = one.diff(other), other.diff(one)
    assert there.equal == back.equal == (one == other)
    added = {c.after for c in there.changes if c.kind is Kind.ADDED and c.part == "edge"}
    removed = {c.before for c in back.changes if c.kind is Kind.REMOVED and c.part == "edge"}
    if not there.renamed:
        assert added == removed


def edited(graph: KernelGraph, what: str) -> KernelGraph:
    """`graph` with one small change, which `what` names."""
    with graph.edit() as e:
        match what:
            case "parameter":
                e.parameter("another", graph.parameters["m"].symbol + 1)
            case "dimension":
                e.coordinates.replace(replace(graph.coordinates["for_k"], note="other"))
            case "edge":
                (edge,) = (x for x in graph.coordinates.edges if x.upstream == ("sk.local",))
                e.coordinates.disconnect(edge)
                e.coordinates.connect(Split(*edge_sides(edge), (Integer(1), Integer(2))))
            case "tensor":
                e.tensors = (replace(graph.tensors[0], dtype="f16"), *graph.tensors[1:])
            case "operation":
                e.control = graph.control.rewrite(
                    lambda op: replace(op, unroll=True) if isinstance(op, For) else op
                )
            case _:
                e.control = graph.control.rewrite(
                    lambda op: () if isinstance(op, InitAccumulator) else op
                )
    return e.graph


def edge_sides(edge: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return edge.upstream, edge.downstream  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("what", "part", "kind", "fields"),
    [
        ("parameter", "parameter", Kind.ADDED, set[str]()),
        ("dimension", "dimension", Kind.CHANGED, {"note"}),
        ("edge", "edge", Kind.CHANGED, {"strides"}),
        ("tensor", "tensor", Kind.CHANGED, {"dtype"}),
        ("operation", "operation", Kind.CHANGED, {"unroll"}),
        ("removed operation", "operation", Kind.REMOVED, set[str]()),
    ],
)
def test_one_change_is_one_change(what: str, part: str, kind: Kind, fields: set[str]):
    before = scheduled("stream-k")
    found = before.diff(edited(before, what))
    assert {c.part for c in found.changes} == {part}
    assert {c.kind for c in found.changes} == {kind}
    assert {name for c in found.changes for name in c.fields} == fields
    assert not found.renamed
    data = json.loads(json.dumps(found.as_data()))
    assert data["equal"] is False
    assert data["counts"] == {part: {kind.name.lower(): len(found.changes)}}


def test_a_lowered_graph_keeps_what_it_keeps():
    before = scheduled("stream-k")
    found = before.diff(LowerToHost()(before))
    assert not any(c.kind is Kind.REMOVED for c in found.of_part("dimension"))
    removed = {c.before.split()[0] for c in found.of_part("operation") if c.kind is Kind.REMOVED}
    assert {"LoadTile", "MultiplyAccumulate", "StoreTile"} <= removed


def test_the_order_of_declarations_is_no_difference():
    graph = scheduled("stream-k")
    old = graph.coordinates
    shuffled = CoordinateGraph([*old][::-1], old.edges[::-1])
    found = graph.diff(replace(graph, coordinates=shuffled))
    assert found.equal
    assert found.reordered
    assert "declared in another order" in found.text()


def test_the_order_of_dangling_tiles_is_a_difference():
    graph = scheduled("")
    old = graph.coordinates
    dimensions = [old["B"], *(d for d in old if d.id != "B")]
    found = graph.diff(replace(graph, coordinates=CoordinateGraph(dimensions, old.edges)))
    (change,) = found.changes
    assert change.fields == {
        "order of dangling tile numbers": ("A.tile.0, B.tile.1", "B.tile.1, A.tile.0")
    }


def test_logs_alone_are_no_difference():
    graph = scheduled("stream-k")
    found = graph.diff(replace(graph, log=("mine",)))
    assert found.equal
    assert found.logs == (("stream-k",), ("mine",))
