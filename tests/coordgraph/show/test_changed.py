"""Diagrams of what a pass changed; in large graphs, a box stands for a scope (name prefix)."""

from __future__ import annotations

from itertools import pairwise

from coordgraph import Gemm
from coordgraph.coordinates.dimensions import Linear
from coordgraph.coordinates.edges import PassThrough, Tile
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.integers import parse_expression
from coordgraph.show.changed import MOST_EDGES, ChangedGraph
from passes import StreamK


def chain(count: int, scopes: int = 4) -> CoordinateGraph:
    """A chain of `count` dimensions `s0.0`, `s0.1`, …; the prefixes `s0`, `s1`, … are scopes."""
    number = parse_expression("8", {}.__getitem__)
    with CoordinateGraph().edit() as e:
        names = [e.add(Linear(f"s{i * scopes // count}.{i}", size=number)).id for i in range(count)]
        for first, second in pairwise(names):
            e.connect(PassThrough((first,), (second,)))
    return e.graph


def test_a_schedule_adds_dimensions_and_edges():
    before = Gemm("bf16").graph()
    after = StreamK()(before)
    found = ChangedGraph.of(before.coordinates, after.coordinates)
    added = {name for name, (_, change) in found.dimensions.items() if change == "added"}
    assert added == set(after.coordinates.dimensions) - set(before.coordinates.dimensions)
    edges = [edge for edge, change in found.edges if change == "added"]
    assert len(edges) == len(after.coordinates.edges) - len(before.coordinates.edges)
    back = ChangedGraph.of(after.coordinates, before.coordinates)
    assert {n for n, (_, change) in back.dimensions.items() if change == "removed"} == added
    assert sum(change == "removed" for _, change in back.edges) == len(edges)


def test_an_edge_whose_fields_change_is_changed():
    number = parse_expression("8", {}.__getitem__)
    graphs = []
    for size in (2, 4):
        whole = parse_expression(str(size), {}.__getitem__)
        with CoordinateGraph().edit() as e:
            e.add(Linear("a", size=number))
            e.add(Linear("b", size=number / whole))
            e.add(Linear("c", size=whole))
            e.connect(Tile(("a",), ("b", "c")))
        graphs.append(e.graph)
    found = ChangedGraph.of(*graphs)
    assert {n: c for n, (_, c) in found.dimensions.items()} == {
        "a": "same",
        "b": "changed",
        "c": "changed",
    }
    assert [change for _, change in found.edges] == ["same"]


def test_small_graphs_show_every_dimension():
    graph = chain(20)
    found = ChangedGraph.of(graph, graph)
    svg = found.draw().svg("small")
    assert not found.large
    assert all(f">{name}<" in svg for name in graph.dimensions)


def test_large_graphs_show_a_box_for_each_scope():
    graph = chain(MOST_EDGES + 60)
    found = ChangedGraph.of(chain(MOST_EDGES + 40), graph)
    assert found.large
    svg = found.draw().svg("large")
    assert svg.count('class="box') == 4
    assert ">s0.…<" in svg
    assert "65 dimensions, 64 edges" in svg
    assert found.scopes == ("s0", "s1", "s2", "s3")
    one = found.draw_scope("s1").svg("one")
    own = [name for name in graph.dimensions if name.startswith("s1.")]
    assert all(f">{name}<" in one for name in own)
    assert ">s3.250<" not in one
