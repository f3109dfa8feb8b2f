"""Rules for passes: errors that name the pass, copies of graphs, and orders of tiles."""

from __future__ import annotations

import copy
import pickle
import re
from itertools import product
from typing import Any

import pytest

from coordgraph import Gemm, ParseError, PassError, VerifyError
from coordgraph.interpreter import trace
from passes import (
    DataParallel,
    Grouped,
    HeterogeneousTiles,
    HybridStreamK,
    Pass,
    Pipeline,
    Rasterize,
    Reorder,
    SplitK,
    StreamK,
    TwoTileStreamK,
)
from tests.passes.schedules import ORDERED, ORDERS, SCHEDULES, symbolic
from tests.support.sampling import chosen, cover, quick_cases, words


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (DataParallel, {"persistent": True, "workgroups": 0}, "workgroups=0 is outside 1..65535"),
        (StreamK, {"workgroups": 0}, "workgroups=0 is outside 1..65535"),
        (StreamK, {"owner": "middle"}, "owner=middle is unknown; use one of first, last"),
        (TwoTileStreamK, {"owner": "middle"}, "owner=middle is unknown"),
        (TwoTileStreamK, {"first": "both"}, "first=both is unknown; use one of sk, dp"),
        (TwoTileStreamK, {"workgroups": 70000}, "workgroups=70000 is outside 1..65535"),
        (
            TwoTileStreamK,
            {"waves": "both"},
            "waves=both is unknown; use one of strided, contiguous",
        ),
        (TwoTileStreamK, {"least": 0}, "least=0 is outside 1..2147483647"),
        (StreamK, {"least": 2**31}, "least=2147483648 is outside 1..2147483647"),
        (StreamK, {"least_segment": 0}, "least_segment=0 is outside 1..2147483647"),
        (
            HybridStreamK,
            {"least_segment": 2**31},
            "least_segment=2147483648 is outside 1..2147483647",
        ),
        (
            StreamK,
            {"reduction": "none"},
            "reduction=none is unknown; use one of peers, tree, turnstile, scatter, atomic",
        ),
        (
            TwoTileStreamK,
            {"reduction": "x"},
            "reduction=x is unknown; use one of peers, tree, turnstile",
        ),
        (HybridStreamK, {"first": "both"}, "first=both is unknown; use one of sk, dp"),
        (HybridStreamK, {"waves": "x"}, "waves=x is unknown; use one of strided, contiguous"),
        (HybridStreamK, {"owner": "none"}, "owner=none is unknown; use one of first, last"),
        (SplitK, {"splits": 1}, "splits=1 is outside 2..65535; none takes the number from"),
        (SplitK, {"splits": 70000}, "splits=70000 is outside 2..65535"),
        (SplitK, {"owner": "middle"}, "owner=middle is unknown; use one of first, last"),
        (Reorder, {"group": 0}, "group=0 is outside 1..2147483647"),
        (Rasterize, {"width": 0}, "width=0 is outside 1..2147483647"),
        (Rasterize, {"along": "k"}, "along=k is unknown; use one of m, n"),
        (
            Rasterize,
            {"order": "peano"},
            "order=peano is unknown; use one of columns, hilbert, morton",
        ),
        (Grouped, {"groups": 0}, "groups=0 is outside 1..8"),
        (Grouped, {"groups": 9}, "groups=9 is outside 1..8"),
        (HeterogeneousTiles, {"workgroups": 0}, "workgroups=0 is outside 1..65535"),
        (HeterogeneousTiles, {"small_n": 0}, "small_n=0 is outside 1..2147483647"),
    ],
)
def test_options_are_checked_by_value(kind: type[Pass], options: dict[str, Any], why: str):
    with pytest.raises(PassError) as caught:
        kind(**options)
    assert str(caught.value).startswith(f"{kind.name} refuses: {why}")
    inside = ",".join(f"{name}={value}" for name, value in options.items()).replace("True", "true")
    with pytest.raises(ParseError, match=re.escape(why)):
        Pipeline.parse(f"{kind.name}{{{inside}}}")


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (DataParallel(workgroups=3), "workgroups=3 has no effect without persistent=true"),
        (Rasterize(order="hilbert", width=6), "width=6: a curve needs a power of two, 2 to 64"),
        (Rasterize(order="morton", width=1), "width=1: a curve needs a power of two"),
        (Rasterize(order="hilbert", width=128), "width=128: a curve needs a power of two"),
        (HeterogeneousTiles(small_m=48), "small_m=48 does not divide the macro tile's 128"),
        (
            HeterogeneousTiles(small_m=128, small_n=128),
            "small tiles of 128x128 are whole macro tiles: nothing is divided; set a smaller",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(step: Pass, why: str):
    graph = Gemm("f32").graph()
    assert why in (step.why_not(graph) or "")
    with pytest.raises(PassError, match="refuses") as caught:
        step(graph)
    assert step.refusal(graph) == str(caught.value)


@pytest.mark.parametrize(
    ("kind", "option", "value", "wanted"),
    [
        (StreamK, "workgroups", 2.5, "a whole number or None"),
        (StreamK, "workgroups", "3", "a whole number or None"),
        (StreamK, "workgroups", True, "a whole number or None"),
        (StreamK, "owner", None, "a string"),
        (DataParallel, "persistent", "yes", "True or False"),
        (DataParallel, "persistent", 1, "True or False"),
        (Reorder, "group", "a", "a whole number"),
        (HeterogeneousTiles, "small_m", "half", "a whole number or None"),
    ],
)
def test_options_of_the_wrong_type_are_refused(
    kind: type[Pass], option: str, value: object, wanted: str
):
    with pytest.raises(PassError) as caught:
        kind(**{option: value})
    assert str(caught.value) == f"{kind.name} refuses: {option} = {value!r} should be {wanted}"


def test_two_shapes_of_tiles_refuse_groups():
    graph = Gemm("f32", grouped=True).graph()
    with pytest.raises(PassError, match="each group begins at its own row"):
        HeterogeneousTiles()(graph)


def test_odd_tiles_have_no_halves():
    assert HeterogeneousTiles().small((12, 7, 5)) == (6, 7)
    assert "nothing is divided" in (HeterogeneousTiles().why_not(Gemm().graph((3, 5, 7))) or "")


@quick_cases(3)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_scheduled_graph_is_not_scheduled_again(name: str):
    step, problem, graph = SCHEDULES[name], Gemm("f32").graph(), symbolic(name)
    with pytest.raises(PassError, match="tied this graph to workgroups already") as caught:
        step(graph)
    assert step.refusal(graph) == str(caught.value)
    assert step.refusal(problem) is None


def test_sizes_that_no_index_holds_are_refused():
    most = 2**31 - 4096
    why = (
        r"^an index of this kernel reaches \d+, more than the allowed 2147483647; make the problem"
    )
    with pytest.raises(VerifyError, match=why):
        Gemm("f32", m=most, n=most, k=64).graph()


@quick_cases(3)
@pytest.mark.parametrize("name", cover(0, SCHEDULES, words))
def test_graphs_can_be_copied(name: str):
    """Graphs can be deep-copied and pickled, also after `verify` has cached proofs about sizes."""
    graph = symbolic(name)
    graph.verify()
    for other in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert other is not graph
        assert other == graph
        assert other.verify().pseudocode() == graph.pseudocode()


def test_nothing_to_swap_after_a_swap():
    graph = Reorder(swap=True)(Gemm("f32").graph())
    with pytest.raises(PassError, match="nothing to swap"):
        Reorder(swap=True)(graph)


@pytest.mark.parametrize(
    ("step", "order"),
    [
        (Reorder(), [0, 1, 2, 3, 4, 5]),
        (Reorder(swap=True), [0, 3, 1, 4, 2, 5]),
        (Reorder(group=2), [0, 2, 4, 1, 3, 5]),
        (Reorder(group=3), [0, 3, 1, 4, 2, 5]),
        (Reorder(swap=True, group=3), [0, 4, 3, 2, 1, 5]),
        (Reorder(group=4), [0, 4, 1, 5, 2, 3]),
    ],
    ids=str,
)
def test_the_order_in_which_tiles_are_visited(step: Reorder, order: list[int]):
    """The pass `step` visits 2 x 3 tiles in the order `order`, a list of row-major tile numbers."""
    graph = DataParallel()(step(Gemm("f32").graph((4, 4, 4))))
    found = trace(graph, {"m": 8, "n": 12, "k": 4})
    assert [3 * s.tile[0] + s.tile[1] for s in found.segments if not s.padding] == order


@quick_cases(5)
@pytest.mark.parametrize(
    ("step", "order"),
    [
        (Rasterize(width=1, snake=True), [0, 1, 2, 5, 4, 3, 6, 7, 8]),
        (Rasterize(width=1, along="n"), [0, 3, 6, 1, 4, 7, 2, 5, 8]),
        (Rasterize(width=2), [0, 3, 1, 4, 2, 5, 6, 7, 8]),
        (Rasterize(width=2, snake=True), [0, 3, 1, 4, 2, 5, 8, 7, 6]),
        (Rasterize(width=2, along="n"), [0, 1, 3, 4, 6, 7, 2, 5, 8]),
        (Rasterize(width=2, snake=True, along="n"), [0, 1, 3, 4, 6, 7, 8, 5, 2]),
        (Rasterize(), [0, 3, 6, 1, 4, 7, 2, 5, 8]),
        (Rasterize(width=2, order="hilbert"), [0, 3, 4, 1, 2, 5, 6, 7, 8]),
        (Rasterize(width=2, order="hilbert", along="n"), [0, 1, 4, 3, 6, 7, 2, 5, 8]),
        (Rasterize(width=2, order="morton"), [0, 3, 1, 4, 2, 5, 6, 7, 8]),
        (Rasterize(width=4, order="hilbert"), [0, 3, 6, 1, 4, 7, 2, 5, 8]),
        (Grouped(groups=2), [0, 2, 4, 6, 8, 1, 3, 5, 7]),
        (Grouped(groups=4), [0, 4, 8, 1, 5, 2, 6, 3, 7]),
        (Grouped(groups=8), [0, 8, 1, 2, 3, 4, 5, 6, 7]),
    ],
    ids=str,
)
def test_the_order_in_bands(step: Pass, order: list[int]):
    """The pass `step` visits 3 x 3 tiles in the order `order`, a list of row-major tile numbers."""
    graph = DataParallel()(step(Gemm("f32").graph((4, 4, 4))))
    found = trace(graph, {"m": 12, "n": 12, "k": 4})
    assert [3 * s.tile[0] + s.tile[1] for s in found.segments] == order
    assert not any(s.padding for s in found.segments)


def test_bands_need_a_row_and_a_column():
    graph = Reorder(swap=True)(Gemm("f32").graph())
    with pytest.raises(PassError, match="put rasterize before that pass"):
        Rasterize()(graph)


def test_bands_of_one_row_are_the_order_that_there_is():
    graph = Gemm("f32").graph()
    assert Rasterize(width=1)(graph) is graph
    assert Rasterize(width=1, along="n")(graph) is not graph


def test_one_group_is_the_order_that_there_is():
    graph = Gemm("f32").graph()
    assert Grouped(groups=1)(graph) is graph


def test_a_reorder_that_changes_nothing_returns_the_same_graph():
    graph = Gemm("f32").graph()
    assert Reorder()(graph) is graph


@quick_cases(15)
@pytest.mark.parametrize(("name", "order"), chosen(ORDERED, product(SCHEDULES, ORDERS)))
def test_scheduled_graphs_verify_and_remember_their_passes(name: str, order: str):
    graph = symbolic(name, order)
    assert graph.level == "scheduled"
    assert graph.verify() is graph
    assert graph.dangling == ()
    assert Pipeline.parse(",".join(graph.log)).passes == (*ORDERS[order], SCHEDULES[name])
