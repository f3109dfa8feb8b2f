"""The check `batch-invariance`: which schedules add k in an order that depends on n and k only."""

from __future__ import annotations

from typing import Any

import pytest

from coordgraph import Gemm, PassError, VerifyError, parse
from coordgraph import epilogue as ep
from coordgraph.interpreter.program import program
from coordgraph.kernel import KernelGraph
from coordgraph.verification import PROPERTIES, Outcome, Verdict
from coordgraph.verification.batch_invariance import depth_of_whole_sums
from coordgraph.verification.summation_orders import Products, Sum, Unordered, summation_orders
from passes import DataParallel, HeterogeneousTiles, Pipeline, SplitK, StreamK
from tests.passes.schedules import SCHEDULES, TILE
from tests.support.sampling import quick_cases

NAME = "batch-invariance"
WHOLE = ("data-parallel", "data-parallel{persistent=true}", "heterogeneous-tiles")
PRODUCTS = {
    "batch": {"batched": True},
    "groups along m": {"grouped": True},
    "groups along k": {"grouped": True, "group_axis": "k"},
    "list": {"grouped": True, "group_axis": "mnk"},
}


def scheduled(name: str, **gemm: object) -> KernelGraph:
    problem = Gemm(**{"dtype": "f32", **gemm}).graph(TILE)  # type: ignore[arg-type]
    return Pipeline.parse(name)(problem, verify="structure")


def verdict(graph: KernelGraph, **options: object) -> Verdict:
    return graph.check(checks=(NAME,), **options)[NAME]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WHOLE)
def test_one_loop_over_k_is_proved(name: str):
    found = verdict(scheduled(name))
    assert (found.outcome, found.method) == (Outcome.PROVED, "symbolic")


@pytest.mark.parametrize("reduction", ["turnstile", "peers", "tree", "scatter"])
def test_a_fixed_number_of_splits_with_an_ordered_reduction_holds(reduction: str):
    found = verdict(scheduled(f"split-k{{splits=3,reduction={reduction}}}"))
    assert found.outcome is Outcome.HOLDS
    assert len(found.launches) > 8


@quick_cases(3)
@pytest.mark.parametrize("name", [name for name in SCHEDULES if "stream-k" in name])
def test_borders_that_depend_on_the_tile_are_refuted(name: str):
    found = verdict(scheduled(name))
    assert found.outcome is Outcome.REFUTED, found
    (example,) = found.counterexamples
    assert example.launch is not None
    assert "the sum is" in example.problem


def test_atomic_additions_of_several_workgroups_are_refuted():
    found = verdict(scheduled("split-k{splits=3,reduction=atomic}"))
    (example,) = found.counterexamples
    assert "in any order" in example.problem
    # With two splits, only one partial sum is added to a slot of zeros, so there is one order.
    assert not verdict(scheduled("split-k{splits=2,reduction=atomic}")).refuted


def test_a_number_of_splits_that_depends_on_m_is_refuted():
    text = SplitK(splits=3)(Gemm("f32").graph(TILE)).text()
    share = next(line for line in text.splitlines() if "share" in line and "tiles_k" in line)
    wrong = parse(text.replace(share, share.replace("tiles_k", "min(tiles_k, tiles_k + tiles_m)")))
    # the changed formula contains m, but has the same value for every m
    assert not verdict(wrong).refuted
    wrong = parse(text.replace(share, share.replace("tiles_k + 2", "tiles_k + tiles_m + 1")))
    found = verdict(wrong)
    assert found.refuted, found
    (example,) = found.counterexamples
    assert example.problem.count("k tile") > 2


def test_balanced_shares_are_invariant_only_with_a_multiple_of_the_tiles():
    graph = scheduled("stream-k{reduction=scatter,shares=balanced}")
    assert verdict(graph).refuted


@quick_cases(1)
@pytest.mark.parametrize("problem", PRODUCTS)
def test_several_products(problem: str):
    held = verdict(scheduled("data-parallel{persistent=true}", **PRODUCTS[problem]))
    assert held.outcome in (Outcome.PROVED, Outcome.HOLDS)
    assert verdict(scheduled("stream-k", **PRODUCTS[problem])).refuted
    try:
        graph = scheduled("split-k{splits=3}", **PRODUCTS[problem])
    except PassError:
        return
    assert verdict(graph).outcome is Outcome.HOLDS


def test_sums_of_integers_are_exact_in_every_order():
    assert verdict(scheduled("stream-k", dtype="i8")).outcome is Outcome.PROVED


def test_given_sizes_are_varied_in_m_and_workgroups():
    sizes = {"m": 100, "n": 20, "k": 70}
    assert len(verdict(SplitK(splits=3)(Gemm("f32").graph(TILE)), sizes=sizes).launches) == 4
    found = verdict(StreamK()(Gemm("f32").graph(TILE)), sizes={**sizes, "workgroups": 1})
    # A launch with one workgroup divides no tile, so it adds in another order than larger launches.
    assert found.refuted


def test_only_named_checks_run():
    graph = DataParallel()(Gemm("f32").graph(TILE))
    assert NAME in PROPERTIES
    assert NAME not in {found.name for found in graph.check()}
    assert [found.name for found in graph.check(checks=("cover", NAME))] == ["cover", NAME]
    assert [found.name for found in graph.check(checks=NAME)] == [NAME]
    with pytest.raises(VerifyError, match="has no check 'speed'; its checks are sizes, cover"):
        graph.check(checks=("speed",))


def test_a_loop_that_leaves_out_a_k_tile_is_not_proved_whole():
    graph = DataParallel()(Gemm("f32").graph(TILE))
    depth = depth_of_whole_sums(program(graph))
    assert str(depth) == "tiles_k"
    text = graph.text()
    loop = next(line for line in text.splitlines() if "For " in line and "tiles_k" in line)
    for wrong in (loop.replace("tiles_k", "tiles_m"), loop.replace("tiles_k", "tiles_k - 1")):
        assert depth_of_whole_sums(program(parse(text.replace(loop, wrong)))) is None


def test_a_number_of_k_tiles_that_depends_on_m_is_not_proved():
    text = DataParallel()(Gemm("f32").graph(TILE)).text()
    wrong = text.replace("= (k + 3) // 4", "= (k + 3) // 4 + m // 1000")
    assert wrong != text
    assert depth_of_whole_sums(program(parse(wrong))) is None


def test_a_sum_whose_epilogue_is_elsewhere_is_not_proved():
    text = DataParallel()(Gemm("f32").graph(TILE)).text()
    (line,) = (line for line in text.splitlines() if line.strip().startswith("Epilogue"))
    assert depth_of_whole_sums(program(parse(text.replace(f"{line}\n", "")))) is None


def test_sums_are_commutative_and_not_associative():
    a, b, c = (Products(((k, k + 1),)) for k in range(3))
    assert Sum.of(a, b) == Sum.of(b, a)
    assert Sum.of(Sum.of(a, b), c) != Sum.of(a, Sum.of(b, c))
    assert a.then(1, 3).ranges == ((0, 3),)
    assert str(Unordered((a, b))) == "(k tile 0) + (k tile 1) in any order"


def test_the_order_of_every_output_tile():
    graph = SplitK(splits=2)(Gemm("f32").graph(TILE))
    values = graph.parameters.launch({"m": 5, "n": 4, "k": 17, "read_c": 0}, {})
    orders = summation_orders(program(graph), values)
    assert sorted(orders) == [(0, 0), (1, 0)]
    assert {str(term) for terms in orders.values() for term in terms} == {
        "(k tiles 0..2) + (k tiles 3..4)"
    }


@ep.epilogue(total=ep.output("m", reduce="sum"))
def with_totals(acc: Any) -> Any:
    return acc, acc


def test_the_columns_that_rows_reduce_are_reported():
    for name in ("data-parallel", "split-k{splits=3,reduction=turnstile}"):
        found = verdict(scheduled(name, epilogue=with_totals))
        assert not found.refuted
        assert f"; rows of D are reduced by tiles of {TILE[1]} columns" in found.detail
        assert "rows of D" not in verdict(scheduled(name)).detail


def test_tiles_that_reduce_different_numbers_of_columns_are_refuted():
    graph = Gemm("f32", epilogue=with_totals).graph((16, 16, 16))
    # The schedule refuses this graph, because the output has an element for each row and tile.
    wrong = HeterogeneousTiles(small_m=8, small_n=8).apply(graph)
    (example,) = verdict(wrong).counterexamples
    assert "tiles have 8 or 16 columns" in example.problem
