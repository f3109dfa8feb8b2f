"""Problems of benchmarks: the group sizes of a grouped product, the shapes in a product list."""

from __future__ import annotations

import pytest

from benchmarks.problems.grouped import ListGroups, uneven
from benchmarks.problems.shapes import Shape


@pytest.mark.parametrize("groups", [1, 2, 7, 8, 16, 64])
@pytest.mark.parametrize("skew", [0.0, 0.8, 3.0])
def test_sizes_add_up_and_differ(groups: int, skew: float):
    sizes = uneven(8192, groups, skew)
    assert (len(sizes), sum(sizes)) == (groups, 8192)
    assert min(sizes) >= 0
    assert sizes.count(0) >= groups // 8
    assert sizes == uneven(8192, groups, skew)
    if skew == 0.0:
        assert max(sizes) - min(x for x in sizes if x) <= 1


def test_a_list_of_products_has_all_or_a_part_of_n_and_k():
    sizes = ListGroups.divide(Shape("", 1000, 4096, 2048), 4, 0.0)
    assert [m for m, _, _ in sizes] == [250] * 4
    assert [n for _, n, _ in sizes] == [4096, 2048, 3072, 4096]
    assert [k for _, _, k in sizes] == [2048, 512, 1024, 2048]
    assert ListGroups.offsets_of(sizes[:2]) == [[0, 250, 500], [0, 4096, 6144], [0, 2048, 2560]]
