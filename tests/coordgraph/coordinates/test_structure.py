"""A coordinate graph is stored as a networkx graph; queries on it give the right dimensions."""

from __future__ import annotations

import pickle
import subprocess
import sys

import networkx as nx
import pytest
from networkx.algorithms import bipartite
from sympy import Integer

from coordgraph import CoordinateGraph, Gemm, KernelGraph, VerifyError
from coordgraph.coordinates.dimensions import Linear, MacroTileNumber
from coordgraph.coordinates.edges import Flatten, Join, PassThrough, Split, Tile
from coordgraph.coordinates.structure import Structure
from passes import LongestFirst, Pipeline, StreamK

GRAPHS = {
    "gemm": Gemm().graph(),
    "batched": Gemm(batched=True, transpose_b=True).graph(),
    "groups of k": LongestFirst()(Gemm(grouped=True, group_axis="k").graph()),
    "lists": Gemm(grouped=True, group_axis="mnk").graph(),
    "scheduled": StreamK(workgroups=8)(Gemm().graph(tile=(64, 64, 32))),
    "ordered": Pipeline.parse("rasterize{width=4},split-k{splits=4}")(Gemm().graph()),
}
by_graph = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)


def diamond() -> CoordinateGraph:
    """A graph with two paths from dimension `top` to `end`, and a dimension without edges."""
    with CoordinateGraph().edit() as e:
        for name, size in {"top": 12, "a": 3, "b": 4, "flat": 12, "alone": 1, "end": 12}.items():
            e.add(Linear(name, Integer(size)))
        e.connect(Tile("top", ("a", "b")))
        e.connect(Flatten(("a", "b"), "flat"))
        e.connect(PassThrough("flat", "end"))
    return e.graph


@by_graph
def test_nodes_and_arcs_are_the_dimensions_edges_and_operands(graph: KernelGraph):
    coordinates, held = graph.coordinates, graph.coordinates.nx
    dimensions = [node for node, side in held.nodes(data="bipartite") if side == 0]
    assert dimensions == list(coordinates.dimensions)
    assert all(held.nodes[name]["dimension"] is coordinates[name] for name in dimensions)
    assert bipartite.is_bipartite_node_set(held.to_undirected(), dimensions)
    for number, edge in enumerate(coordinates.edges):
        assert held.nodes[number]["edge"] is edge
        for side, arcs in (
            (edge.upstream, [(u, at) for u, _, at in held.in_edges(number, data="operands")]),
            (edge.downstream, [(d, at) for _, d, at in held.out_edges(number, data="operands")]),
        ):
            assert tuple(name for _, name in sorted((i, n) for n, at in arcs for i in at)) == side


def test_a_dimension_may_be_several_operands():
    with CoordinateGraph().edit() as e:
        e.add(Linear("above", Integer(10)))
        e.add(Linear("below", Integer(4)))
        e.connect(Split("above", ("below", "below"), (1, 2)))
    assert e.graph.nx.edges[0, "below"]["operands"] == (0, 1)
    assert e.graph.edges_above("below") == e.graph.edges


@by_graph
def test_nobody_changes_the_graph_that_is_held(graph: KernelGraph):
    for held in (graph.coordinates.nx, graph.control.nx):
        assert nx.is_frozen(held)
        with pytest.raises(nx.NetworkXError, match="Frozen graph"):
            held.add_edge("a", "b")


@by_graph
def test_edges_in_the_order_of_adding(graph: KernelGraph):
    coordinates = graph.coordinates
    for name in coordinates.dimensions:
        below = tuple(e for e in coordinates.edges if name in e.upstream)
        above = tuple(e for e in coordinates.edges if name in e.downstream)
        assert coordinates.edges_below(name) == below
        assert coordinates.edges_above(name) == above


@by_graph
def test_below_and_above_are_what_steps_along_edges_reach(graph: KernelGraph):
    coordinates = graph.coordinates
    steps = {(u, d) for e in coordinates.edges for u in e.upstream for d in e.downstream}
    reached = nx.transitive_closure(nx.DiGraph(steps)).edges
    for name in coordinates.dimensions:
        assert coordinates.below(name) == {d for u, d in reached if u == name}
        assert coordinates.above(name) == {u for u, d in reached if d == name}


@by_graph
def test_dangling_dimensions_come_in_the_order_of_a_walk_from_above(graph: KernelGraph):
    coordinates, seen = graph.coordinates, dict[str, None]()

    def walk(name: str) -> None:
        if name not in seen:
            seen[name] = None
            for edge in coordinates.edges_below(name):
                for below in edge.downstream:
                    walk(below)

    for name in coordinates.dimensions:
        if not coordinates.edges_above(name):
            walk(name)
    kinds = (n for n in seen if isinstance(coordinates[n], MacroTileNumber))
    expected = [name for name in kinds if not coordinates.edges_below(name)]
    assert [d.id for d in coordinates.dangling(MacroTileNumber)] == expected


def test_layers_go_from_the_tensors_down():
    assert diamond().layers() == (("top", "alone"), ("a", "b"), ("flat",), ("end",))


def test_a_cycle_is_named_by_its_dimensions():
    edges = (PassThrough("a", "b"), PassThrough("b", "c"), Join(("c",), "a", (1,)))
    round_about = Structure([Linear(name) for name in "abc"], edges)
    assert not round_about.is_acyclic()
    assert sorted(round_about.cycle()) == ["a", "b", "c"]
    assert diamond().cycle() == ()
    e = CoordinateGraph().edit()
    for name in "abc":
        e.add(Linear(name))
    for edge in edges:
        e.connect(edge)
    with pytest.raises(VerifyError, match="form a cycle: "):
        e.finish()


def test_an_edit_that_changes_nothing_returns_the_graph():
    graph = diamond()
    with graph.edit() as e:
        assert e.finish() is graph
        e.add(Linear("more"))
        first = e.finish()
        assert first is not graph
        assert e.finish() is first
        e.remove("more")
        e.remove("alone")
        e.add(graph["alone"])  # the dimension without edges, which `diamond` adds earlier
    assert e.graph == graph
    assert [*e.graph.dimensions][-2:] == ["end", "alone"]


@pytest.mark.slow
def test_a_pickled_graph_has_the_hash_of_its_process():
    """A pickled graph can be found in a set of the process that loads it.

    Hashes of strings differ between processes.
    """
    graph = diamond()
    assert hash(graph)
    script = (
        "import pickle, sys\n"
        "graph = pickle.load(sys.stdin.buffer)\n"
        "with graph.edit() as e: pass\n"
        "same = type(graph)(graph, graph.edges)\n"
        "sys.exit(0 if {graph} == {same} and graph.nx.number_of_nodes() == 9 else 1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(graph), check=False, timeout=120
    )
    assert done.returncode == 0


def test_the_control_graph():
    held, control = GRAPHS["scheduled"].control.nx, GRAPHS["scheduled"].control
    assert nx.is_arborescence(held)
    assert [held.nodes[number]["operation"] for number in held] == list(control.root.walk())
    assert list(nx.dfs_preorder_nodes(held, 0)) == sorted(held)
    kinds = {(start, end): kind for start, end, kind in control.edges}
    assert kinds == nx.get_edge_attributes(held, "kind")
    assert [end for _, end, _ in control.edges] == list(range(1, len(held)))
