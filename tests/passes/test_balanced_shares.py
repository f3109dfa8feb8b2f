"""`stream-k{shares=balanced}`: workgroups' numbers of iterations differ by at most one.

If the number of workgroups is a multiple of the number of tiles, no workgroup has two tiles.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import codegen
from coordgraph import Gemm, LaunchError, PassError
from coordgraph.interpreter import trace
from passes import StreamK
from passes.kit import OWNERS, REDUCTIONS, Owner, Reduction
from tests.support.sampling import cover, quick_cases

TILE = (8, 8, 8)
extents = st.integers(1, 40)


def balanced(reduction: Reduction = "peers", owner: Owner = "first") -> StreamK:
    return StreamK(shares="balanced", reduction=reduction, owner=owner)


@given(extents, extents, st.integers(1, 90), st.integers(1, 40))
@settings(max_examples=25)
def test_shares_differ_by_at_most_one_iteration(m: int, n: int, k: int, workgroups: int):
    graph = balanced()(Gemm("f32").graph(TILE))
    found = trace(graph, {"m": m, "n": n, "k": k, "workgroups": workgroups})
    assert found.problems() == ()
    total = sum(found.iterations)
    most, rest = divmod(total, workgroups)
    assert sorted(found.iterations, reverse=True) == sorted(
        [most + 1] * rest + [most] * (workgroups - rest), reverse=True
    )


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 12), st.integers(1, 6))
@settings(max_examples=25)
def test_every_tile_is_divided_into_whole_shares(rows: int, columns: int, depth: int, pieces: int):
    graph = balanced("scatter")(Gemm("f32").graph(TILE))
    sizes = {"m": rows * 8, "n": columns * 8, "k": depth * 8}
    found = trace(graph, {**sizes, "workgroups": rows * columns * min(pieces, depth)})
    lengths = {s.k_count for s in found.segments if not s.padding and s.k_count}
    assert max(lengths) - min(lengths) <= 1
    for number in range(len(found.workgroups)):
        assert len({s.tile for s in found.of(number) if s.k_count}) == 1


@quick_cases(1)
@pytest.mark.parametrize(
    ("reduction", "owner"), cover(0, [(r, o) for r in REDUCTIONS for o in OWNERS])
)
def test_products_are_right_on_the_cpu(reduction: Reduction, owner: Owner):
    random = np.random.default_rng(0)
    a = random.standard_normal((20, 83), dtype=np.float32)
    b = random.standard_normal((83, 30), dtype=np.float32)
    kernel = codegen.compile(balanced(reduction, owner)(Gemm("f32").graph(TILE)), "cpu")
    for workgroups in (1, 5, 12, 24, 31):
        found = kernel(a, b, workgroups=workgroups)
        np.testing.assert_allclose(found, a @ b, atol=1e-4)


@pytest.mark.parametrize(
    "step",
    [StreamK(shares="balanced", least=2), StreamK(shares="balanced", least_segment=2)],
    ids=["least", "least_segment"],
)
def test_a_smallest_share_is_refused(step: StreamK):
    with pytest.raises(PassError, match="shares=balanced has no smallest share"):
        step(Gemm("f32").graph(TILE))


def test_more_workgroups_than_products_of_32_bits_hold_are_refused():
    graph = balanced()(Gemm("f32").graph(TILE))
    with pytest.raises(LaunchError, match="shares"):
        trace(graph, {"m": 8 * 250, "n": 8 * 250, "k": 8, "workgroups": 60000})
