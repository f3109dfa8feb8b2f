"""`KernelFamily`, a few kernels that serve all problems of a range of sizes.

The tests cover which kernels are selected, that plans are chosen only among these kernels, and for
which sizes a family is made.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from coordgraph import Gemm, PassError
from passes import DataParallel
from passes.choosing import Plan, choices, constants_of, rank
from passes.choosing.candidates import candidates, fallback
from passes.choosing.drawn_sizes import MOST_OPERATIONS, SizeRange, draw_sizes
from passes.choosing.kernel_family import (
    KernelFamily,
    choose_family,
    exchanged,
    greedy,
    losses_of,
)
from passes.choosing.kernel_shape import Shape
from passes.choosing.model import cost

DEVICE = constants_of()
PROBLEM = Gemm("bf16", transpose_b=True)
RANGE = SizeRange((1, 4096), (256, 4096), (64, 30000))
SIZES = draw_sizes((RANGE,), 25, seed=3)


@pytest.fixture(scope="module")
def family() -> KernelFamily:
    return choose_family(PROBLEM, DEVICE, (RANGE,), 20, drawn=60)


def test_kernels_are_plans_without_grids_and_each_lowers_the_loss(family: KernelFamily):
    assert len(family) == len(family.losses) == 20
    assert len({plan.kernel for plan in family.kernels}) == 20
    assert all(plan.workgroups is None for plan in family.kernels)
    *lower, _ = family.losses  # the last kernel may be the fallback, which need not lower the loss
    assert all(more > less for more, less in pairwise(lower))
    assert 0 < family.losses[-1] < 0.25
    assert fallback() in family.kernels


def test_a_family_has_no_more_kernels_than_help():
    found = choose_family(
        PROBLEM, DEVICE, (SizeRange((512, 512), (512, 512), (512, 512)),), drawn=2
    )
    (best, *_) = rank(replace(PROBLEM, m=512, n=512, k=512), DEVICE)
    first, last = found.kernels
    # If every tile has an SM, the predicted time is the same with and without `persistent`.
    assert (first.tile, first.cluster) == (best.plan.tile, best.plan.cluster)
    assert last.kernel == str(fallback())
    assert found.losses == (0.0, 0.0)


def mean_of(ratios: NDArray[np.float32], chosen: list[int]) -> float:
    return float(ratios[:, chosen].min(1).mean())


def test_a_kernel_that_was_good_alone_is_exchanged():
    """`exchanged` replaces the best single column, if two other columns are better together.

    Column 0 is the best single column. Columns 1 and 2 together are better than column 0 together
    with any other column.
    """
    ratios = np.array([[0.3, 0.0, 1.0], [0.3, 1.0, 0.0], [0.3, 0.0, 1.0]], np.float32)
    chosen = greedy(ratios, 2)
    assert chosen == [0, 1]
    assert exchanged(ratios, chosen) == [1, 2]


@given(arrays(np.float32, (12, 9), elements=st.floats(0, 1, width=16)), st.integers(1, 9))
def test_exchanges_never_raise_the_mean(ratios: NDArray[np.float32], count: int):
    chosen = greedy(ratios, count)
    found = exchanged(ratios, chosen)
    assert len(set(found)) == len(found) <= len(chosen)
    assert mean_of(ratios, found) <= mean_of(ratios, chosen) + 1e-6


def test_rows_of_the_familys_kernels_are_found(family: KernelFamily):
    kernels = {plan.kernel for plan in family.kernels}
    held = 0
    for m, n, k in SIZES[:6]:
        table = candidates(replace(PROBLEM, m=m, n=n, k=k), DEVICE)
        expected = [table.plan(row).kernel in kernels for row in range(len(table))]
        assert family.holds(table).tolist() == expected
        held += sum(expected)
    assert held > 10


@pytest.mark.slow
def test_a_limited_choice_is_the_best_of_the_familys_plans(family: KernelFamily):
    kernels = {plan.kernel for plan in family.kernels}
    for m, n, k in SIZES:
        problem = replace(PROBLEM, m=m, n=n, k=k)
        limited = rank(problem, DEVICE, among=family)
        known = [choice for choice in choices(problem, DEVICE) if choice.plan.kernel in kernels]
        assert all(choice.plan.kernel in kernels for choice in limited)
        if known:
            assert limited[0].seconds == pytest.approx(known[0].seconds, rel=1e-9)


@pytest.mark.slow
def test_losses_are_those_of_limited_choices(family: KernelFamily):
    losses = losses_of(family, PROBLEM, DEVICE, SIZES)
    assert losses.shape == (20, len(SIZES))
    for place, (m, n, k) in enumerate(SIZES):
        problem = replace(PROBLEM, m=m, n=n, k=k)
        limited, free = (rank(problem, DEVICE, among=x)[0].seconds for x in (family, None))
        if np.isfinite(limited) and limited < 4 * free:
            assert losses[-1, place] == pytest.approx(limited / free - 1, abs=1e-5)


@pytest.mark.parametrize("reused", [False, True])
def test_persistent_kernels_serve_one_wave_if_kernels_are_reused(reused: bool):
    """Their grid has a workgroup for each tile; the model's terms are those of other kernels."""
    table = candidates(replace(PROBLEM, m=1024, n=1024, k=4096), DEVICE, reused=reused)
    persistent = table.of_schedule([s == DataParallel(persistent=True) for s in table.schedules])
    shape = Shape(table)
    one_wave = persistent & (shape.tiles <= DEVICE.slots(shape.workgroups))
    assert one_wave.any() == reused
    assert (table.workgroups[one_wave] == shape.tiles[one_wave]).all()
    plain = table.of_schedule([s == DataParallel() for s in table.schedules])
    seconds = cost(table, DEVICE, corrected=False).total
    if reused:
        assert seconds[one_wave].min() == pytest.approx(seconds[plain].min())


def test_a_family_without_a_suitable_kernel_gives_the_fallback():
    large = KernelFamily((Plan((256, 256, 64), (2, 1, 1)),))
    (only,) = rank(replace(PROBLEM, m=4, n=4096, k=4096), DEVICE, among=large)
    assert only.plan == fallback()
    unknown = KernelFamily((Plan((128, 128, 64), pipeline="reorder{group=2},data-parallel"),))
    assert rank(replace(PROBLEM, m=512, n=512, k=512), DEVICE, among=unknown)[0].plan == fallback()


def test_families_join(family: KernelFamily):
    other = KernelFamily((Plan((64, 64, 64)), family.kernels[0]), ranges=(SizeRange.of(m=1),))
    both = family.joined(other)
    assert both.kernels == (*family.kernels, *[p for p in other.kernels if p not in family.kernels])
    assert both.covers((1, 128, 8192))
    assert both.covers((4096, 256, 64))
    assert not both.covers((5000, 256, 64))
    assert not family.covers((1, 128, 8192))


def test_drawn_sizes_are_in_their_range_and_repeatable():
    assert draw_sizes((RANGE,), 25, seed=3) == SIZES
    assert draw_sizes((RANGE,), 25, seed=4) != SIZES
    assert all(size in RANGE for size in SIZES)
    assert all(n % 8 == 0 and k % 8 == 0 for _, n, k in SIZES)
    huge = SizeRange((8, 1 << 20), (8, 1 << 20), (8, 1 << 20))
    assert all(m * n * k <= MOST_OPERATIONS for m, n, k in draw_sizes((huge,), 50))
    assert draw_sizes((SizeRange((7, 7), (1, 1), (3, 3)),), 2) == ((7, 1, 3), (7, 1, 3))


def test_ranges_are_drawn_by_their_weights():
    rare, usual = SizeRange.of(m=8), replace(SizeRange.of(m=16), weight=9)
    drawn = draw_sizes((rare, usual), 400)
    assert 20 <= sum(m == 8 for m, _, _ in drawn) <= 60


@pytest.mark.parametrize(
    ("extents", "message"),
    [
        ((5, 3), "an empty range; give (low, high) with low <= high"),
        ((0, 3), "an extent of m = 0"),
        ((1, 2, 3), "no range of extents; give one integer, or the smallest"),
        ("8", "an extent of m = '8'"),
    ],
)
def test_wrong_ranges(extents: object, message: str):
    with pytest.raises(PassError) as found:
        SizeRange.of(m=extents)  # pyright: ignore[reportArgumentType]
    assert message in str(found.value)
    assert str(SizeRange.of(m=5, n=(1, 2))) == "m 5, n 1 to 2, k 128 to 8192"
