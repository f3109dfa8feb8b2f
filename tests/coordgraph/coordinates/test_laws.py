"""Every registered edge obeys its size rule, its guard and its declared laws at every index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Expr, Integer
from sympy.logic.boolalg import Boolean

from coordgraph import NotInvertible, VerifyError
from coordgraph.coordinates import check_laws
from coordgraph.coordinates.edges import EDGES, Edge, Law, Sizes
from coordgraph.coordinates.laws import Trial
from coordgraph.integers import Ranges, equal, evaluate, floor_mod
from tests.coordgraph.coordinates.strategies import (
    STRATEGIES,
    Case,
    graph_of,
    table_of,
    trial_of,
)
from tests.support.sampling import quick_cases

OURS = {name: kind for name, kind in EDGES.items() if kind.__module__.startswith("coordgraph.")}


def reads_table(kind: type[Edge]) -> bool:
    """True if an edge of this class reads a table, whose entries are known only at launch."""
    return any(f.name == "table" for f in fields(kind))


def one_way(kind: type[Edge]) -> bool:
    """Whether an edge has no forward formula, so that no law can hold for it."""
    edge = kind("u0", "d0", "t") if kind.arity == (1, 1) and reads_table(kind) else None
    try:
        sizes = Sizes((None,), (None,))
        return edge is not None and not edge.forward([Integer(0)], sizes, Ranges())
    except NotInvertible as error:
        return "ask for the reverse direction" in str(error)


every_edge = pytest.mark.parametrize("name", OURS)


few = settings(max_examples=30)


@every_edge
def test_every_edge_declares_laws_and_has_a_strategy(name: str):
    edge = EDGES[name]
    assert edge.laws or one_way(edge), f"{name} declares no law"
    assert all(isinstance(law, Law) for law in edge.laws)
    assert edge.laws == edge.__dict__["laws"], f"{name} inherits its laws"
    assert name in STRATEGIES, f"{name} has no strategy in tests/coordgraph/coordinates"
    assert edge.__doc__
    assert edge.__doc__.count("`") >= 2, f"{name} does not give its formulas"


@quick_cases(2)
@pytest.mark.parametrize("examples", [8, pytest.param(150, marks=pytest.mark.slow)])
@every_edge
def test_every_edge_keeps_its_laws(name: str, examples: int):
    """The size rule, the guard and the declared laws of each kind of edge hold at every index."""

    @settings(max_examples=examples)
    @given(STRATEGIES[name]())
    def law(case: Case):
        assert list(trial_of(case).problems()) == []

    law()


def by_id(case: Case) -> dict[str, int]:
    edge, above, below = case
    return dict(zip((*edge.upstream, *edge.downstream), (*above, *below), strict=True))


@few
@given(st.sampled_from(["Tile", "Sunder", "Ragged"]).flatmap(lambda name: STRATEGIES[name]()))
def test_laws_are_checked_by_name(case: Case):
    check_laws(case[0], by_id(case), table_of(case[0]))


@dataclass(frozen=True)
class Wrong(Edge):
    """`Wrong(I; O)`: `i = o`, but with a deliberate error, which the field `fault` selects."""

    fault: str = ""

    arity = (1, 1)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        return (equal(sizes.upstream[0] or 0, sizes.downstream[0] or 0),)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (index,) = indices
        assert index is not None
        return (index + 1,) if self.fault == "guard" else (index,)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        (index,) = indices
        if self.fault == "guard":
            return (index - 1,)
        return (floor_mod(index + 1, 4),) if self.fault == "forward" else (index,)


@pytest.mark.parametrize(
    ("fault", "sizes", "why"),
    [
        ("size", {"i": 4, "o": 3}, r"sizes \(4,\) upstream and \(3,\) downstream break"),
        ("size", {"i": 4, "o": 3}, r"upstream index \(3,\) for no downstream index"),
        (
            "guard",
            {"i": 4, "o": 4},
            r"the guard holds for the upstream index \(4,\), which is outside the sizes \(4,\)",
        ),
        (
            "forward",
            {"i": 4, "o": 4},
            r"reverse\(forward\(u\)\) == u fails at u = \(0,\): forward gives \(1,\), and",
        ),
        ("forward", {"i": 4}, "the size of 'o' = None is not a whole number"),
    ],
)
def test_what_is_wrong_with_an_edge_is_said(fault: str, sizes: dict[str, int], why: str):
    with pytest.raises(VerifyError, match=why) as caught:
        check_laws(Wrong("i", "o", fault), sizes)
    assert len(caught.value.problems) <= 5


def test_the_other_law_is_checked_too():
    trial = Trial(Wrong("i", "o", "forward"), (4,), (4,))
    laws = [problem for problem in trial.problems() if "forward(reverse(d)) == d" in problem]
    assert "at d = (0,): reverse gives (0,), and forward of (0,) gives (1,)" in laws[0]
    assert len(laws) == 4


@quick_cases(2)
@every_edge
def test_formulas_with_symbols_agree_with_formulas_of_numbers(name: str):
    """For each kind of edge, the simplified symbolic formulas of `forward` and of `reverse`,
    evaluated at an index, equal what `forward` and `reverse` compute from the numbers directly.
    """

    @settings(max_examples=6)
    @given(STRATEGIES[name]())
    def law(case: Case):
        edge, trial, graph = case[0], trial_of(case), graph_of(case)
        if Law.REVERSE_UNDOES_FORWARD in edge.laws or Law.FORWARD_UNDOES_REVERSE in edge.laws:
            there = graph.forward(edge.upstream, edge.downstream)
            for indices in reachable(trial):
                values = {**dict(zip(edge.upstream, indices, strict=True)), **table_of(edge)}
                found = tuple(int(evaluate(value, values)) for value in there)
                assert found == trial.forward(indices)
        back = graph.reverse(edge.downstream, edge.upstream)
        for indices in trial.downstream:
            values = {**dict(zip(edge.downstream, indices, strict=True)), **table_of(edge)}
            assert tuple(int(evaluate(v, values)) for v in back) == trial.reverse(indices)

    law()


def reachable(trial: Trial) -> set[tuple[int, ...]]:
    """The upstream indices that a downstream index maps to; strides of a `Split` may skip some."""
    if Law.REVERSE_UNDOES_FORWARD in trial.edge.laws:
        return set(trial.upstream)
    return {trial.reverse(below) for below in trial.downstream}


@quick_cases(7)
@pytest.mark.parametrize("name", [name for name, kind in OURS.items() if not reads_table(kind)])
def test_sizes_that_break_the_rule_are_refused(name: str):
    @few
    @given(STRATEGIES[name]())
    def law(case: Case):
        edge, above, below = case
        graph_of(case)
        # The upstream size is larger than the downstream indices can represent.
        broken = (edge, (above[0] + 10**6, *above[1:]), below)
        with pytest.raises(VerifyError, match="break its size rule"):
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
    with pytest.raises(VerifyError, match=f"{side} operands, but {name} takes"):
        edge(**given_)


@few
@given(STRATEGIES["Sunder"]())
def test_sunder_finds_the_segment_of_every_index(case: Case):
    trial = trial_of(case)
    *segments, count = case[2]
    assert len(segments) == count
    for selector, size in enumerate(segments):
        for i in range(size):
            below = [0] * count
            below[selector] = i
            (index,) = trial.reverse((*below, selector))
            assert index == sum(segments[:selector]) + i
            found = trial.forward((index,))
            assert found[-1] == selector
            assert found[selector] == i
