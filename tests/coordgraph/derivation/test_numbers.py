"""`graph.explain` derives the indices that a graph's edges compute, for all edges and schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sympy import Expr, Integer

from coordgraph import AmbiguousPath, CoordinateGraph, Gemm, KernelGraph
from coordgraph.coordinates.edges import EDGES, Edge, Law
from coordgraph.coordinates.traverse import Direction, solve
from coordgraph.integers import equal, evaluate, select, symbols_of
from coordgraph.parameters import Parameters
from coordgraph.tables import ANY, SORTS, SUMS, Table, place_of
from passes import Pipeline
from passes.lowering import LowerToHopper, LowerToTensorCores
from passes.lowering.host import LowerToHost
from tests.coordgraph.coordinates.strategies import (
    STRATEGIES,
    Case,
    graph_of,
    table_of,
    trial_of,
)
from tests.coordgraph.derivation.replay import replayed
from tests.passes.schedules import ORDERED, parameters, problems, symbolic
from tests.support.sampling import quick_cases

OURS = [name for name, kind in EDGES.items() if kind.__module__.startswith("coordgraph.")]


def declared(edge: Edge, name: str, entries: tuple[int, ...]) -> Table:
    """Declare the table `name` that `edge` reads, with the bounds and order of its `entries`."""
    length, most = Integer(len(entries)), Integer(max(entries))
    if type(edge).__name__ != "Permute":
        return Table(name, length, most, rule=ANY if type(edge).__name__ == "Gather" else SUMS)
    ranks: Expr = Integer(0)
    for rank, position in enumerate(entries):
        ranks = select(equal(place_of(name), position), Integer(len(entries) - rank), ranks)
    return Table(name, length, most, ranks, rule=SORTS)


def kernel_of(case: Case) -> tuple[KernelGraph, dict[str, Sequence[int]]]:
    """(a kernel graph with the edge of `case`, by name the tables that a launch must pass)."""
    edge, tables = case[0], table_of(case[0])
    found = tuple(declared(edge, name, entries) for name, entries in tables.items())
    graph = KernelGraph(Gemm(), graph_of(case), parameters=Parameters(tables=found))
    return graph, {t.name: tables[t.name] for t in found if not t.derived}


@quick_cases(1)
@pytest.mark.parametrize("forward", [False, True], ids=["reverse", "forward"])
@pytest.mark.parametrize("name", OURS)
def test_derivations_of_every_edge(name: str, forward: bool):
    @settings(max_examples=12)
    @given(STRATEGIES[name](), st.data())
    def law(case: Case, data: st.DataObject):
        edge, trial = case[0], trial_of(case)
        if forward and Law.REVERSE_UNDOES_FORWARD not in edge.laws:
            return
        graph, given_ = kernel_of(case)
        points = [*(trial.upstream if forward else trial.downstream)]
        assume(points)
        point = data.draw(st.sampled_from(points))
        expected = trial.forward(point) if forward else trial.reverse(point)
        here, there = edge.downstream, edge.upstream
        if forward:
            here, there = there, here
        at = {**dict(zip(here, point, strict=True)), **given_}
        for wanted, value in zip(there, expected, strict=True):
            found = graph.explain(wanted, at=at, forward=forward)
            assert replayed(found, table_of(edge))[0] == value == found.value
            assert f"{wanted} = {value}\n" in found.text()

    law()


def point_of(
    data: st.DataObject, graph: CoordinateGraph, names: Mapping[str, Any], values: Mapping[str, int]
) -> dict[str, int]:
    """A random index for each dimension in `names`; `values` has the parameters in their sizes.

    An index is less than the dimension's size, or at most 3 if the size is not known.
    """

    def last(name: str) -> int:
        size = graph.size(name)
        if size is None or not {s.name for s in symbols_of(size)} <= set(values):
            return 3
        return int(evaluate(size, values)) - 1

    assume(all(last(name) >= 0 for name in names))
    return {name: data.draw(st.integers(0, last(name)), name) for name in names}


def check(graph: KernelGraph, wanted: str, values: dict[str, int], data: st.DataObject) -> None:
    """At a random point, `graph.explain` and the path solver `solve` give equal indices and guards.

    The formulas that `explain` prints evaluate to the same values.
    """
    coordinates = graph.coordinates
    symbols = graph.explain(wanted)
    known = point_of(data, coordinates, symbols.given, graph.parameters.evaluate(values))
    exact = {name: Integer(index) for name, index in known.items()}
    solution = solve(coordinates, Direction.REVERSE, exact, [wanted])
    numbers = graph.parameters.evaluate(values)
    found = graph.explain(wanted, at={**known, **values})
    value, inside = replayed(found, {})
    assert value == evaluate(solution.values[0], numbers)
    assert inside == bool(evaluate(solution.guard, numbers))
    assert value == evaluate(symbols.expression, {**numbers, **known})
    assert inside == bool(evaluate(symbols.guard, {**numbers, **known}))


@pytest.mark.slow
@settings(max_examples=25)
@given(st.sampled_from(ORDERED), problems(), st.data())
def test_derivations_of_schedules(case: tuple[str, str], problem: Any, data: st.DataObject):
    graph = symbolic(*case)
    names = [d.id for d in graph.coordinates if graph.coordinates.edges_below(d)]
    wanted = data.draw(st.sampled_from(names))
    try:
        graph.explain(wanted)
    except AmbiguousPath:
        assume(False)
    check(graph, wanted, {"read_c": 0, **parameters(graph, problem)}, data)


LOWERINGS = {"host": LowerToHost(), "sm_80": LowerToTensorCores(), "hopper": LowerToHopper()}


@cache
def lowered(pipeline: str, target: str) -> KernelGraph:
    gemm = Gemm("f16", transpose_b=True)
    tile = (128, 128, 64) if target == "hopper" else (64, 64, 32)
    return LOWERINGS[target](Pipeline.parse(pipeline)(gemm.graph(tile)))


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.sampled_from(["stream-k", "two-tile-stream-k", "data-parallel"]),
    st.sampled_from([*LOWERINGS]),
    st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300), st.integers(1, 9)),
    st.data(),
)
def test_derivations_of_lowered_graphs(
    pipeline: str, target: str, problem: tuple[int, int, int, int], data: st.DataObject
):
    graph = lowered(pipeline, target)
    names = [d.id for d in graph.coordinates if graph.coordinates.edges_below(d)]
    wanted = data.draw(st.sampled_from(names))
    try:
        graph.explain(wanted)
    except AmbiguousPath:
        assume(False)
    check(graph, wanted, {"read_c": 0, **parameters(graph, problem)}, data)
