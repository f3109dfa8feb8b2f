"""Every registered edge keeps its laws, its size rule and its guard, at every index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import pytest
from hypothesis import given, settings
from sympy import Expr, Integer

from coordgraph import VerifyError
from coordgraph.coordinates.edges import EDGES, Edge, Law, Sunder
from coordgraph.integers import Ranges, evaluate
from tests.coordgraph.coordinates.strategies import (
    STRATEGIES,
    Case,
    every_index,
    graph_of,
    sizes_of,
    table_of,
    upstream_indices,
)

OURS = {name: kind for name, kind in EDGES.items() if kind.__module__.startswith("coordgraph.")}


def reads_table(kind: type[Edge]) -> bool:
    """Sizes of segments are data then: nothing can be wrong with them before a launch."""
    return any(f.name == "table" for f in fields(kind))


every_edge = pytest.mark.parametrize("name", OURS)


def promising(law: Law) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [n for n, edge in OURS.items() if law in edge.laws])


few = settings(max_examples=30)


def numbers(values: Sequence[Expr], edge: Edge) -> tuple[int, ...]:
    return tuple(int(evaluate(value, table_of(edge))) for value in values)


def forward(case: Case, indices: Sequence[int]) -> tuple[int, ...]:
    found = case[0].forward([Integer(i) for i in indices], sizes_of(case), Ranges())
    return numbers(found, case[0])


def reverse(case: Case, indices: Sequence[int]) -> tuple[int, ...]:
    found = case[0].reverse([Integer(i) for i in indices], sizes_of(case), Ranges())
    return numbers(found, case[0])


def inside(case: Case, below: Sequence[int]) -> bool:
    """Whether the guard holds for reversed downstream indices."""
    edge, sizes = case[0], sizes_of(case)
    indices = [Integer(i) for i in below]
    above = edge.reverse(indices, sizes, Ranges())
    guards = edge.guard(above, indices, sizes)
    return all(bool(evaluate(part, table_of(edge))) for part in guards)


@every_edge
def test_every_edge_declares_laws_and_has_a_strategy(name: str):
    edge = EDGES[name]
    assert edge.laws, f"{name} declares no law"
    assert all(isinstance(law, Law) for law in edge.laws)
    assert edge.laws == edge.__dict__["laws"], f"{name} inherits its laws"
    assert name in STRATEGIES, f"{name} has no strategy in tests/coordgraph/coordinates"
    assert edge.__doc__
    assert edge.__doc__.count("`") >= 2, f"{name} does not give its formulas"


@promising(Law.REVERSE_UNDOES_FORWARD)
def test_reverse_undoes_forward(name: str):
    @few
    @given(STRATEGIES[name]())
    def law(case: Case):
        for above in upstream_indices(case):
            assert reverse(case, forward(case, above)) == above

    law()


@promising(Law.FORWARD_UNDOES_REVERSE)
def test_forward_undoes_reverse(name: str):
    @few
    @given(STRATEGIES[name]())
    def law(case: Case):
        for below in every_index(case[2]):
            if inside(case, below):
                assert forward(case, reverse(case, below)) == below

    law()


@every_edge
def test_guarded_indices_are_inside_and_cover_the_dimension(name: str):
    """What the guard lets through is inside upstream; a law makes every index reachable."""

    @few
    @given(STRATEGIES[name]())
    def law(case: Case):
        edge, _, below = case
        # Sunder reads one segment; the indices of the others may be anything.
        sizes = tuple(max(size, 1) for size in below) if isinstance(edge, Sunder) else below
        reached = set[tuple[int, ...]]()
        for indices in every_index(sizes):
            if isinstance(edge, Sunder) and indices[indices[-1]] >= below[indices[-1]]:
                continue
            if inside(case, indices):
                reached.add(reverse(case, indices))
        assert reached <= set(upstream_indices(case))
        if Law.REVERSE_UNDOES_FORWARD in edge.laws:
            assert reached == set(upstream_indices(case))

    law()


@every_edge
def test_formulas_with_symbols_agree_with_formulas_of_numbers(name: str):
    """Simplified expressions, in both directions, at every index."""

    @settings(max_examples=15)
    @given(STRATEGIES[name]())
    def law(case: Case):
        edge, _, below = case
        graph = graph_of(case)
        if Law.REVERSE_UNDOES_FORWARD in edge.laws or Law.FORWARD_UNDOES_REVERSE in edge.laws:
            there = graph.forward(edge.upstream, edge.downstream)
            for indices in reachable(case):
                values = {**dict(zip(edge.upstream, indices, strict=True)), **table_of(edge)}
                found = tuple(int(evaluate(value, values)) for value in there)
                assert found == forward(case, indices)
        back = graph.reverse(edge.downstream, edge.upstream)
        for indices in every_index(below):
            values = {**dict(zip(edge.downstream, indices, strict=True)), **table_of(edge)}
            assert tuple(int(evaluate(v, values)) for v in back) == reverse(case, indices)

    law()


def reachable(case: Case) -> set[tuple[int, ...]]:
    """Upstream indices; a Split's strides may leave gaps between them, where forward is void."""
    if Law.REVERSE_UNDOES_FORWARD in case[0].laws:
        return set(upstream_indices(case))
    return {reverse(case, below) for below in every_index(case[2])}


@pytest.mark.parametrize("name", [name for name, kind in OURS.items() if not reads_table(kind)])
def test_sizes_that_break_the_rule_are_refused(name: str):
    @few
    @given(STRATEGIES[name]())
    def law(case: Case):
        edge, above, below = case
        graph_of(case)
        # Upstream is larger than what the downstream indices can reach.
        broken = (edge, (above[0] + 10**6, *above[1:]), below)
        with pytest.raises(VerifyError, match="break its rule"):
            graph_of(broken)

    law()


@every_edge
@pytest.mark.parametrize("side", ["upstream", "downstream"])
def test_arity_is_checked(name: str, side: str):
    edge: type[Edge] = EDGES[name]
    count = edge.arity[side == "downstream"]
    counts = zip(("upstream", "downstream"), edge.arity, strict=True)
    given_ = {name: tuple(f"{name}{i}" for i in range(many or 1)) for name, many in counts}
    given_[side] = () if count is None else tuple(f"x{i}" for i in range(count + 1))
    with pytest.raises(VerifyError, match=f"{side} operands, {name} takes"):
        edge(**given_)


@few
@given(STRATEGIES["Sunder"]())
def test_sunder_finds_the_segment_of_every_index(case: Case):
    *segments, count = case[2]
    assert len(segments) == count
    for selector, size in enumerate(segments):
        for i in range(size):
            below = [0] * count
            below[selector] = i
            (index,) = reverse(case, (*below, selector))
            assert index == sum(segments[:selector]) + i
            found = forward(case, (index,))
            assert found[-1] == selector
            assert found[selector] == i
