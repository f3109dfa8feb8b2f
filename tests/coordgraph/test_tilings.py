"""Tilings: the tile shape of each accumulator, found from the coordinates of operations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sympy import Integer

from coordgraph import CoordinateGraph, Gemm, KernelGraph, VerifyError, parse
from coordgraph.control.operations import (
    InitAccumulator,
    LoadTile,
    MultiplyAccumulate,
    Operation,
    StoreTile,
)
from coordgraph.interpreter import Trace, trace
from coordgraph.tilings import macro_tile
from passes import DataParallel, HeterogeneousTiles, Pipeline, StreamK

SIZES = {"m": 40, "n": 24, "k": 16, "workgroups": 4}


def two_shapes() -> KernelGraph:
    return HeterogeneousTiles(small_m=2)(Gemm("f32").graph((8, 8, 8)))


@pytest.mark.parametrize("kind", ["batched", "grouped", ""])
def test_one_shape_is_that_of_the_macro_tile(kind: str):
    gemm = Gemm("f32", batched=kind == "batched", grouped=kind == "grouped")
    for graph in (gemm.graph((8, 4, 2)), StreamK()(gemm.graph((8, 4, 2)))):
        (tiling,) = graph.tilings
        assert (tiling.accumulator, tiling.shape) == ("acc", (8, 4, 2))
        assert tiling.index("B", 1) == "B.index.1"
        assert tiling.number("D", 0) == "D.tile.0"
        assert tiling.own("A.shared") == "A.shared"
        assert {graph.tilings.of_operation(op) is tiling for op in loads(graph)} == {True}
        assert (graph.tilings.unit, graph.tilings.span(tiling)) == ((8, 4), (1, 1))


def loads(graph: KernelGraph) -> tuple[LoadTile, ...]:
    return graph.control.of_kind(LoadTile)


def test_each_accumulator_has_its_shape():
    graph = two_shapes()
    large, small = graph.tilings
    assert (large.accumulator, large.shape) == ("acc", (8, 8, 8))
    assert (small.accumulator, small.shape) == ("small", (2, 4, 8))
    # Along k nothing is divided, so tiles of both shapes have the same index along k.
    assert small.index("A", 1) == large.index("A", 1) == "A.index.1"
    assert small.own("A.shared") == "small.A.shared"
    assert graph.tilings.unit == (2, 4)
    assert graph.tilings.span(large) == (4, 2)
    found = [graph.tilings.of_operation(op) for op in loads(graph)]
    assert found == [large, large, small, small]
    stores = graph.control.of_kind(StoreTile)
    assert [graph.tilings.of_operation(op) for op in stores] == [large, small]
    assert graph.tilings.others(small) == {
        f"{tensor}.index.{axis}"
        for tensor, axis in (("A", 0), ("B", 1), ("C", 0), ("C", 1), ("D", 0), ("D", 1))
    }


def changed(graph: KernelGraph, kind: type[Operation], **fields: object) -> KernelGraph:
    """The graph with the given fields replaced in all operations of a kind."""

    def change(op: Operation) -> Operation:
        return replace(op, **fields) if isinstance(op, kind) else op  # type: ignore[arg-type]

    return replace(graph, control=graph.control.rewrite(change))


def test_tiles_of_two_shapes_are_not_added_up():
    mixed = changed(two_shapes(), MultiplyAccumulate, accumulator="acc")
    with pytest.raises(VerifyError, match="the accumulator 'acc' would mix tiles"):
        _ = mixed.tilings


def test_an_accumulator_that_nothing_is_multiplied_into():
    graph = Pipeline([DataParallel()])(Gemm("f32").graph((8, 8, 8)))
    with pytest.raises(VerifyError, match="no MultiplyAccumulate has the accumulator 'sum'"):
        graph.tilings.of_operation(InitAccumulator("sum"))
    with pytest.raises(VerifyError, match=r"uses the loaded tile \(k_tile\)"):
        two_shapes().tilings.of_operation(LoadTile("A", ("k_tile",)))


# The tests below are about traces of kernels with several tile shapes.


def found(graph: KernelGraph) -> Trace:
    return trace(graph, SIZES)


def test_a_trace_counts_the_tiles_that_divide_all():
    """For two tile shapes, a trace counts tiles of the largest shape that divides both.

    15 macro tiles on 4 workgroups: three full waves, and three macro tiles divided into 24 small
    tiles.
    """
    done = found(two_shapes())
    assert done.tiles == (20, 6, 2)
    assert not done.problems()
    spans = [segment.span for segment in done.of(0)]
    assert spans == [(4, 2)] * 3 + [(1, 1)] * 6
    first, *_ = done.of(1)
    assert (first.tile, first.iterations) == ((0, 2), 2 * 8)
    assert [*done.covered(first)] == [(i, j) for i in range(4) for j in (2, 3)]
    assert done.iterations == (2 * (3 * 8 + 6),) * 4
    assert done.utilisation == 1


def test_of_a_span_only_tiles_that_exist_are_covered():
    done = trace(two_shapes(), {**SIZES, "m": 9, "n": 5, "workgroups": 1})
    assert done.tiles == (5, 2, 2)
    assert not done.problems()
    (last,) = (s for s in done.segments if s.tile == (4, 0))
    assert [*done.covered(last)] == [(4, 0), (4, 1)]


def test_problems_see_what_a_large_tile_covers():
    done = found(two_shapes())
    doubled = Trace((*done.workgroups, done.workgroups[0][:1]), done.tiles, done.slots)
    wrong = [problem for problem in doubled.problems() if "are done twice" in problem]
    assert len(wrong) == 8
    missing = Trace((done.workgroups[0][1:], *done.workgroups[1:]), done.tiles, done.slots)
    left_out = [problem for problem in missing.problems() if "are left out" in problem]
    assert len(left_out) == 8


@pytest.mark.parametrize(
    ("dimension", "other"), [("A.index.1", "B.index.0"), ("A.index.0", "D.index.0")]
)
@pytest.mark.parametrize("level", ["problem", "scheduled"])
def test_tiles_that_do_not_fit_are_refused(dimension: str, other: str, level: str):
    graph = Gemm("f32").graph((8, 8, 8))
    if level == "scheduled":
        graph = DataParallel()(graph)
    with graph.edit() as e:
        e.coordinates.replace(replace(graph.coordinates[dimension], size=Integer(4)))
    fault = f"'acc' differ in extent: '{dimension}' has the size 4, '{other}' the size 8"
    with pytest.raises(VerifyError, match=fault):
        e.graph.verify()


def test_an_axis_without_tiles_is_named():
    text = Gemm("f32").graph((8, 8, 8)).text()
    one = "dim D.index.1: MacroTileIndex size=8 tensor=D axis=1"
    assert one in text
    (tiling,) = parse(text.replace(one, one.replace("axis=1", "axis=5"))).tilings
    for ask in (tiling.index, tiling.number):
        with pytest.raises(VerifyError, match="no MacroTileIndex with tensor=D axis=1"):
            ask("D", 1)


def test_the_macro_tile_of_a_graph_without_tiles():
    assert macro_tile(Gemm("f32").graph((8, 4, 2)).coordinates) == (8, 4, 2)
    with pytest.raises(VerifyError, match="axis 0 of A has no MacroTileIndex"):
        macro_tile(CoordinateGraph())
