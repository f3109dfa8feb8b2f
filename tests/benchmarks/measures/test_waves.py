"""`benchmarks waves` computes the utilisation of a partly filled last wave of output tiles."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.measures import waves
from benchmarks.problems.shapes import Shape


def test_what_whole_tiles_can_use():
    tile = (128, 256, 64)
    assert waves.tiles_of(Shape("", 129, 256, 1), tile) == 2
    assert waves.ideal(132, 132) == 1.0
    assert waves.ideal(133, 132) == pytest.approx(133 / 264)
    assert waves.ideal(66, 132) == 0.5


@pytest.mark.parametrize(("tiles", "workgroups"), [(133, 132), (5, 132), (300, 132), (7, 3)])
def test_whole_waves_are_whole(tiles: int, workgroups: int):
    tile = (128, 256, 64)
    shape = waves.whole_waves(tiles, workgroups, tile, 4096)
    assert waves.tiles_of(shape, tile) == -(-tiles // workgroups) * workgroups
    assert (shape.m % 128, shape.n % 256, shape.k) == (0, 0, 4096)


def test_utilisation_is_by_the_rate_of_the_same_kernel():
    rows: list[dict[str, Any]] = [
        {"name": "a", "ours": True, "tflops": 300.0},
        {"name": "b", "ours": True, "problem": "no"},
        {"name": "cuBLAS", "ours": False, "tflops": 500.0},
    ]
    whole = [{**row, "tflops": 600.0} for row in rows]
    waves.add_utilisation(rows, whole, workgroups=132, tiles=133)
    assert rows[0]["utilisation"] == 0.5
    assert rows[0]["ideal"] == pytest.approx(133 / 264)
    assert "utilisation" not in rows[1]
    assert "utilisation" not in rows[2]


def test_waves_have_one_tile_and_cluster():
    options = waves.parser().parse_args(["--tile", "256x256x64", "--cluster", "2x1"])
    assert {str(plan).partition(" ")[0] for plan in waves.plans_of(options)} == {"256x256x64@c2x1"}
