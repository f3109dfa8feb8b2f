"""Provenance: which pass made each part of a graph; the text form of the graph keeps it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import Gemm, KernelGraph, ParseError, VerifyError, from_json, parse
from coordgraph.control.operations import Scope
from coordgraph.coordinates.dimensions import Linear
from coordgraph.coordinates.edges import PassThrough
from coordgraph.provenance import Origin, Part
from coordgraph.show.provenance import provenance
from passes import Pass, Pipeline, Reorder, StreamK
from passes.lowering import LowerToHopper, LowerToTensorCores
from passes.lowering.host import LowerToHost
from tests.passes.schedules import ORDERED, symbolic
from tests.support.golden import Golden

PROBLEM = Origin("problem")


@pytest.fixture(scope="module")
def graph() -> KernelGraph:
    passes = [Reorder(swap=True), StreamK(workgroups=32)]
    return Pipeline(passes)(Gemm("bf16").graph((128, 128, 32)))


def test_passes_record_what_they_made(graph: KernelGraph):
    found = graph.provenance
    assert found.dimension("A.tile.0") == PROBLEM
    assert found.dimension("tile.flat") == Origin("reorder{swap=true}", ("B.tile.1", "A.tile.0"))
    assert found.dimension("sk.local") == Origin("stream-k{workgroups=32}", ("tile.flat", "k_tile"))
    assert found.dimension("nothing") == Origin()
    flat, local = (graph.coordinates.edges_above(n)[0] for n in ("tile.flat", "sk.local"))
    assert found.edge(flat).made == "reorder{swap=true}"
    assert found.edge(local).made == "stream-k{workgroups=32}"
    assert found[Part.PARAMETER, "share"].sources == ("tiles_k", "tiles_m", "tiles_n")
    assert found[Part.TENSOR, "partials"].made == "stream-k{workgroups=32}"
    origins = {op.kind: found.operation(i) for i, op in enumerate(graph.control.operations)}
    assert origins["LoadTile"] == PROBLEM
    assert origins["Kernel"] == Origin("problem", (), ("stream-k{workgroups=32}",))
    assert origins["SendPartial"].made == "stream-k{workgroups=32}"
    assert found.makers == ("problem", "stream-k{workgroups=32}", "reorder{swap=true}")


@settings(max_examples=20)
@given(st.sampled_from(ORDERED))
def test_every_record_has_an_origin(case: tuple[str, str]):
    graph = symbolic(*case)
    found = graph.provenance
    assert {*found} == {key for key, _ in graph.snapshot.records()}
    assert {*found.makers} <= {"problem", *graph.log}
    start = Gemm("f32").graph((4, 4, 4))
    for d in graph.coordinates:
        assert (found.dimension(d.id).made == "problem") == (d.id in start.coordinates)
    assert [*found] == [key for key, _ in graph.snapshot.records()]


@pytest.mark.parametrize("lowering", [LowerToHost(), LowerToTensorCores(), LowerToHopper()])
def test_lowered_operations_name_those_that_they_replace(lowering: Pass):
    start = StreamK()(Gemm("bf16", transpose_b=True).graph((128, 128, 64)))
    graph = lowering(start)
    found, operations = graph.provenance, graph.control.operations
    made = {op.kind: found.operation(i) for i, op in enumerate(operations)}
    multiply = next(made[k] for k in ("MultiplyFragments", "MultiplyShared") if k in made)
    assert multiply.made == str(lowering)
    assert "MultiplyAccumulate" in multiply.sources
    # Kernels with warp roles have the schedule's loop once for each role.
    loops = [i for i, op in enumerate(operations) if op.bindings.get("dim") == ("for_tile",)]
    assert "stream-k" in {found.operation(i).made for i in loops}


def test_texts_and_plain_data_keep_it_if_asked(graph: KernelGraph):
    lowered = LowerToHost()(graph)
    for each in (graph, lowered):
        text = each.text(provenance=True)
        assert each.text() == text.partition("origin ")[0]
        again = parse(text)
        assert again == each
        assert again.provenance == each.provenance
        assert again.text(provenance=True) == text
        data = each.json(provenance=True)
        assert from_json(data).provenance == each.provenance
        assert "origins" not in each.json()


def test_passes_after_a_text_go_on_from_it(graph: KernelGraph):
    read = parse(graph.text(provenance=True))
    assert LowerToHost()(read).provenance == LowerToHost()(graph).provenance


def test_a_text_without_it_does_not_guess(graph: KernelGraph):
    read = parse(graph.text())
    assert read.provenance.dimension("sk.local") == Origin()
    assert read.provenance.dimension("A") == Origin()
    assert LowerToHost()(read).provenance.dimension("block.m").made == "lower-to-host"
    again = parse(read.text(provenance=True))
    assert again.provenance == read.provenance


def test_a_pass_that_changes_nothing_records_nothing():
    @dataclass(frozen=True)
    class Nothing(Pass):
        name = "test-nothing"

        def apply(self, graph: KernelGraph) -> KernelGraph:
            return graph

    start = Gemm().graph((128, 128, 32))
    assert Nothing()(start) is start


def test_edits_between_passes_are_no_pass(graph: KernelGraph):
    with graph.edit() as e:
        e.coordinates.add(Linear("extra"))
        e.coordinates.connect(PassThrough("extra", "workgroup"))
    lowered = LowerToHost()(e.graph)
    for each in (e.graph, lowered):
        assert each.provenance.dimension("extra") == Origin("edit", ("workgroup",))


def test_operations_that_are_wrapped_stay_the_same(graph: KernelGraph):
    with graph.edit() as e:
        root = graph.control.root
        e.kernel(Scope("mine", root.body), workgroup=root.workgroup)
    found, old = e.graph.provenance, graph.provenance
    assert found.operation(1) == Origin("edit")
    count = len(graph.control.operations)
    assert [found.operation(i + 1) for i in range(1, count)] == [
        old.operation(i) for i in range(1, count)
    ]


def test_provenance_is_not_part_of_equality(graph: KernelGraph):
    read = parse(graph.text())
    assert read == graph
    assert hash(read) == hash(graph)
    assert "history" not in repr(graph)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('origin dimension nothing "a"', "dimension nothing, which the graph does not have"),
        ('origin edge 999 "a"', "edge 999, which the graph does not have"),
        ('origin edge -1 "a"', "edge -1, which the graph does not have"),
        ('origin operation 99 "a"', "operation 99, which the graph does not have"),
        ('origin dim A "a"', "unknown kind of part 'dim'"),
        ("origin dimension A", "expected the pass that made the record, in quotes"),
    ],
)
def test_wrong_origins_are_refused(line: str, message: str, graph: KernelGraph):
    with pytest.raises((ParseError, VerifyError), match=message):
        parse(graph.text() + line + "\n")


def test_a_reader_sees_who_made_what(graph: KernelGraph, golden: Golden):
    golden(
        "\n".join(text for text, _ in provenance(graph)),
        "coordgraph/provenance/reordered-stream-k.txt",
    )
    few = [text for text, _ in provenance(graph, ["sk.local"])]
    assert few == [
        "stream-k{workgroups=32}:",
        '  + dim sk.local: Linear size=share "a workgroup\'s streamed iterations"'
        "   from tile.flat, k_tile",
        "  + edge Tile global -> sk.workgroup, sk.local",
        "  + edge Split sk.local -> for_tile, for_k strides=(1, 1)",
    ]
