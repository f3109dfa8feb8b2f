"""The pinned order of additions depends on n and k only; `plans` lists plans with this order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from coordgraph import Gemm
from passes.choosing import Plan, constants, constants_of, pinned_orders, rank
from passes.choosing.candidates import candidates
from passes.choosing.order_in_graph import why_not
from passes.choosing.pinned_orders import (
    ENOUGH,
    ROWS,
    Prediction,
    pinned_order,
    predict,
)
from passes.choosing.plan_table import Table
from passes.choosing.summation_order import SummationOrder
from tests.support.sampling import quick_cases

UNIT = 64
LAYERS = ((6144, 4096), (4096, 14336), (1024, 4096), (512, 7168), (24, 200))


def problem(n: int, k: int, m: int | None = None) -> Gemm:
    return Gemm("bf16", m=m, n=n, k=k, transpose_b=True)


def two_segments(k: int) -> SummationOrder:
    return SummationOrder.of("wgmma", k, UNIT, 2)


@pytest.mark.parametrize(
    ("k", "segments", "borders"),
    [
        (4096, 1, (0, 4096)),
        (4000, 1, (0, 4032)),
        (4096, 2, (0, 2048, 4096)),
        (4160, 2, (0, 2112, 4224)),
        (1, 1, (0, 64)),
    ],
)
def test_borders_are_multiples_of_the_unit(k: int, segments: int, borders: tuple[int, ...]):
    order = SummationOrder.of("wgmma", k, UNIT, segments)
    if borders[-1] > order.depth:
        borders = (*borders[:-1], order.depth)
    assert order.borders == borders
    assert order.segments == segments
    assert all(a % UNIT == 0 and a < b for a, b in pairwise(borders))


def test_the_order_does_not_depend_on_m_or_the_number_of_products():
    for n, k in LAYERS:
        orders = {pinned_order(problem(n, k, m), "wgmma", UNIT) for m in (None, 1, 77, 8192)}
        batch = Gemm("bf16", n=n, k=k, transpose_b=True, batched=True)
        assert orders == {pinned_order(batch, "wgmma", UNIT)}


def test_few_columns_and_deep_k_get_segments():
    assert pinned_order(problem(6144, 4096), "wgmma", UNIT).segments == 1
    assert pinned_order(problem(512, 7168), "wgmma", UNIT).segments == 2
    # k is not divided for mma.sync, which the cost model does not cover, nor for groups, whose
    # number of tiles the host does not know.
    assert pinned_order(problem(512, 7168), "mma.sync", 32).segments == 1
    groups = Gemm("bf16", n=512, k=7168, grouped=True)
    assert pinned_order(groups, "wgmma", UNIT).segments == 1


@pytest.mark.slow
def test_predictions_are_shares_of_the_default_speed():
    whole, *_ = predict(problem(4096, 4096), UNIT)
    assert isinstance(whole, Prediction)
    assert [*whole.ratios] == [*ROWS]
    assert whole.least >= ENOUGH
    assert whole.least <= whole.mean <= max(whole.ratios.values())


@quick_cases(2)
@pytest.mark.parametrize(("n", "k"), LAYERS)
@pytest.mark.parametrize("m", [1, 100, 4096])
def test_every_ranked_plan_adds_in_the_order(n: int, k: int, m: int):
    size = problem(n, k, m)
    order = pinned_order(size, "wgmma", UNIT)
    found = rank(size, count=6, order=order)
    assert len(found) > 2
    for choice in found:
        assert why_not(order, choice.plan, size) is None, choice.plan


@pytest.mark.slow
def test_plans_for_two_segments_differ_in_tile_and_not_in_order():
    size = problem(1024, 4096, 300)
    order = two_segments(4096)
    table = candidates(size, constants_of(), order=order)
    tiles = {table.plan(row).tile for row in range(0, len(table), 7)}
    assert len(tiles) > 5
    for row in range(0, len(table), 29):
        plan = table.plan(row)
        assert why_not(order, plan, size) is None, plan
        assert why_not(SummationOrder.of("wgmma", 4096, UNIT), plan, size) is not None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("128x128x64 stream-k{owner=last} on 132", "it is not batch invariant"),
        ("128x128x64 split-k{splits=3}", "it adds"),
        ("128x128x64 data-parallel", "it adds k tiles 0..63"),
        ("128x128x64 split-k{reduction=scatter}", "(zero)"),
        ("128x128x64 split-k{splits=5,reduction=atomic}", "atomically"),
        ("128x128x128@c1x1x2 split-k", "divide k"),
        ("64x64x384 split-k", "do not end at 4096"),
    ],
)
def test_plans_with_another_order_are_refused_in_words(text: str, part: str):
    reason = why_not(two_segments(4096), Plan.parse(text), problem(1024, 4096, 128))
    assert reason is not None
    assert part in reason


def test_a_tile_whose_border_is_inside_a_k_tile_has_another_order():
    order = SummationOrder.of("wgmma", 4160, UNIT, 2)
    size = problem(1024, 4160, 128)
    assert why_not(order, Plan.parse("128x128x64 split-k"), size) is None
    assert why_not(order, Plan.parse("64x64x128 split-k"), size) is not None


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("k", [4160, 1920])
def test_the_columns_of_a_table_agree_with_the_graphs(segments: int, k: int):
    """Whether a plan adds along k in a given order is found equally from its options and its graph.

    `SummationOrder.holds` reads the options of plans in a table, `why_not` the graph of one plan.
    k = 1920 is a multiple of both 64 and 128, but split-k divides it at different indices if k
    tiles have 64 and if they have 128 elements.
    """
    size = problem(512, k, 64)
    order = SummationOrder.of("wgmma", k, UNIT, segments)
    plans = [
        Plan.parse(text)
        for text in (
            "64x64x64 data-parallel",
            "64x64x128 data-parallel",
            "64x64x64 split-k",
            "64x64x128 split-k",
            "64x64x128@c1x1x2 data-parallel",
            "128x128x64 stream-k{owner=last} on 132",
            "64x64x64 data-parallel{persistent=true} on 132",
        )
    ]
    held = order.holds(Table.of([(size, plan) for plan in plans]))
    assert isinstance(held, np.ndarray)
    assert held.any()
    assert held.tolist() == [why_not(order, plan, size) is None for plan in plans]


def test_orders_say_what_they_are():
    assert str(two_segments(4096)) == (
        "2 segments of k with the borders 0, 2048, 4096, added by wgmma, their sums added in the "
        "order of k"
    )
    assert two_segments(4096).pipeline == "split-k"
    assert SummationOrder.of("", 30, 16).pipeline == "data-parallel"


@pytest.mark.slow
def test_a_calibration_does_not_change_the_order(monkeypatch: pytest.MonkeyPatch):
    """`pinned_order` reads the library's constants, not calibrated ones in the user's folder."""

    def known_devices() -> None:
        raise AssertionError("the constants of a calibration are read")

    before = [pinned_order(problem(n, k), "wgmma", UNIT) for n, k in LAYERS]
    monkeypatch.setattr(constants, "known_devices", known_devices)
    pinned_orders.forget()
    assert [pinned_order(problem(n, k), "wgmma", UNIT) for n, k in LAYERS] == before
