"""Sizes of regimes have the properties that their regime's name says."""

from __future__ import annotations

from math import ceil

import pytest

from benchmarks.problems.regimes import LAYERS, PROCESSORS, REGIMES, TILE_M, TILE_N, regime_shapes


@pytest.mark.parametrize("seed", range(5))
def test_every_size_has_the_property_of_its_regime(seed: int):
    for shape in regime_shapes(seed):
        tiles = ceil(shape.m / TILE_M) * ceil(shape.n / TILE_N)
        assert {
            "square": shape.m == shape.n == shape.k,
            "waves and a little more": 0 < tiles % PROCESSORS <= PROCESSORS // 4,
            "deep k, few tiles": tiles < PROCESSORS and shape.k >= 10_000,
            "decoding": shape.m <= 64 and (shape.n, shape.k) in LAYERS,
            "layers": shape.m >= 512 and (shape.n, shape.k) in LAYERS,
        }[shape.name], shape


def test_a_seed_draws_the_same_number_of_sizes_of_a_regime():
    names = [shape.name for shape in regime_shapes(3)]
    assert {name: names.count(name) for name in REGIMES} == {
        name: count for name, (count, _) in REGIMES.items()
    }
    assert regime_shapes(3) == regime_shapes(3) != regime_shapes(4)
    assert set(names[: len(REGIMES)]) == set(REGIMES)
